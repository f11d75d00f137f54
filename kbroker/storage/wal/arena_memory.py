"""Gives the arena its memory ahead of the log."""

from __future__ import annotations

from kbroker._fast.wal.wal import Wal

PAGE_BYTES = 4096
POPULATE_BYTES = 256 << 10  # at a time


class ArenaMemory:
    """How much of the arena has its memory: an append into new memory waits until the system has found and cleared it.

    Once the log has gone round the arena, all of it has its memory, and the system may make huge pages of it (decision
    028). Not thread-safe.
    """

    def __init__(self, wal: Wal) -> None:
        self._wal = wal
        self._end_lsn = 0  # the arena has its memory up to this position
        self._is_complete = False

    def populate(self) -> bool:
        """Populates the next piece, up to the end of the segment after the one being filled. False: none is missing."""
        wal, arena = self._wal, self._wal.arena
        head, size, round_lsn = wal.head_lsn, wal.segment_bytes, wal.start_lsn + arena.arena_bytes
        if head >= round_lsn:
            if not self._is_complete:
                arena.allow_huge_pages()
                self._is_complete = True
            return False
        start = max(self._end_lsn, head - head % PAGE_BYTES)
        wanted_end = min((head // size + 2) * size, round_lsn)
        end = min(wanted_end, start + POPULATE_BYTES, (start // size + 1) * size)
        if start >= end:
            return False
        self._end_lsn = end if arena.populate(start, end - start) else round_lsn
        return True
