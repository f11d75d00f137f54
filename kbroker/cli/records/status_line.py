"""A line about progress that is rewritten in place on stderr; nothing where stderr is no terminal."""

from __future__ import annotations

import shutil
import sys

from kbroker.cli.output import show_bytes
from kbroker.clock import Clock

EVERY_S = 0.5


def on_a_terminal() -> bool:
    """Whether a person sees stderr."""
    return sys.stderr is not None and sys.stderr.isatty()


class Throughput:
    """Counts records and bytes. Not thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.records = 0
        self.bytes = 0
        self._before = (0, 0, clock.monotonic())
        self._rates = ""

    def add(self, records: int, size: int) -> None:
        """Counts."""
        self.records += records
        self.bytes += size

    def rates(self) -> str:
        """Records and bytes a second, of half a second or more before this call or an earlier one."""
        records, size, then_s = self._before
        now_s = self._clock.monotonic()
        elapsed_s = now_s - then_s
        if elapsed_s >= EVERY_S:
            self._before = (self.records, self.bytes, now_s)
            records_rate, bytes_rate = (self.records - records) / elapsed_s, (self.bytes - size) / elapsed_s
            self._rates = f"{records_rate:,.0f} records/s, {show_bytes(bytes_rate)}/s"
        return self._rates


class StatusLine:
    """Not thread-safe."""

    def __init__(self, clock: Clock, shown: bool) -> None:
        self._clock = clock
        self._shown = shown
        self._next_s = clock.monotonic() + EVERY_S
        self._width = 0

    @property
    def is_due(self) -> bool:
        """Whether it is time to show a new text."""
        return self._shown and self._clock.monotonic() >= self._next_s

    def show(self, text: str) -> None:
        """Replaces the line."""
        self.clear()
        text = text[: shutil.get_terminal_size().columns - 1]
        sys.stderr.write(text)
        sys.stderr.flush()
        self._width = len(text)
        self._next_s = self._clock.monotonic() + EVERY_S

    def clear(self) -> None:
        """Makes room for output on the same terminal."""
        if self._width:
            sys.stderr.write(f"\r{' ' * self._width}\r")
            sys.stderr.flush()
            self._width = 0
