"""Reads the log of a stopped broker without changing it: the batches that its files hold, a segment at a time.

Unlike recovery it continues after damage, which it names: what can still be read was acknowledged to a client.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy

from kbroker._fast.wal.index_dtype import INDEX_DTYPE, index_array
from kbroker._fast.wal.scan import SegmentScan, find_proof
from kbroker.errors import CorruptionError
from kbroker.limits import WAL_SEGMENT_BYTES
from kbroker.storage.wal.index_file import index_in_memory
from kbroker.storage.wal.segments import SegmentChain, SegmentFile

INDEX_HEADER_BYTES = 64  # as docs/formats/wal.md has them
GROUP_BYTES = 64


class LoggedBatch(NamedTuple):
    """One batch, valid until the next segment is read."""

    topic_id: bytes
    partition: int
    lsn: int  # where its bytes begin
    data: memoryview


class WalTail:
    """The log in a directory, from ``flushed_lsn`` on; None: it is not known what is flushed, so all of it.

    ``faults``: a line for each place that is damaged. ``torn_at_lsn``: where a tail is cut off, never acknowledged.
    Both are complete after a full ``batches``. Raises StartError (another cluster's log, a newer format), OSError.
    """

    def __init__(self, directory: Path, cluster_id: str, flushed_lsn: int | None) -> None:
        self.faults: list[str] = []
        self.torn_at_lsn: int | None = None
        self._directory = directory
        self._cluster_id = cluster_id.encode()
        self._flushed_lsn = flushed_lsn

    def batches(self) -> Iterator[LoggedBatch]:
        """All of them, also of leaderships that ended; those of one partition in the order of their appends."""
        self.faults.clear()
        flushed_lsn = self._flushed_lsn or 0
        chain = SegmentChain(self._directory, self._cluster_id, WAL_SEGMENT_BYTES, flushed_lsn, os.O_RDONLY)
        try:
            chain.open_files(self.faults)
            if self._flushed_lsn is None and chain.files:
                first = chain.files[0].header
                chain.flushed_lsn = max(first.first_lsn, first.previous_end_lsn)
            chain.set_limits()
            for i, file in enumerate(chain.files):
                for scan in self._scans(chain, i, file):
                    yield from self._batches_of(chain, file, scan, flushed_lsn)
            self.torn_at_lsn = chain.torn_at_lsn
        finally:
            chain.close()

    def _scans(self, chain: SegmentChain, i: int, file: SegmentFile) -> Iterator[SegmentScan]:
        """The file's readable stretches; more than one where there is damage between them."""
        if file.capacity_end <= chain.flushed_lsn:
            chain.position, chain.torn = file.limit_lsn, False
            return
        try:
            chain.check_continuity(i, file)
        except CorruptionError as error:
            self.faults.append(str(error))
            chain.torn = False
        if chain.torn or file.limit_lsn == file.first_lsn:
            return
        chain.read(file.fd, file.capacity_end - file.first_lsn)
        start_lsn = file.first_lsn
        while start_lsn >= 0:
            scan = chain.scan(file, start_lsn)
            yield scan
            start_lsn = -1
            if scan.stop_lsn < file.limit_lsn and self._is_damage(chain, i, file, scan):
                start_lsn = find_proof(
                    chain.image, file.first_lsn, scan.stop_lsn + 8, file.limit_lsn, file.header.incarnation, -1
                )
                if start_lsn < 0:  # nothing more in this file, but the log continues in the next
                    chain.position = file.limit_lsn
                    return
            file.end_lsn = max(scan.stop_lsn, file.first_lsn)
        if file.end_lsn > file.first_lsn:
            chain.position = file.end_lsn

    def _is_damage(self, chain: SegmentChain, i: int, file: SegmentFile, scan: SegmentScan) -> bool:
        """False for a tear."""
        try:
            chain.judge_stop(i, file, scan)
        except CorruptionError as error:
            self.faults.append(str(error))
            return True
        return False

    def _batches_of(
        self, chain: SegmentChain, file: SegmentFile, scan: SegmentScan, flushed_lsn: int
    ) -> Iterator[LoggedBatch]:
        entries = _entries(scan)
        image = memoryview(chain.image)
        first = 0
        for i in range(scan.group_count):
            topic_id, partition, _, count, *_ = scan.group(i)
            for entry in entries[first : first + count]:
                lsn, size = int(entry["lsn"]), int(entry["size"])
                if lsn >= flushed_lsn:
                    start = lsn - file.first_lsn
                    yield LoggedBatch(topic_id, partition, lsn, image[start : start + size])
            first += count


def _entries(scan: SegmentScan) -> numpy.ndarray:
    """The index of a scan: the entries of its groups, one group after another."""
    fd = index_in_memory(scan)
    try:
        start = INDEX_HEADER_BYTES + scan.group_count * GROUP_BYTES
        data = os.pread(fd, scan.entry_count * INDEX_DTYPE.itemsize, start)
    finally:
        os.close(fd)
    return index_array(data)
