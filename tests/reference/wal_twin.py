"""A slow reader and writer of the WAL's segment files in plain Python: the oracle for the compiled ones.

Written from docs/formats/wal.md alone; shares no code with kbroker.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

PAGE = 4096
ENTRY = struct.Struct("<IIqQq16siiqB3sI")  # 72 bytes
HEADER = struct.Struct("<8sII32sqqQqqII")
assert ENTRY.size == 72
assert HEADER.size == 96


def crc32c(data: bytes) -> int:
    """Bit by bit would be too slow: one table, made on first use."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()


@dataclass(frozen=True)
class Entry:
    """One batch as stored."""

    lsn: int  # of the entry header
    durable_lsn: int
    topic_id: bytes
    partition: int
    leader_epoch: int
    base_offset: int
    batch: bytes


def entry_end(lsn: int, length: int) -> int:
    """Start of the next entry."""
    end = -(-(lsn + 72 + length) // 8) * 8
    left = -end % PAGE
    return end + left if 0 < left < 72 else end


def encode_entry(entry: Entry, incarnation: int, ordinal: int = 0, kind: int = 1) -> bytes:
    """Header and body, padded to where the next entry starts."""
    fields = (
        0,
        len(entry.batch),
        entry.lsn,
        incarnation,
        entry.durable_lsn,
        entry.topic_id,
        entry.partition,
        entry.leader_epoch,
        entry.base_offset,
        kind,
        b"\0\0\0",
        ordinal,
    )
    header = bytearray(ENTRY.pack(*fields))
    header[:4] = struct.pack("<I", crc32c(bytes(header[4:])))
    return (bytes(header) + entry.batch).ljust(entry_end(entry.lsn, len(entry.batch)) - entry.lsn, b"\0")


def encode_header(cluster: bytes, first: int, capacity: int, incarnation: int, previous: int, segment: int) -> bytes:
    """The header page."""
    page = HEADER.pack(b"KBWALSEG", 1, PAGE, cluster, first, capacity, incarnation, previous, segment, 0, 0)
    return (page[:92] + struct.pack("<I", crc32c(page[:92]))).ljust(PAGE, b"\0")


def read_segment(path: Path, limit_lsn: int | None = None) -> tuple[dict[str, int], list[Entry], int]:
    """(header fields, entries, position where reading stopped)."""
    data = path.read_bytes()
    assert data[:8] == b"KBWALSEG"
    assert struct.unpack_from("<I", data, 92)[0] == crc32c(data[:92])
    _, version, _, _, first, capacity, incarnation, previous, _, _, _ = HEADER.unpack_from(data)
    assert version == 1
    header = {"first": first, "capacity": capacity, "incarnation": incarnation, "previous": previous}
    entries = []
    lsn = first
    limit = first + capacity if limit_lsn is None else limit_lsn
    while lsn < limit:
        at = PAGE + lsn - first
        if at + 72 > len(data):
            break
        crc, length, own, inc, durable, topic_id, partition, epoch, base, kind, _, _ = ENTRY.unpack_from(data, at)
        if own != lsn or inc != incarnation or kind not in (1, 2) or crc != crc32c(data[at + 4 : at + 72]):
            break
        if entry_end(lsn, length) > first + capacity:
            break
        if kind == 1:
            batch = data[at + 72 : at + 72 + length]
            if len(batch) < length or struct.unpack_from(">I", batch, 17)[0] != crc32c(batch[21:]):
                break
            if struct.unpack_from(">qii", batch) != (base, length - 12, epoch):
                break
            entries.append(Entry(lsn, durable, topic_id, partition, epoch, base, batch))
        lsn = entry_end(lsn, length)
    return header, entries, lsn


def read_index(path: Path) -> dict[tuple[bytes, int], list[tuple[int, int, int, int, int]]]:
    """An index file as {(topic id, partition): [(base offset, position, max timestamp, size, last offset delta)]}."""
    data = path.read_bytes()
    magic, version, groups, entries, _, _, _, content_crc, _, _, header_crc = struct.unpack_from("<8sIIqqqQIIII", data)
    assert (magic, version) == (b"KBWALIDX", 1)
    assert header_crc == crc32c(data[:60])
    assert content_crc == crc32c(data[64:])
    assert len(data) == 64 + 64 * groups + 32 * entries
    result = {}
    for i in range(groups):
        topic_id, partition, count, first, low, high, timestamp, size = struct.unpack_from(
            "<16siIqqqqq", data, 64 + 64 * i
        )
        at = 64 + 64 * groups + 32 * first
        rows = [struct.unpack_from("<qqqIi", data, at + 32 * n) for n in range(count)]
        assert (rows[0][0], rows[-1][0] + rows[-1][4]) == (low, high)
        assert (max(r[2] for r in rows), sum(r[3] for r in rows)) == (timestamp, size)
        result[topic_id, partition] = rows
    assert list(result) == sorted(result)
    return result
