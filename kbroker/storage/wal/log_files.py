"""The log's files on the disk: created, recycled, retired and removed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from kbroker._fast.wal.segment import WalSegment
from kbroker._fast.wal.wal import Wal
from kbroker.storage.wal import files as wal_files

SPARES_MAX = 2


class LogFiles:
    """The files of a log: those of its segments, spare ones, and retired ones, which are still to be removed.

    `lock` protects the lists of spare and retired files, and is held while files are removed, so that they go in the
    log's order. `list_lock` protects the log's list of segments and is never held while the disk is waited for: uploads
    and appends would wait as well. `lock` comes first.
    """

    def __init__(self, wal: Wal) -> None:
        self.lock, self.list_lock = threading.Lock(), threading.Lock()
        self.directory = Path(wal.directory)
        self.file_bytes = wal_files.HEADER_BYTES + wal.segment_bytes
        self.spares: list[Path] = []
        self.retired: list[Path] = []  # in the order of removal
        self.previous_end_lsn = 0  # where the log before this start ended, for the header of its first segment
        self.ready = threading.Event()  # the first segment of this start is there
        self._wal = wal
        self._spare_number = 0
        self._sizes: dict[str, int] = {}  # of recovered files that have another size than ours

    def note_size(self, path: str, file_bytes: int) -> None:
        """Recovery: what a segment file takes on the disk; an earlier start may have made larger or smaller ones."""
        if file_bytes != self.file_bytes:
            self._sizes[path] = file_bytes

    def bytes_of(self, segments: list[WalSegment]) -> int:
        """What the files of these segments take on the disk."""
        if not self._sizes:
            return len(segments) * self.file_bytes
        return sum(self._sizes.get(segment.path, self.file_bytes) for segment in segments)

    def disk_bytes(self) -> int:
        """What all segment files take on the disk, spare and retired ones included; index files are not counted."""
        retired = sum(self._sizes.get(str(path), self.file_bytes) for path in self.retired)
        return self.bytes_of(self._wal.segments) + retired + len(self.spares) * self.file_bytes

    def create(
        self,
        first_lsn: int,
        end_lsn: int,
        previous_end_lsn: int | None,
        spare: Path | None,
        more_zeros: Callable[[int], bool],
    ) -> WalSegment:
        """A file for [first_lsn, end_lsn), which is not in the log yet. Raises OSError: see files.create_segment."""
        self._wal.faults.prepare()
        header = wal_files.SegmentHeader(
            cluster_id=self._wal.cluster_id,
            first_lsn=first_lsn,
            capacity=end_lsn - first_lsn,
            incarnation=self._wal.incarnation,
            previous_end_lsn=-1 if previous_end_lsn is None else previous_end_lsn,
            segment_bytes=self._wal.segment_bytes,
        )
        fd, path = wal_files.create_segment(self.directory, header, spare, more_zeros)
        return WalSegment(fd, first_lsn, end_lsn, str(path))

    def take_spare_locked(self) -> Path | None:
        """A spare file, if there is one."""
        assert self.lock.locked()
        return self.spares.pop() if self.spares else None

    def give_back_locked(self, spare: Path | None) -> None:
        """The spare file was of no use: it may have been renamed, it may be bad. The next try takes another one."""
        assert self.lock.locked()
        if spare is not None:
            self.retired.append(spare)

    def remove_spare_locked(self) -> None:
        """Removes a spare file before all that is retired. Raises OSError."""
        assert self.lock.locked()
        self.retired.insert(0, self.spares.pop())
        self.remove_retired_locked()

    def remove_retired_locked(self, *, recyclable: bool = False) -> None:
        """Removes the first retired file, or makes a spare one of it. After an OSError it is still the first."""
        assert self.lock.locked()
        path, spare = self.retired[0], None
        wal_files.index_path(path).unlink(missing_ok=True)
        if recyclable and len(self.spares) < SPARES_MAX and path.stat().st_size == self.file_bytes:
            self._spare_number += 1
            spare = self.directory / f"spare-{self._wal.incarnation}{self._spare_number:06d}.free"
            os.rename(path, spare)
            self.retired[0] = spare
        else:
            path.unlink(missing_ok=True)
        wal_files.sync_directory(self.directory)
        if spare is not None:  # not before: after a crash its next header would stand under the name it had
            self.spares.append(spare)
        self._sizes.pop(str(path), None)
        self.retired.pop(0)
