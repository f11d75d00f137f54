"""Slow, plain twin of the KLIX format: the oracle for kbroker._fast.records.footer and kbroker.storage.formats.klix."""

from __future__ import annotations

import struct
from typing import NamedTuple

ENTRY = struct.Struct(">qIIiqi")
assert ENTRY.size == 32


class TwinEntry(NamedTuple):
    base_offset: int
    position: int
    length: int
    last_offset_delta: int
    max_timestamp: int
    record_count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta


def entries_of(batches: bytes) -> list[TwinEntry]:
    entries, position = [], 0
    while position < len(batches):
        header = struct.unpack_from(">qiibIhiqqqhii", batches, position)
        size = header[1] + 12
        entries.append(TwinEntry(header[0], position, size, header[6], header[8], header[12]))
        position += size
    return entries


def encode_footer(entries: list[TwinEntry]) -> bytes:
    return b"".join(ENTRY.pack(*entry) for entry in entries) + struct.pack(">I4s", len(entries), b"KLIX")


def is_valid(entries: list[TwinEntry], data_length: int) -> bool:
    position, last_offset = 0, -1
    for entry in entries:
        if entry.length < 61 or entry.position != position or entry.base_offset <= last_offset:
            return False
        if entry.last_offset_delta < 0 or not 0 <= entry.record_count <= entry.last_offset_delta + 1:
            return False
        position, last_offset = position + entry.length, entry.last_offset
        if position >= 2**32 or last_offset >= 2**63 - 1:
            return False
    return position == data_length


def find_offset(entries: list[TwinEntry], offset: int) -> int | None:
    return next((i for i, entry in enumerate(entries) if entry.last_offset >= offset), None)


def find_timestamp(entries: list[TwinEntry], timestamp: int, start: int = 0) -> int | None:
    return next((i for i in range(start, len(entries)) if entries[i].max_timestamp >= timestamp), None)
