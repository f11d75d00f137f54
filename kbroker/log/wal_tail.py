"""The tail of a log in use: its entries as recovery would find them, for partitions that are led here once more."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from kbroker._fast.wal.scan import STOP_REASONS, SegmentScan, read_image, scan_image
from kbroker._fast.wal.segment import WalSegment
from kbroker._fast.wal.wal import Wal
from kbroker.errors import CorruptionError
from kbroker.storage.wal import files as wal_files
from kbroker.storage.wal.segments import room

SYNC_SECONDS = 30.0


class TailPart(NamedTuple):
    """What one segment holds of one partition under one leader epoch: a group of a scan, valid until the next part is
    taken."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    segment: WalSegment
    scan: SegmentScan
    group: int


@contextmanager
def unflushed_segments(wal: Wal) -> Iterator[list[WalSegment]]:
    """The segments from the flushed position on, once all that was appended before is durable. They are borrowed: their
    files stay, also when a flush passes them meanwhile.

    They have what a row of the manifest lacks that is read afterwards. Raises OSError: the log has failed, or hangs.
    """
    if not wal.sync(SYNC_SECONDS):
        raise OSError("the write-ahead log does not become durable")
    borrowed = wal.borrow_unflushed()
    try:
        yield borrowed
    finally:
        wal.give_back(borrowed)


def tail_parts(wal: Wal, segments: Sequence[WalSegment]) -> Iterator[TailPart]:
    """What is durable in these segments, oldest first. Memory: one segment.

    It is read from the files, never from memory, and every CRC is checked. Raises CorruptionError, OSError.
    """
    durable_lsn = wal.durable_lsn
    for segment in segments:
        end_lsn = min(segment.end_lsn, durable_lsn)
        if segment.first_lsn < end_lsn:
            scan = _scan(segment, end_lsn)
            for group in range(scan.group_count):
                topic_id, partition, leader_epoch, *_ = scan.group(group)
                yield TailPart(topic_id, partition, leader_epoch, segment, scan, group)


def _scan(segment: WalSegment, end_lsn: int) -> SegmentScan:
    try:
        header = wal_files.decode_header(os.pread(segment.fd, wal_files.HEADER_BYTES, 0))
    except wal_files.HeaderError as error:
        raise CorruptionError(f"{segment.path}: damaged at position 0: {error}") from error
    length = segment.end_lsn - segment.first_lsn
    image = room(length)
    read_image(segment.fd, image, wal_files.HEADER_BYTES, end_lsn - segment.first_lsn)
    scan = scan_image(image, segment.first_lsn, end_lsn, segment.end_lsn, header.incarnation)
    if scan.stop_lsn < end_lsn:
        raise CorruptionError(
            f"{segment.path}: damaged at position {wal_files.HEADER_BYTES + scan.stop_lsn - segment.first_lsn}: "
            f"{STOP_REASONS[scan.stop_reason]}"
        )
    return scan
