"""The tail of a log in use: its entries as recovery would find them, for partitions that are led here once more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from kbroker._fast.wal.scan import STOP_REASONS, SegmentScan, read_image, scan_image
from kbroker._fast.wal.segment import WalSegment
from kbroker._fast.wal.wal import Wal
from kbroker.errors import CorruptionError
from kbroker.storage.wal import files as wal_files
from kbroker.storage.wal.segments import room


class TailPart(NamedTuple):
    """What one segment holds of one partition under one leader epoch: a group of a scan, valid until the next part is
    taken."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    segment: WalSegment
    scan: SegmentScan
    group: int


def tail_parts(wal: Wal, from_lsn: int) -> Iterator[TailPart]:
    """Everything durable from the segment that holds `from_lsn` on, oldest first. Memory: one segment.

    It is read from the files, never from memory, and every CRC is checked. What is appended after the first part was
    taken may be left out. Raises CorruptionError, OSError.
    """
    durable_lsn = wal.durable_lsn
    for segment in list(wal.segments):
        end_lsn = min(segment.end_lsn, durable_lsn)
        if from_lsn < end_lsn and segment.first_lsn < end_lsn:
            scan = _scan(segment, end_lsn)
            for group in range(scan.group_count):
                topic_id, partition, leader_epoch, *_ = scan.group(group)
                yield TailPart(topic_id, partition, leader_epoch, segment, scan, group)


def _scan(segment: WalSegment, end_lsn: int) -> SegmentScan:
    header = wal_files.decode_header(os.pread(segment.fd, wal_files.HEADER_BYTES, 0))
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
