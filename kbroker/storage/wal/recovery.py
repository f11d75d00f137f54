"""Start-up recovery of the write-ahead log: what counts of its segment files goes into the partitions.

kbroker.storage.wal.segments tells a torn tail from corruption. No log is deleted here: the keeper gets the files that
are of no use, and recycles or removes them when the WAL starts.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kbroker._fast.partition.partition import Partition
from kbroker._fast.wal.scan import SegmentScan
from kbroker._fast.wal.segment import WalSegment
from kbroker._fast.wal.wal import Wal
from kbroker.storage.stores.regular_file import NotRegularFile, open_regular
from kbroker.storage.wal import files as wal_files
from kbroker.storage.wal.index_file import index_in_memory, write_index
from kbroker.storage.wal.keeper import SegmentKeeper
from kbroker.storage.wal.log_files import SPARES_MAX
from kbroker.storage.wal.room import is_no_room
from kbroker.storage.wal.segments import SegmentChain, SegmentFile

Resolve = Callable[[bytes, int], Partition | None]


@dataclass(slots=True)
class RecoveryReport:
    """What recovery found."""

    end_lsn: int = 0  # end of the log as recovered
    start_lsn: int = 0  # where appends go on
    segments: int = 0
    batches: int = 0  # replayed into partitions
    unknown_batches: Counter[bytes] = field(default_factory=Counter)  # skipped: by the id of a topic that is not there
    superseded_batches: int = 0  # skipped: of leader epochs before the partition's tail
    torn_at_lsn: int | None = None  # where entries that were never acknowledged were cut off
    indexes_rebuilt: int = 0
    ignored: list[Path] = field(default_factory=list)  # files without a valid header that were never used


def recover(wal: Wal, resolve: Resolve, flushed_lsn: int = 0) -> RecoveryReport:
    """Reads the WAL, replays every batch at or above ``flushed_lsn`` and prepares ``wal`` for its start.

    ``resolve(topic_id, partition)`` gives the Partition, with its next offset and producer state as of
    ``flushed_lsn`` and its tail epoch, or None for a topic that is gone. Raises StartError (another cluster's WAL, a
    newer format) and CorruptionError (acknowledged data is damaged; names file and position). Memory: one segment.
    """
    return _Recovery(wal, resolve, flushed_lsn).run()


class _Recovery:
    def __init__(self, wal: Wal, resolve: Resolve, flushed_lsn: int) -> None:
        self.wal = wal
        self.resolve = resolve
        self.flushed_lsn = flushed_lsn
        self.chain = SegmentChain(Path(wal.directory), wal.cluster_id, wal.segment_bytes, flushed_lsn, os.O_RDWR)
        self.report = RecoveryReport()
        self.flushed_files: list[Path] = []  # hold nothing that is needed any more
        self.dead_files: list[Path] = []  # after the end of the log
        self.segments: list[WalSegment] = []

    def run(self) -> RecoveryReport:
        chain = self.chain
        try:
            chain.open_files()
            self.dead_files += chain.unused_files
            self.report.ignored += chain.unused_files
            chain.set_limits()
            for i, file in enumerate(chain.files):
                self._recover_file(i, file)
            self._finish()
        finally:
            chain.close()
        self.report.torn_at_lsn = chain.torn_at_lsn
        return self.report

    # -- one file --------------------------------------------------------------------------------------------------

    def _recover_file(self, i: int, file: SegmentFile) -> None:
        chain = self.chain
        if file.capacity_end <= self.flushed_lsn:
            self.flushed_files.append(file.path)
            chain.position, chain.torn = file.limit_lsn, False
            return
        chain.check_continuity(i, file)
        if chain.torn or file.limit_lsn == file.first_lsn:
            self.dead_files.append(file.path)  # after a torn tail, or made in advance and never used
            return
        chain.read(file.fd, file.capacity_end - file.first_lsn)
        scan = chain.scan(file, file.first_lsn)
        if scan.stop_lsn < file.limit_lsn:
            chain.judge_stop(i, file, scan)
        file.end_lsn = max(scan.stop_lsn, file.first_lsn)
        if file.end_lsn == file.first_lsn:
            # Nothing was written here, so the log still ends where it did: the space skipped at a start is no log.
            self.dead_files.append(file.path)
            return
        chain.position = file.end_lsn
        self._make_durable(file, scan.durable_lsn)
        self._take(file, scan)

    def _make_durable(self, file: SegmentFile, durable_lsn: int) -> None:
        # What no entry knows to be on disk may be in the page cache alone, and clean there: a sync that failed before
        # a kill leaves it so. It is taken for durable from now on, so it is written once more.
        lsn = max(file.first_lsn, durable_lsn)
        with memoryview(self.chain.image) as image:
            while lsn < file.end_lsn:
                rest = image[lsn - file.first_lsn : file.end_lsn - file.first_lsn]
                lsn += os.pwrite(file.fd, rest, file.position(lsn))
        os.fdatasync(file.fd)

    def _take(self, file: SegmentFile, scan: SegmentScan) -> None:
        self.wal.keeper.files.note_size(str(file.path), os.fstat(file.fd).st_size)
        index_fd = self._index(file, scan)
        fd, file.fd = file.fd, -1  # the segment's from now on
        segment = WalSegment(fd, file.first_lsn, file.end_lsn, str(file.path), index_fd, True)
        segment.lent = True  # perhaps: a socket of the process before this one may still be sending its pages
        self.segments.append(segment)
        self.wal.segments.append(segment)  # so that partitions find it while they replay
        self.report.segments += 1
        for i in range(scan.group_count):
            topic_id, index, leader_epoch, count, *_ = scan.group(i)
            partition = self.resolve(topic_id, index)
            if partition is None:
                self.report.unknown_batches[topic_id] += count
            elif leader_epoch < partition.tail_epoch:
                self.report.superseded_batches += count
            else:
                self.report.batches += partition.replay(segment, scan, i, self.flushed_lsn)

    def _index(self, file: SegmentFile, scan: SegmentScan) -> int:
        path = wal_files.index_path(file.path)
        try:
            fd = open_regular(path)
        except (FileNotFoundError, NotRegularFile):
            fd = -1
        if fd >= 0:
            if scan.index_matches(fd, os.fstat(fd).st_size):
                return fd
            os.close(fd)
        self.report.indexes_rebuilt += 1
        try:
            return write_index(file.path, scan)
        except OSError as error:
            if not is_no_room(error):
                raise
            return index_in_memory(scan)

    # -- end -------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        size = self.wal.segment_bytes
        end = max(self.chain.position, self.flushed_lsn)
        after = max([end, *(file.capacity_end for file in self.chain.files)])
        start = -(-after // size) * size  # past every file there is: no name is used twice
        self.report.end_lsn, self.report.start_lsn = end, start
        self.wal.adopt(self.segments, start)
        keeper: SegmentKeeper = self.wal.keeper
        # In this order a crash between two removals leaves a log without a hole.
        keeper.files.retired = self.flushed_files + self.dead_files[::-1]
        keeper.files.previous_end_lsn = end
        keeper.recovered = True
        directory = Path(self.wal.directory)
        for path in directory.iterdir():
            if wal_files.SPARE_NAME.fullmatch(path.name):
                status = path.lstat()
                usable = stat.S_ISREG(status.st_mode) and status.st_size == keeper.files.file_bytes
                if usable and len(keeper.files.spares) < SPARES_MAX:
                    keeper.files.spares.append(path)
                else:
                    path.unlink()
            elif path.name.endswith((".wal.tmp", ".idx.tmp")):
                path.unlink()
        # Where all was flushed, what this start skips counts as flushed, too: it holds nothing.
        self.wal.trim(start if end == self.flushed_lsn else self.flushed_lsn)
