"""A segment's `.index` file (docs/formats/kafka-log.md).

    Off  Size  Field
      0     4  last offset of a batch - the segment's base offset, int32
      4     4  position of that batch's first byte in the .log, int32

Entries ascend in both. Big-endian. Kafka maps the file whole, so it is written without the zeros of a live one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from kbroker.errors import CorruptionError

ENTRY_BYTES = 8
_ENTRY = struct.Struct(">ii")


class OffsetEntry(NamedTuple):
    """A batch that the index points to."""

    last_offset: int
    position: int


def encode_offset_index(entries: Iterable[OffsetEntry], base_offset: int) -> bytes:
    """The file's bytes. ValueError for entries that do not ascend or do not fit."""
    out = bytearray()
    before = (-1, -1)
    for last_offset, position in entries:
        entry = (last_offset - base_offset, position)
        if not (before[0] < entry[0] < 1 << 31 and before[1] < entry[1] < 1 << 31):
            raise ValueError(f"offset index entry {entry} after {before}")
        out += _ENTRY.pack(*entry)
        before = entry
    return bytes(out)


def parse_offset_index(data: bytes, base_offset: int, name: str = "offset index") -> list[OffsetEntry]:
    """The entries; a tail of zeros is not part of them. CorruptionError."""
    if len(data) % ENTRY_BYTES:
        raise CorruptionError(f"{name}: {len(data)} bytes are no whole number of entries")
    entries: list[OffsetEntry] = []
    before = (-1, -1)
    for place, entry in enumerate(_ENTRY.iter_unpack(data)):
        if entry == (0, 0) and not any(data[place * ENTRY_BYTES :]):
            break  # padding: the first batch has no entry
        if not (before[0] < entry[0] and before[1] < entry[1]):
            raise CorruptionError(f"{name}: entry {place}, {entry}, does not ascend from {before}")
        entries.append(OffsetEntry(base_offset + entry[0], entry[1]))
        before = entry
    return entries
