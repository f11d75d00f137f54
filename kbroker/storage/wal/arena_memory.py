"""Gives the arena its memory ahead of the log."""

from __future__ import annotations

from kbroker._fast.wal.wal import Wal
from kbroker.limits import MIB

PAGE_BYTES = 4096
POPULATE_BYTES = 256 << 10  # at a time
AHEAD_BYTES_MIN = 32 * MIB  # what an idle broker takes
AHEAD_PER_LOG_BYTE = 4
LOOKS_PER_AHEAD = 8  # so the log has used an eighth of what is ready when more is made


class ArenaMemory:
    """How much of the arena has its memory: an append into new memory waits until the system has found and cleared it.

    An idle broker has little of it. The more the log has grown, the further ahead memory is made ready, at most up to
    the end of the segment after the one being filled. Once the log has gone round the arena, all of it has its memory,
    and the system may make huge pages of it (decision 028). Not thread-safe.
    """

    def __init__(self, wal: Wal, ahead_bytes_min: int = AHEAD_BYTES_MIN) -> None:
        self._wal = wal
        self._ahead_bytes_min = ahead_bytes_min
        self._end_lsn = 0  # the arena has its memory up to this position
        self._is_complete = False

    def populate(self) -> bool:
        """Populates the next piece. False: none is missing now; the log's growth wakes the preparer for the next."""
        wal, arena = self._wal, self._wal.arena
        head, size, round_lsn = wal.head_lsn, wal.segment_bytes, wal.start_lsn + arena.arena_bytes
        if head >= round_lsn:
            if not self._is_complete:
                arena.allow_huge_pages()
                self._is_complete = True
            return False
        ahead_end = head + max(self._ahead_bytes_min, AHEAD_PER_LOG_BYTE * (head - wal.start_lsn))
        ahead_end -= ahead_end % PAGE_BYTES
        segments_end = min((head // size + 2) * size, round_lsn)
        start = max(self._end_lsn, head - head % PAGE_BYTES)
        end = min(ahead_end, segments_end, start + POPULATE_BYTES, (start // size + 1) * size)
        if start >= end:
            if ahead_end < segments_end:  # else the next segment wakes the preparer
                wal.wake_preparer_at(head + self._ahead_bytes_min // LOOKS_PER_AHEAD)
            return False
        self._end_lsn = end if arena.populate(start, end - start) else round_lsn
        return True
