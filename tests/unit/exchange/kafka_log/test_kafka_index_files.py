"""Golden bytes and refusals of `.index`, `.timeindex`, `.txnindex` and `.snapshot`."""

from __future__ import annotations

import struct

import pytest

from kbroker._fast.base.crc32c import crc32c
from kbroker.errors import CorruptionError
from kbroker.exchange.kafka_log.offset_index import OffsetEntry, encode_offset_index, parse_offset_index
from kbroker.exchange.kafka_log.producer_snapshot import (
    SnapshotProducer,
    encode_producer_snapshot,
    parse_producer_snapshot,
)
from kbroker.exchange.kafka_log.time_index import TimeEntry, encode_time_index, parse_time_index
from kbroker.exchange.kafka_log.txn_index import encode_txn_index, parse_txn_index


def test_offset_index() -> None:
    entries = [OffsetEntry(1005, 4200), OffsetEntry(1010, 9000)]
    data = encode_offset_index(entries, 1000)
    assert data.hex() == "00000005000010680000000a00002328"
    assert parse_offset_index(data, 1000) == entries
    assert parse_offset_index(data + bytes(64), 1000) == entries
    assert parse_offset_index(bytes(64), 1000) == []
    for bad in (data[:-1], data[8:] + data[:8], data + data[8:], bytes(8) + data[:8] + bytes(8) + data[8:]):
        with pytest.raises(CorruptionError):
            parse_offset_index(bad, 1000)
    for entries in ([OffsetEntry(999, 5)], [OffsetEntry(1000 + (1 << 31), 5)], [OffsetEntry(1001, 1 << 31)]):
        with pytest.raises(ValueError, match="offset index entry"):
            encode_offset_index(entries, 1000)


def test_time_index() -> None:
    entries = [TimeEntry(1_700_000_000_000, 1005), TimeEntry(1_700_000_000_001, 1010)]
    data = encode_time_index(entries, 1000)
    assert data.hex() == "0000018bcfe56800000000050000018bcfe568010000000a"
    assert parse_time_index(data, 1000) == entries
    assert parse_time_index(data + bytes(24), 1000) == entries
    for bad in (data[:-1], data[12:] + data[:12], struct.pack(">qi", 5, -1)):
        with pytest.raises(CorruptionError):
            parse_time_index(bad, 1000)
    with pytest.raises(ValueError, match="time index entry"):
        encode_time_index(entries[::-1], 1000)


def test_transaction_index() -> None:
    aborted = [(1000, 5, 9, 10), (1001, 7, 12, 11)]
    data = encode_txn_index(aborted)
    assert data[:34].hex() == "000000000000000003e80000000000000005" + "0000000000000009" + "000000000000000a"
    assert parse_txn_index(data) == aborted
    newer = b"\0\1" + data[2:]
    with pytest.raises(CorruptionError, match="version 1; version 0 is understood"):
        parse_txn_index(newer)
    for bad in (data[:-1], data[34:] + data[:34], encode_txn_index(aborted[:1]) * 2):
        with pytest.raises(CorruptionError):
            parse_txn_index(bad)
    with pytest.raises(ValueError, match="after last offset"):
        encode_txn_index(aborted[::-1])


def test_producer_snapshot() -> None:
    assert encode_producer_snapshot([]).hex() == "000148674bc700000000"
    producers = [
        SnapshotProducer(1000, 2, 7, 41, 7, 1_700_000_000_000, -1, 34),
        SnapshotProducer(1001, 0, -1, -1, 0, 1_700_000_000_001, 5, -1),
    ]
    data = encode_producer_snapshot(producers)
    assert len(data) == 10 + 2 * 46
    assert parse_producer_snapshot(data) == producers


def reseal(data: bytes) -> bytes:
    return data[:2] + struct.pack(">I", crc32c(data[6:])) + data[6:]


def test_producer_snapshots_that_cannot_be() -> None:
    good = encode_producer_snapshot([SnapshotProducer(1000, 2, 7, 41, 7, 5, -1, 34)])
    double = good[:6] + struct.pack(">i", 2) + good[10:] * 2
    cases = {
        "no snapshot": good[:9],
        "version 2; version 1 is understood": b"\0\2" + good[2:],
        "the CRC does not match": good[:-1] + b"\0",
        "1 producers in": reseal(good + b"\0"),
        "-1 producers in": reseal(good[:6] + struct.pack(">i", -1)),
        "cannot be": reseal(good[:10] + struct.pack(">q", -1) + good[18:]),
        "a producer is in it twice": reseal(double),
    }
    for problem, data in cases.items():
        with pytest.raises(CorruptionError, match=problem):
            parse_producer_snapshot(data)
