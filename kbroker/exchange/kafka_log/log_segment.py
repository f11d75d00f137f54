"""A segment's `.log` file of an Apache Kafka partition (docs/formats/kafka-log.md).

    record batch (magic 2) | record batch | ... | zeros, if the file was preallocated and not closed

The name is the base offset in 20 digits. Only the batches' own lengths delimit them. Only the log is trusted: all other
files of a segment can be rebuilt from it.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kbroker._fast.base.crc32c import crc32c
from kbroker.errors import CorruptionError
from kbroker.exchange.batch_block import BATCH_BYTES_MAX, BLOCK_BYTES, ENTRY_DTYPE, Block
from kbroker.limits import MIB
from kbroker.storage.stores.regular_file import opened_regular

LOG_SUFFIX = ".log"
OFFSET_INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"

BATCH_HEADER_BYTES = 61
CRC_FROM = 21  # in a batch: start of the bytes that its CRC covers
LENGTH_PREFIX_BYTES = 12  # base offset and length field, which the length field does not count

_NAME = re.compile(r"([0-9]{20})\.log", re.ASCII)
# base offset, length, leader epoch, magic, CRC, attributes, last offset delta, base timestamp, max timestamp
_HEADER = struct.Struct(">qiibIhiqq")
_RECORD_COUNT = struct.Struct(">i")  # ends the header


class BadBatch(CorruptionError):
    """The log is readable up to `position` in `path` and not beyond."""

    def __init__(self, path: Path, position: int, problem: str) -> None:
        super().__init__(f"{path}: byte {position}: {problem}")
        self.path = path
        self.position = position
        self.problem = problem


def segment_name(offset: int, suffix: str = LOG_SUFFIX) -> str:
    """The name of a segment's file. ValueError for a number that is no offset."""
    if not 0 <= offset < 1 << 63:
        raise ValueError(f"{offset} is not an offset")
    return f"{offset:020d}{suffix}"


def segment_bases(directory: Path) -> list[int]:
    """Base offsets of a partition folder's segments, in order. OSError."""
    found = (_NAME.fullmatch(name) for name in os.listdir(directory))
    return sorted(int(match[1]) for match in found if match and int(match[1]) < 1 << 63)


def count_records(batch: bytes | memoryview) -> int:
    """The record count in the header of a batch."""
    count: int = _RECORD_COUNT.unpack_from(batch, BATCH_HEADER_BYTES - _RECORD_COUNT.size)[0]
    return count


def read_blocks(path: Path, expected_offset: int, block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """The batches of a log file in order, in blocks of about `block_bytes`, a larger batch in one of its own.

    Checks lengths, magic and the order of offsets, and the CRC of a batch that is larger than a block, so that a
    damaged length takes no memory; no other CRCs. `expected_offset` is the lowest that the first batch may begin with;
    gaps between batches are legal. Raises BadBatch after the last good block; NotRegularFile, OSError.
    """
    with opened_regular(path) as descriptor:
        position = 0
        want = block_bytes
        while True:
            data = os.pread(descriptor, want, position)
            if not data:
                return
            entries, end, problem = _split(data, position, expected_offset)
            if entries:
                rows = np.array(entries, ENTRY_DTYPE)
                yield Block(data[:end], rows)
                expected_offset = int(rows[-1]["base_offset"]) + int(rows[-1]["last_offset_delta"]) + 1
                position += end
                want = block_bytes
            if problem:
                raise BadBatch(path, position, problem)
            if entries:
                continue
            if not any(data) and _only_zeros(descriptor, position):
                return
            needed = _bytes_needed(data)
            if len(data) < want or needed <= len(data):
                raise BadBatch(path, position, f"{len(data)} bytes are not a whole record batch")
            if not _crc_holds(descriptor, position, needed):
                raise BadBatch(path, position, f"no whole record batch of {needed} bytes: its CRC does not match")
            want = needed


def _split(data: bytes, position: int, expected_offset: int) -> tuple[list[tuple[int, int, int, int, int]], int, str]:
    """(entries, their bytes, the fault after them or "") of the whole batches at the start of `data`."""
    entries: list[tuple[int, int, int, int, int]] = []
    at = 0
    while at + BATCH_HEADER_BYTES <= len(data):
        base_offset, length, _, magic, _, _, delta, _, max_timestamp = _HEADER.unpack_from(data, at)
        size = length + LENGTH_PREFIX_BYTES
        if length == 0 and base_offset == 0 and magic == 0:
            break  # zeros of a preallocated file, if only zeros follow
        problem = _header_fault(base_offset, size, magic, delta, expected_offset)
        if problem:
            return entries, at, problem
        if at + size > len(data):
            break
        entries.append((base_offset, position + at, max_timestamp, size, delta))
        expected_offset = base_offset + delta + 1
        at += size
    return entries, at, ""


def _header_fault(base_offset: int, size: int, magic: int, delta: int, expected_offset: int) -> str:
    if magic in (0, 1):
        return f"messages of the old format (magic {magic}); convert them with a Kafka before 4.0 first"
    if magic != 2:
        return f"magic {magic} is no record batch's"
    if not BATCH_HEADER_BYTES <= size <= BATCH_BYTES_MAX:
        return f"a record batch of {size} bytes"
    if delta < 0 or base_offset > (1 << 63) - 1 - (delta + 1):
        return f"a last offset delta of {delta} at offset {base_offset}"
    if base_offset < expected_offset:
        return f"offset {base_offset} where {expected_offset} or more is expected"
    return ""


def _bytes_needed(data: bytes) -> int:
    """Size of the batch that begins `data`; 0 when `data` is too short for its length."""
    if len(data) < LENGTH_PREFIX_BYTES:
        return 0
    length: int = struct.unpack_from(">i", data, 8)[0]
    return length + LENGTH_PREFIX_BYTES


def _crc_holds(descriptor: int, position: int, size: int) -> bool:
    """Whether a batch of `size` bytes is there with the CRC in its header; reads it in pieces."""
    crc = 0
    at = CRC_FROM
    while at < size:
        data = os.pread(descriptor, min(MIB, size - at), position + at)
        if not data:
            return False
        crc = crc32c(data, crc)
        at += len(data)
    return os.pread(descriptor, 4, position + CRC_FROM - 4) == crc.to_bytes(4, "big")


def _only_zeros(descriptor: int, position: int) -> bool:
    """Whether only zeros follow; holes of a sparse file are not read."""
    while True:
        try:
            position = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return True  # no more data
            raise
        data = os.pread(descriptor, MIB, position)
        if data.count(0) != len(data):
            return False
        position += len(data)
