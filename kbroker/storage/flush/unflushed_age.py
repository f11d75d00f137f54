"""How old the oldest data is that only the local disk has."""

from __future__ import annotations

import threading
from collections import deque

from kbroker.clock import Clock

MARKS_MAX = 1024


class UnflushedAge:
    """Remembers when the log had grown to where, as often as `look` is called. What a start has replayed is as old as
    the start. Safe on many threads.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._marks: deque[tuple[int, float]] = deque()  # (end of the log, when it was first seen there)

    def look(self, durable_lsn: int, flushed_lsn: int) -> float:
        """Seconds since the first byte from `flushed_lsn` on was seen; 0 when all is flushed."""
        now = self._clock.monotonic()
        with self._lock:
            marks = self._marks
            if durable_lsn > (marks[-1][0] if marks else flushed_lsn):
                marks.append((durable_lsn, now))
            if len(marks) > MARKS_MAX:  # coarser, but for the oldest
                self._marks = marks = deque([marks[0], *list(marks)[2::2]])
            while marks and marks[0][0] <= flushed_lsn:
                marks.popleft()
            return now - marks[0][1] if marks else 0.0
