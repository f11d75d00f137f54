"""A segment's `.timeindex` file (docs/formats/kafka-log.md).

    Off  Size  Field
      0     8  largest timestamp so far, ms, int64
      8     4  last offset of the batch that has it - the segment's base offset, int32

Both ascend. Big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from kbroker.errors import CorruptionError

ENTRY_BYTES = 12
_ENTRY = struct.Struct(">qi")


class TimeEntry(NamedTuple):
    """No record up to this offset has a larger timestamp."""

    timestamp: int
    last_offset: int


def encode_time_index(entries: Iterable[TimeEntry], base_offset: int) -> bytes:
    """The file's bytes. ValueError for entries that do not ascend or do not fit."""
    out = bytearray()
    before: TimeEntry | None = None
    for entry in entries:
        relative = entry.last_offset - base_offset
        ascends = before is None or (before.timestamp < entry.timestamp and before.last_offset < entry.last_offset)
        if not ascends or not 0 <= relative < 1 << 31:
            raise ValueError(f"time index entry {entry} after {before}")
        out += _ENTRY.pack(entry.timestamp, relative)
        before = entry
    return bytes(out)


def parse_time_index(data: bytes, base_offset: int, name: str = "time index") -> list[TimeEntry]:
    """The entries; a tail of zeros is not part of them. CorruptionError."""
    if len(data) % ENTRY_BYTES:
        raise CorruptionError(f"{name}: {len(data)} bytes are no whole number of entries")
    entries: list[TimeEntry] = []
    for place, (timestamp, relative) in enumerate(_ENTRY.iter_unpack(data)):
        if timestamp == 0 and relative == 0 and not any(data[place * ENTRY_BYTES :]):
            break
        entry = TimeEntry(timestamp, base_offset + relative)
        if relative < 0 or (
            entries and not (entries[-1].timestamp < timestamp and entries[-1].last_offset < entry.last_offset)
        ):
            raise CorruptionError(f"{name}: entry {place}, {(timestamp, relative)}, does not ascend")
        entries.append(entry)
    return entries
