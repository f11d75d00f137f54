"""SIGINT and SIGTERM end a command in order; a second one ends it at once, without a commit."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

STOPS = (signal.SIGINT, signal.SIGTERM)
SIGNALLED = 128  # and the signal's number: a shell's exit code


class StopSignals:
    """Within ``with``, the first signal sets `received`. Inside `interrupting` it raises KeyboardInterrupt as well.

    For the main thread only. The client library must not be interrupted: it would hold its locks.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._interrupts = False

    def __enter__(self) -> StopSignals:
        self._before = [signal.signal(number, self._handle) for number in STOPS]
        return self

    def __exit__(self, *failure: object) -> None:
        for number, handler in zip(STOPS, self._before, strict=True):
            signal.signal(number, handler)

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """For waits that end at once."""
        if self.received is not None:
            raise KeyboardInterrupt
        self._interrupts = True
        try:
            yield
        finally:
            self._interrupts = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again = self.received is not None
        self.received = number
        if again or self._interrupts:
            raise KeyboardInterrupt
