"""Time is injected, so that tests never sleep to wait and recovery can be replayed."""

from __future__ import annotations

import time
from typing import Protocol

PAUSE_SECONDS = 50e-6


class Clock(Protocol):
    """What the broker asks about time."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch (record timestamps, retention)."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back (timers, time-outs)."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


def let_threads_run() -> None:
    """Lets other threads run Python code now. A sleep of 0 would not: the GIL is taken back before they are awake."""
    time.sleep(PAUSE_SECONDS)


class ManualClock:
    """A clock for tests: stands still until ``advance`` is called."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 1_000.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Moves both clocks on by ``seconds``."""
        self._now_ms += round(seconds * 1000)
        self._monotonic += seconds
