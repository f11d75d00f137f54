"""Start-up recovery of the write-ahead log: which entries count, what is a torn tail and what is corruption.

The rules are in docs/formats/wal.md. No log is deleted here: files found useless are handed to the keeper, which
recycles or removes them when the WAL starts.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kbroker._fast import wal_files
from kbroker._fast.partition import Partition
from kbroker._fast.wal import Wal
from kbroker._fast.wal_keeper import index_in_memory, write_index
from kbroker._fast.wal_room import is_no_room
from kbroker._fast.wal_scan import STOP_REASONS, SegmentScan, find_proof, read_image, scan_image
from kbroker._fast.wal_segment import WalSegment
from kbroker.errors import CorruptionError, StartError
from kbroker.limits import WAL_SEGMENT_BYTES
from kbroker.storage.regular_file import NotRegularFile, open_regular

SCAN_BAD_BATCH = 2

Resolve = Callable[[bytes, int], Partition | None]


@dataclass(slots=True)
class RecoveryReport:
    """What recovery found."""

    end_lsn: int = 0  # end of the log as recovered
    start_lsn: int = 0  # where appends go on
    segments: int = 0
    batches: int = 0  # replayed into partitions
    unknown_batches: int = 0  # of topics that do not exist any more
    torn_at_lsn: int | None = None  # where entries that were never acknowledged were cut off
    indexes_rebuilt: int = 0
    ignored: list[Path] = field(default_factory=list)  # files without a valid header that were never used


@dataclass(slots=True)
class _File:
    path: Path
    fd: int
    header: wal_files.SegmentHeader
    limit_lsn: int = 0  # the log does not go on in this file beyond this position
    end_lsn: int = 0

    @property
    def first_lsn(self) -> int:
        return self.header.first_lsn

    @property
    def capacity_end(self) -> int:
        return self.header.first_lsn + self.header.capacity

    def position(self, lsn: int) -> int:
        return wal_files.HEADER_BYTES + lsn - self.header.first_lsn


def recover(wal: Wal, resolve: Resolve, flushed_lsn: int = 0) -> RecoveryReport:
    """Reads the WAL, replays every batch at or above ``flushed_lsn`` and prepares ``wal`` for its start.

    ``resolve(topic_id, partition)`` gives the Partition, with its next offset and producer state as of
    ``flushed_lsn``, or None for a topic that is gone. Raises StartError (another cluster's WAL, a newer format) and
    CorruptionError (acknowledged data is damaged; names file and position). Memory: one segment.
    """
    return _Recovery(wal, resolve, flushed_lsn).run()


def _room(length: int) -> Any:
    """Memory that costs nothing until it is written."""
    return mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class _Recovery:
    def __init__(self, wal: Wal, resolve: Resolve, flushed_lsn: int) -> None:
        self.wal = wal
        self.resolve = resolve
        self.flushed_lsn = flushed_lsn
        self.report = RecoveryReport()
        self.files: list[_File] = []
        self.flushed_files: list[Path] = []  # hold nothing that is needed any more
        self.dead_files: list[Path] = []  # after the end of the log
        self.segments: list[WalSegment] = []
        self.image: Any = bytearray()  # of the segment at hand
        self.position = 0  # end of the log so far
        self.torn = False  # the current run of segments has ended before its files do

    def run(self) -> RecoveryReport:
        try:
            self._open_files()
            self._set_limits()
            for i, file in enumerate(self.files):
                self._recover_file(i, file)
            self._finish()
        finally:
            for file in self.files:
                if file.fd >= 0:
                    os.close(file.fd)
        return self.report

    # -- files -----------------------------------------------------------------------------------------------------

    def _open_files(self) -> None:
        directory = Path(self.wal.directory)
        names = sorted(p for p in directory.iterdir() if wal_files.SEGMENT_NAME.fullmatch(p.name))
        for path in names:
            fd = open_regular(path, os.O_RDWR)
            try:
                header = self._read_header(path, fd, path is names[-1])
            except BaseException:
                os.close(fd)
                raise
            if header is None:
                os.close(fd)
            else:
                self.files.append(_File(path, fd, header))

    def _read_header(self, path: Path, fd: int, is_last: bool) -> wal_files.SegmentHeader | None:
        try:
            header = wal_files.decode_header(os.pread(fd, wal_files.HEADER_BYTES, 0))
        except wal_files.NewerVersionError as error:
            raise StartError(f"{path}: {error}") from error
        except wal_files.HeaderError as error:
            if is_last and not self._was_used(path, fd):
                self.dead_files.append(path)
                self.report.ignored.append(path)
                return None
            raise CorruptionError(f"{path}: damaged at position 0: {error}") from error
        if header.cluster_id != self.wal.cluster_id:
            raise StartError(f"{path} belongs to cluster {header.cluster_id.decode('ascii', 'replace')}")
        if path.name != f"{header.first_lsn:020d}.wal":
            raise CorruptionError(f"{path}: damaged at position 48: the header says {header.first_lsn}")
        if header.capacity > max(self.wal.segment_bytes, WAL_SEGMENT_BYTES):
            raise CorruptionError(f"{path}: damaged at position 56: a segment of {header.capacity} bytes")
        return header  # whose size may be another than this start's: it is only read

    def _was_used(self, path: Path, fd: int) -> bool:
        # A file gets its name after its header is on disk; so an entry that belongs here proves that the header rotted.
        if not self.files:
            return False
        first_lsn = int(path.stem)
        capacity = max(self.wal.segment_bytes, self.files[-1].header.segment_bytes)
        self._read(fd, capacity)
        end = first_lsn + capacity
        return find_proof(self.image, first_lsn, first_lsn, end, self.files[-1].header.incarnation, -1) >= 0

    def _read(self, fd: int, length: int) -> None:
        if len(self.image) < length:
            self.image = _room(length)
        read_image(fd, self.image, wal_files.HEADER_BYTES, length)

    def _set_limits(self) -> None:
        # Each header that says where the log before it ends cuts off what earlier files hold beyond that.
        cut = None
        for i in range(len(self.files) - 1, -1, -1):
            file = self.files[i]
            file.limit_lsn = file.capacity_end
            if i + 1 < len(self.files):
                file.limit_lsn = min(file.limit_lsn, self.files[i + 1].first_lsn)
            if cut is not None:
                file.limit_lsn = max(file.first_lsn, min(file.limit_lsn, cut))
            previous = file.header.previous_end_lsn
            if previous >= 0:
                cut = previous if cut is None else min(cut, previous)

    # -- one file --------------------------------------------------------------------------------------------------

    def _recover_file(self, i: int, file: _File) -> None:
        if file.capacity_end <= self.flushed_lsn:
            self.flushed_files.append(file.path)
            self.position, self.torn = file.limit_lsn, False
            return
        self._check_continuity(i, file)
        if self.torn or file.limit_lsn == file.first_lsn:
            self.dead_files.append(file.path)  # after a torn tail, or made in advance and never used
            return
        self._read(file.fd, file.capacity_end - file.first_lsn)
        scan = self._scan(file, file.first_lsn)
        if scan.stop_lsn < file.limit_lsn:
            self._judge_stop(i, file, scan)
        file.end_lsn = max(scan.stop_lsn, file.first_lsn)
        if file.end_lsn == file.first_lsn:
            # Nothing was written here, so the log still ends where it did: the space skipped at a start is no log.
            self.dead_files.append(file.path)
            return
        self.position = file.end_lsn
        self._make_durable(file, scan.durable_lsn)
        self._take(file, scan)

    def _make_durable(self, file: _File, durable_lsn: int) -> None:
        # What no entry knows to be on disk may be in the page cache alone, and clean there: a sync that failed before
        # a kill leaves it so. It is taken for durable from now on, so it is written once more.
        lsn = max(file.first_lsn, durable_lsn)
        with memoryview(self.image) as image:
            while lsn < file.end_lsn:
                rest = image[lsn - file.first_lsn : file.end_lsn - file.first_lsn]
                lsn += os.pwrite(file.fd, rest, file.position(lsn))
        os.fdatasync(file.fd)

    def _scan(self, file: _File, start_lsn: int) -> SegmentScan:
        scan = scan_image(
            self.image, file.first_lsn, file.limit_lsn, file.capacity_end, file.header.incarnation, start_lsn
        )
        if scan.stop_lsn < min(self.flushed_lsn, file.limit_lsn):
            # What is damaged here is safe in objects: the log is needed from the flushed position on.
            return scan_image(
                self.image,
                file.first_lsn,
                file.limit_lsn,
                file.capacity_end,
                file.header.incarnation,
                self.flushed_lsn,
            )
        return scan

    def _check_continuity(self, i: int, file: _File) -> None:
        previous = file.header.previous_end_lsn
        before = self.files[i - 1] if i else None
        if previous >= 0:
            if max(self.position, self.flushed_lsn) < previous:
                where = before or file
                raise CorruptionError(
                    f"{where.path}: damaged at position {where.position(self.position)}: the log was durable up to "
                    f"{previous}, but it can be read only up to {self.position}"
                    if before
                    else f"{file.path}: the log before it, which ends at {previous}, is missing"
                )
            self.torn = False
            return
        if before is None:
            if file.first_lsn > self.flushed_lsn:
                raise CorruptionError(f"{file.path}: the log before it is missing from {self.flushed_lsn} on")
            return
        if self.torn:
            return
        if before.capacity_end != file.first_lsn and file.first_lsn > self.flushed_lsn:
            raise CorruptionError(f"{file.path}: the segment before it, at {before.capacity_end}, is missing")
        if before.header.incarnation != file.header.incarnation:
            raise CorruptionError(f"{file.path}: damaged at position 64: an incarnation that nothing announces")

    def _judge_stop(self, i: int, file: _File, scan: SegmentScan) -> None:
        # The scan stopped early: corruption if something later shows that this place had been durable, else a tear.
        bad = scan.stop_lsn
        reason = STOP_REASONS[scan.stop_reason]
        incarnation = file.header.incarnation
        proof_path, proof = file.path, find_proof(
            self.image, file.first_lsn, bad, file.limit_lsn, incarnation, bad
        )
        for later in self.files[i + 1 :]:
            if proof >= 0 or later.header.previous_end_lsn >= 0:
                break
            length = later.capacity_end - later.first_lsn
            other = _room(length)
            read_image(later.fd, other, wal_files.HEADER_BYTES, length)
            proof_path = later.path
            proof = find_proof(other, later.first_lsn, later.first_lsn, later.capacity_end, incarnation, bad)
        if proof >= 0:
            raise CorruptionError(
                f"{file.path}: damaged at position {file.position(bad)}: {reason}; "
                f"an entry of {proof_path} at WAL position {proof} shows that it had been durable"
            )
        for later in self.files[i + 1 :]:
            if later.header.previous_end_lsn > bad:
                raise CorruptionError(
                    f"{file.path}: damaged at position {file.position(bad)}: {reason}; "
                    f"the header of {later.path} shows that the log had been durable up to "
                    f"{later.header.previous_end_lsn}"
                )
        self.torn = True
        if scan.stop_reason == SCAN_BAD_BATCH or find_proof(
            self.image, file.first_lsn, bad, file.limit_lsn, incarnation, -1
        ) >= 0:
            self.report.torn_at_lsn = bad

    def _take(self, file: _File, scan: SegmentScan) -> None:
        self.wal.keeper.note_size(str(file.path), os.fstat(file.fd).st_size)
        index_fd = self._index(file, scan)
        fd, file.fd = file.fd, -1  # the segment's from now on
        segment = WalSegment(fd, file.first_lsn, file.end_lsn, str(file.path), index_fd, True)
        segment.lent = True  # perhaps: a socket of the process before this one may still be sending its pages
        self.segments.append(segment)
        self.wal.segments.append(segment)  # so that partitions find it while they replay
        self.report.segments += 1
        for i in range(scan.group_count):
            topic_id, index, count, *_ = scan.group(i)
            partition = self.resolve(topic_id, index)
            if partition is None:
                self.report.unknown_batches += count
            else:
                self.report.batches += partition.replay(segment, scan, i, self.flushed_lsn)

    def _index(self, file: _File, scan: SegmentScan) -> int:
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
        end = max(self.position, self.flushed_lsn)
        after = max([end, *(file.capacity_end for file in self.files)])
        start = -(-after // size) * size  # past every file there is: no name is used twice
        self.report.end_lsn, self.report.start_lsn = end, start
        self.wal.adopt(self.segments, start)
        keeper = self.wal.keeper
        # In this order a crash between two removals leaves a log without a hole.
        keeper.retired = self.flushed_files + self.dead_files[::-1]
        keeper.previous_end_lsn = end
        keeper.recovered = True
        directory = Path(self.wal.directory)
        for path in directory.iterdir():
            if wal_files.SPARE_NAME.fullmatch(path.name):
                status = path.lstat()
                usable = stat.S_ISREG(status.st_mode) and status.st_size == keeper.file_bytes
                if usable and len(keeper.spares) < 2:
                    keeper.spares.append(path)
                else:
                    path.unlink()
            elif path.name.endswith((".wal.tmp", ".idx.tmp")):
                path.unlink()
        if self.flushed_lsn > 0:
            self.wal.trim(self.flushed_lsn)
