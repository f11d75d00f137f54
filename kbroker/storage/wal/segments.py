"""The segment files of a write-ahead log in their order: which of their bytes count, where a tear or damage is.

The rules are in docs/formats/wal.md. Recovery (recovery.py) and what only reads a log (tail.py) share them.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbroker._fast.wal.scan import STOP_REASONS, SegmentScan, find_proof, read_image, scan_image
from kbroker.errors import CorruptionError, StartError
from kbroker.limits import WAL_SEGMENT_BYTES
from kbroker.storage.stores.regular_file import NotRegularFile, open_regular
from kbroker.storage.wal import files as wal_files

SCAN_BAD_BATCH = 2


@dataclass(slots=True)
class SegmentFile:
    """One open file with a valid header."""

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


def room(length: int) -> Any:
    """Memory that costs nothing until it is written."""
    return mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class SegmentChain:
    """The files of one log, read one after another. Not thread-safe. Memory: one segment.

    ``position`` is the end of the log as far as it was read, and ``torn`` says that it ended before its files do: the
    reader of a file keeps both.
    """

    def __init__(
        self, directory: Path, cluster_id: bytes, segment_bytes: int, flushed_lsn: int, open_flags: int
    ) -> None:
        """``segment_bytes``: of this start; files of other starts are read up to ``WAL_SEGMENT_BYTES``."""
        self.directory = directory
        self.cluster_id = cluster_id
        self.segment_bytes = segment_bytes
        self.flushed_lsn = flushed_lsn
        self.files: list[SegmentFile] = []
        self.unused_files: list[Path] = []  # without a valid header, and never used
        self.image: Any = bytearray()  # of the segment at hand
        self.position = 0
        self.torn = False
        self.torn_at_lsn: int | None = None  # where entries that were never acknowledged begin
        self._open_flags = open_flags

    def close(self) -> None:
        """Closes what was not taken."""
        for file in self.files:
            if file.fd >= 0:
                os.close(file.fd)
                file.fd = -1

    def open_files(self, faults: list[str] | None = None) -> None:
        """Opens the files and reads their headers. Raises StartError (another cluster's, a newer format), OSError.

        CorruptionError for a damaged header; with ``faults`` it is named there, and the file is passed over.
        """
        names = sorted(p for p in self.directory.iterdir() if wal_files.SEGMENT_NAME.fullmatch(p.name))
        for path in names:
            try:
                fd = open_regular(path, self._open_flags)
            except NotRegularFile as error:
                if faults is None:
                    raise
                faults.append(str(error))
                continue
            try:
                header = self._read_header(path, fd, path is names[-1])
            except CorruptionError as error:
                os.close(fd)
                if faults is None:
                    raise
                faults.append(str(error))
                continue
            except BaseException:
                os.close(fd)
                raise
            if header is None:
                os.close(fd)
            else:
                self.files.append(SegmentFile(path, fd, header))

    def _read_header(self, path: Path, fd: int, is_last: bool) -> wal_files.SegmentHeader | None:
        try:
            header = wal_files.decode_header(os.pread(fd, wal_files.HEADER_BYTES, 0))
        except wal_files.NewerVersionError as error:
            raise StartError(f"{path}: {error}") from error
        except wal_files.HeaderError as error:
            if is_last and not self._was_used(path, fd):
                self.unused_files.append(path)
                return None
            raise CorruptionError(f"{path}: damaged at position 0: {error}") from error
        if header.cluster_id != self.cluster_id:
            raise StartError(f"{path} belongs to cluster {header.cluster_id.decode('ascii', 'replace')}")
        if path.name != f"{header.first_lsn:020d}.wal":
            raise CorruptionError(f"{path}: damaged at position 48: the header says {header.first_lsn}")
        if header.capacity > max(self.segment_bytes, WAL_SEGMENT_BYTES):
            raise CorruptionError(f"{path}: damaged at position 56: a segment of {header.capacity} bytes")
        return header  # whose size may be another than this start's: it is only read

    def _was_used(self, path: Path, fd: int) -> bool:
        # A file gets its name after its header is on disk; so an entry that belongs here proves that the header rotted.
        if not self.files:
            return False
        first_lsn = int(path.stem)
        capacity = min(max(self.segment_bytes, self.files[-1].header.segment_bytes), WAL_SEGMENT_BYTES)
        self.read(fd, capacity)
        end = first_lsn + capacity
        return find_proof(self.image, first_lsn, first_lsn, end, self.files[-1].header.incarnation, -1) >= 0

    def read(self, fd: int, length: int) -> None:
        """Reads so much of a segment into ``image``."""
        if len(self.image) < length:
            self.image = room(length)
        read_image(fd, self.image, wal_files.HEADER_BYTES, length)

    def set_limits(self) -> None:
        """Finds out how far each file belongs to the log."""
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

    def scan(self, file: SegmentFile, start_lsn: int) -> SegmentScan:
        """The entries of the file that ``image`` holds, up to the first that is not valid."""
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

    def check_continuity(self, i: int, file: SegmentFile) -> None:
        """CorruptionError where something between ``position`` and the file is missing."""
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

    def judge_stop(self, i: int, file: SegmentFile, scan: SegmentScan) -> None:
        """The scan stopped early: CorruptionError if something later shows that this place was durable, else a tear."""
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
            other = room(length)
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
            self.torn_at_lsn = bad

