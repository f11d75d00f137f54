"""The age of the oldest unflushed data."""

from __future__ import annotations

import threading
from collections import deque

from kbroker.clock import Clock

MARKS_MAX = 1024


class UnflushedAge:
    """Samples the end of the log at each call of `look`. Data that a start has replayed is as old as the start.
    Thread-safe.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._marks: deque[tuple[int, float]] = deque()  # (end of the log, when it was first seen)

    def look(self, durable_lsn: int, flushed_lsn: int) -> float:
        """Seconds since the first byte from `flushed_lsn` on was seen; 0 when all is flushed."""
        now = self._clock.monotonic()
        with self._lock:
            marks = self._marks
            if durable_lsn > (marks[-1][0] if marks else flushed_lsn):
                marks.append((durable_lsn, now))
            if len(marks) > MARKS_MAX:  # thin out, but keep the oldest
                self._marks = marks = deque([marks[0], *list(marks)[2::2]])
            while marks and marks[0][0] <= flushed_lsn:
                marks.popleft()
            return now - marks[0][1] if marks else 0.0
