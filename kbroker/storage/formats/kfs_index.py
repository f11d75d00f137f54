"""The sparse index of a KafScale segment, an object of its own (docs/formats/kfs.md).

    Off        Size  Field
      0           4  magic u32 "IDX\\0"; also read: "IDX\\n", and 0x494458
      4           2  version u16, 1
      6           4  entry count u32
     10           4  interval u32: records between entries
     14           2  reserved u16
     16 + 12 n    8  base offset of a batch, i64
     24 + 12 n    4  position of its first byte from the start of the segment, i32

Everything is big-endian; both columns ascend. The first batch has an entry, then each that begins when at least
`interval` records have passed since the last one, or that would end more than 512 KiB after it: KafScale answers a
consumer from the last entry at or below its offset, with as many bytes as it asked for, so the bytes between two
entries must not fill an answer. There is no checksum: an entry is checked against the batch that it points to.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from kbroker.errors import CorruptionError
from kbroker.storage.formats.kfs import HEADER_BYTES, KfsSegment, batches_of

MAGIC = 0x49445800
MAGICS = frozenset({MAGIC, 0x4944580A, 0x00494458})
VERSION = 1
INTERVAL_RECORDS = 100
SPAN_BYTES = 512 << 10  # at most, between two entries, unless a single batch is larger
_HEADER = struct.Struct(">IHIIH")
_ENTRY = struct.Struct(">qi")
INDEX_HEADER_BYTES = _HEADER.size
INDEX_BYTES_MAX = 256 << 20
ENTRY_BYTES = _ENTRY.size
assert (INDEX_HEADER_BYTES, ENTRY_BYTES) == (16, 12)


@dataclass(frozen=True, slots=True)
class KfsIndex:
    """Entries of one segment's index: `offsets` and `positions` are of the same length, at least one."""

    interval: int
    offsets: tuple[int, ...]
    positions: tuple[int, ...]

    def find(self, offset: int) -> int:
        """Position of the batch where a scan for `offset` begins; the first batch's if `offset` lies below it."""
        return self.positions[max(bisect_right(self.offsets, offset) - 1, 0)]

    def span(self, offset: int, segment_bytes: int) -> tuple[int, int]:
        """(position, length) of the bytes between two entries that hold `offset`; the last span may have the footer
        at its end."""
        place = max(bisect_right(self.offsets, offset) - 1, 0)
        end = self.positions[place + 1] if place + 1 < len(self.positions) else segment_bytes
        return self.positions[place], end - self.positions[place]


def encode_index(batches: Iterable[tuple[int, int, int, int]], interval: int = INTERVAL_RECORDS) -> bytes:
    """The index of a segment with these batches: (position from its first byte, size, base offset, records)."""
    entries = bytearray()
    since = interval
    begin = 0
    for position, size, base_offset, record_count in batches:
        if since >= interval or position + size - begin > SPAN_BYTES:
            entries += _ENTRY.pack(base_offset, position)
            since, begin = 0, position
        since += record_count
    if not entries:
        raise ValueError("an index has at least one entry")
    return _HEADER.pack(MAGIC, VERSION, len(entries) // ENTRY_BYTES, interval, 0) + bytes(entries)


def rebuild_index(segment: KfsSegment, name: str = "segment") -> bytes:
    """Rebuilds a missing or damaged index from its segment. CorruptionError."""
    batches = batches_of(segment.body, name)
    return encode_index((position, head.size, head.base_offset, head.record_count) for position, head in batches)


def is_own_header(data: bytes, index: KfsIndex) -> bool:
    """Whether the header is as a broker writes it; others may have another magic and interval."""
    return data[:INDEX_HEADER_BYTES] == _HEADER.pack(MAGIC, VERSION, len(index.offsets), INTERVAL_RECORDS, 0)


def parse_index(data: bytes, base_offset: int, segment_bytes: int, name: str = "index") -> KfsIndex:
    """The index of a segment that begins at `base_offset` and has so many bytes. CorruptionError names ``name``."""
    if len(data) < INDEX_HEADER_BYTES:
        raise CorruptionError(f"{name}: {len(data)} bytes are too few for an index")
    magic, version, count, interval, _ = _HEADER.unpack_from(data)
    if magic not in MAGICS:
        raise CorruptionError(f"{name}: not a KafScale index: the magic at byte 0 is {magic:#010x}")
    if version != VERSION:
        raise CorruptionError(f"{name}: index version {version}; version {VERSION} is understood")
    if count == 0 or len(data) != INDEX_HEADER_BYTES + count * ENTRY_BYTES:
        raise CorruptionError(f"{name}: {count} entries in {len(data)} bytes")
    rows = list(_ENTRY.iter_unpack(data[INDEX_HEADER_BYTES:]))
    offsets, positions = (tuple(column) for column in zip(*rows, strict=True))
    if offsets[0] != base_offset or positions[0] != HEADER_BYTES:
        raise CorruptionError(f"{name}: begins with {rows[0]}, the segment with {(base_offset, HEADER_BYTES)}")
    for place in range(1, count):
        if not (offsets[place - 1] < offsets[place] and positions[place - 1] < positions[place]):
            raise CorruptionError(f"{name}: entry {place}, {rows[place]}, does not ascend from {rows[place - 1]}")
    if positions[-1] >= segment_bytes:
        raise CorruptionError(f"{name}: entry at byte {positions[-1]} of a segment of {segment_bytes} bytes")
    return KfsIndex(interval, offsets, positions)
