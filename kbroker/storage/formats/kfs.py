"""KafScale's segments: the record batches of one partition between a header and a footer (docs/formats/kfs.md).

    Off   Size  Field
      0      4  magic u32 "KAFS"
      4      2  version u16, 1
      6      2  flags u16
      8      8  base offset i64
     16      4  record count u32
     20      8  created, ms, i64
     28      4  reserved u32
     32      D  record batches, one after another
     32+D    4  CRC-32C (some writers: CRC-32) of the batches, u32
     36+D    8  last offset i64
     44+D    4  magic u32 "END!"

Everything is big-endian. Where batches lie is in a second object, the index (kfs_index.py); a segment can be read
without it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.records import BatchHeader, iter_batches
from kbroker.errors import CorruptionError

MAGIC = 0x4B414653
END_MAGIC = 0x454E4421
VERSION = 1
_HEADER = struct.Struct(">IHHqIqI")
_FOOTER = struct.Struct(">IqI")
HEADER_BYTES = _HEADER.size
FOOTER_BYTES = _FOOTER.size
SEGMENT_BYTES_MAX = (1 << 31) - 1  # positions in the index are i32
assert (HEADER_BYTES, FOOTER_BYTES) == (32, 16)


@dataclass(frozen=True, slots=True)
class KfsHeader:
    """The header of a segment, before its batches."""

    base_offset: int
    record_count: int
    created_ms: int
    flags: int = 0


@dataclass(frozen=True, slots=True)
class KfsFooter:
    """The footer of a segment, after its batches."""

    crc: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class KfsSegment:
    """A whole segment, checked; `body` borrows from the bytes it was parsed from."""

    header: KfsHeader
    footer: KfsFooter
    body: memoryview

    @property
    def end_offset(self) -> int:
        """The offset after the last one."""
        return self.footer.last_offset + 1

    @property
    def whole(self) -> memoryview:
        """The bytes that it was parsed from."""
        return memoryview(self.body.obj)


def encode_header(base_offset: int, record_count: int, created_ms: int) -> bytes:
    """The bytes before the batches. struct.error for values out of range."""
    return _HEADER.pack(MAGIC, VERSION, 0, base_offset, record_count, created_ms, 0)


def encode_footer(body_crc32c: int, last_offset: int) -> bytes:
    """The bytes after the batches."""
    return _FOOTER.pack(body_crc32c, last_offset, END_MAGIC)


def encode_segment(batches: bytes, created_ms: int) -> bytes:
    """A whole segment around ``batches``: complete record batches in offset order. ValueError when they are not."""
    headers = [header for header, _ in iter_batches(batches)]
    if not headers:
        raise ValueError("a segment holds at least one batch")
    if len(batches) > SEGMENT_BYTES_MAX - HEADER_BYTES - FOOTER_BYTES:
        raise ValueError(f"{len(batches)} bytes are too many for a segment")
    for before, header in pairwise(headers):
        if header.base_offset < before.next_offset:
            raise ValueError(f"offset {header.base_offset} where {before.next_offset} or more is expected")
    count = sum(header.record_count for header in headers)
    return b"".join(
        (
            encode_header(headers[0].base_offset, count, created_ms),
            batches,
            encode_footer(crc32c(batches), headers[-1].last_offset),
        )
    )


def parse_header(data: bytes | memoryview, size: int, name: str = "segment") -> KfsHeader:
    """The header, from the first bytes of an object of ``size`` bytes. CorruptionError names ``name``."""
    if min(len(data), size - FOOTER_BYTES) < HEADER_BYTES:
        raise CorruptionError(f"{name}: {size} bytes are too few for a KafScale segment")
    magic, version, flags, base_offset, record_count, created_ms, _ = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise CorruptionError(f"{name}: not a KafScale segment: the magic at byte 0 is {magic:#010x}")
    if version != VERSION:
        raise CorruptionError(f"{name}: segment version {version}; version {VERSION} is understood")
    if base_offset < 0:
        raise CorruptionError(f"{name}: base offset {base_offset}")
    return KfsHeader(base_offset, record_count, created_ms, flags)


def parse_footer(tail: bytes | memoryview, header: KfsHeader, name: str = "segment") -> KfsFooter:
    """The footer, from the last bytes of the object. CorruptionError: truncated, or of another header."""
    if len(tail) < FOOTER_BYTES:
        raise CorruptionError(f"{name}: {len(tail)} bytes are no footer")
    crc, last_offset, magic = _FOOTER.unpack_from(tail, len(tail) - FOOTER_BYTES)
    if magic != END_MAGIC:
        raise CorruptionError(f"{name}: the segment is cut off: the magic at its end is {magic:#010x}")
    if not header.base_offset <= last_offset < (1 << 63) - 1:
        raise CorruptionError(f"{name}: last offset {last_offset} of a segment that begins at {header.base_offset}")
    return KfsFooter(crc, last_offset)


def open_segment(data: bytes, name: str = "segment") -> KfsSegment:
    """A whole segment; header, footer and checksum are checked, the batches not yet. CorruptionError names ``name``."""
    header = parse_header(data, len(data), name)
    footer = parse_footer(data, header, name)
    body = memoryview(data)[HEADER_BYTES : len(data) - FOOTER_BYTES]
    if footer.crc not in (crc32c(body), zlib.crc32(body)):
        raise CorruptionError(f"{name}: the checksum of the batches is neither CRC-32C nor CRC-32 {footer.crc:08x}")
    return KfsSegment(header, footer, body)


def parse_segment(data: bytes, name: str = "segment") -> KfsSegment:
    """A whole segment; checksum and batches are checked. CorruptionError names ``name`` and the place."""
    segment = open_segment(data, name)
    header, footer, body = segment.header, segment.footer, segment.body
    expected = header.base_offset
    for position, batch in batches_of(body, name):
        if batch.base_offset < expected or (position == HEADER_BYTES and batch.base_offset != expected):
            raise CorruptionError(f"{name}: offset {batch.base_offset} at byte {position}, {expected} expected")
        expected = batch.next_offset
    if expected != footer.last_offset + 1:
        raise CorruptionError(f"{name}: the batches end at {expected}, the footer says {footer.last_offset + 1}")
    return segment


def batches_of(body: bytes | memoryview, name: str = "segment") -> Iterator[tuple[int, BatchHeader]]:
    """(position from the segment's first byte, header) of every batch; each CRC is checked. CorruptionError."""
    position = HEADER_BYTES
    try:
        for header, batch in iter_batches(body, check_crc=True):
            if header.magic != 2 or header.last_offset_delta < 0:
                raise CorruptionError(f"{name}: no record batch at byte {position}")
            yield position, header
            position += len(batch)
    except ValueError as error:
        raise CorruptionError(f"{name}: byte {position}: {str(error).partition(' (at byte')[0]}") from None
    if position == HEADER_BYTES:
        raise CorruptionError(f"{name}: no batches")
