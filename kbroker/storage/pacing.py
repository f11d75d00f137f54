"""Pacing of uploads: a flush spreads its bytes over time, so that it costs little at any moment."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kbroker.storage.object_store import BodySource


class Pacer:
    """Gives leave to send bytes at a rate. Shared by the upload threads.

    `wait(seconds)` sleeps and may return early; `monotonic` is the clock's. `rate()`, where given, is asked again and
    again for the bytes per second, 0 for no limit; it must be quick. `granted(count)` is told of bytes that may go.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        wait: Callable[[float], object],
        rate: Callable[[], float] | None = None,
        granted: Callable[[int], None] | None = None,
    ) -> None:
        self._monotonic = monotonic
        self._wait = wait
        self._rate = rate
        self._granted = granted
        self._lock = threading.Lock()
        self._bytes_per_second = 0.0  # 0: no limit
        self._next = 0.0  # when the next byte may go

    def set_rate(self, bytes_per_second: float) -> None:
        """Sets the rate from now on; 0 is no limit."""
        with self._lock:
            self._bytes_per_second = bytes_per_second
            self._next = self._monotonic()

    def acquire(self, count: int) -> None:
        """Returns when `count` more bytes may go."""
        self._await_turn(count)
        if self._granted is not None:
            self._granted(count)

    def _await_turn(self, count: int) -> None:
        while True:
            with self._lock:
                now = self._monotonic()
                if self._rate is not None:
                    self._bytes_per_second = self._rate()
                if not self._bytes_per_second or self._next <= now:
                    if self._bytes_per_second:
                        self._next = max(self._next, now - 0.1) + count / self._bytes_per_second
                    return
                seconds = self._next - now
            self._wait(min(seconds, 0.1))


class PacedBody:
    """A body whose reads wait for the pacer."""

    __slots__ = ("_body", "_pacer", "length")

    def __init__(self, body: BodySource, pacer: Pacer) -> None:
        self._body = body
        self._pacer = pacer
        self.length = body.length

    def read_into(self, position: int, out: memoryview) -> int:
        """Waits, then reads."""
        self._pacer.acquire(min(len(out), self.length - position))
        return self._body.read_into(position, out)
