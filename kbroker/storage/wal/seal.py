"""Full segments of the log get an index, which their partitions read."""

from __future__ import annotations

import os
from pathlib import Path

from kbroker._fast.wal.scan import SegmentScan
from kbroker._fast.wal.segment import WalSegment
from kbroker._fast.wal.wal import Wal
from kbroker.storage.wal.index_file import index_in_memory, write_index
from kbroker.storage.wal.limit import LogLimit
from kbroker.storage.wal.log_files import LogFiles
from kbroker.storage.wal.reclaim import Reclaimer
from kbroker.storage.wal.room import SEALING, is_no_room

MEMORY_INDEXES_MAX = 3  # of segments that were sealed without room for an index file
ATTACH_STEP = 100  # groups handed to partitions per hold of the GIL: well below a millisecond


class SegmentSealer:
    """Seals the log's segments, oldest first. One thread at a time calls `seal_once`."""

    def __init__(self, wal: Wal, files: LogFiles, limit: LogLimit, reclaimer: Reclaimer) -> None:
        self.wal = wal
        self._files = files
        self._limit = limit
        self._reclaimer = reclaimer
        self._memory_indexes: set[str] = set()  # paths of segments

    def seal_once(self) -> bool:
        """Indexes the oldest full segment and hands the index to the partitions. True: call again."""
        segment = self.wal.unsealed()
        if segment is None:
            return False
        scan = self.wal.scan_full(segment)
        if segment.index_fd < 0:
            segment.index_fd = self._index(segment, scan)
        self._reclaimer.shortage.end(SEALING)
        group = 0
        while group < scan.group_count:
            group = self.wal.attach(segment, scan, group, ATTACH_STEP)
            os.sched_yield()  # releases the GIL
        with self._files.list_lock:
            self.wal.mark_sealed(segment)
            self._limit.update_locked()
        os.eventfd_write(self.wal.prepare_eventfd, 1)
        return True

    def _index(self, segment: WalSegment, scan: SegmentScan) -> int:
        """In memory where there is no room: a segment without an index could never be given up."""
        try:
            return write_index(Path(segment.path), scan)
        except OSError as error:
            if not is_no_room(error):
                raise
            self._memory_indexes &= {kept.path for kept in self.wal.segments}
            if len(self._memory_indexes) >= MEMORY_INDEXES_MAX:
                self._reclaimer.begin_shortage(SEALING, f"{error} ({self._limit.volume.describe()})")
                raise
            self._memory_indexes.add(segment.path)
            return index_in_memory(scan)
