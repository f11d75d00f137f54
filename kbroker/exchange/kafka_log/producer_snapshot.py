"""A partition's `<offset>.snapshot` file: its producers below that offset (docs/formats/kafka-log.md).

    Off  Size  Field
      0     2  version 1, int16
      2     4  CRC-32C of everything after it, uint32
      6     4  number of producers, int32
     10     .  producers, 46 bytes each

    Off  Size  Field of a producer
      0     8  producer id, int64
      8     2  epoch, int16
     10     4  last sequence, int32; -1: no batch
     14     8  last offset, int64; -1: no batch
     22     4  last offset - first offset of the newest batch, int32
     26     8  timestamp of the newest batch or marker, ms, int64
     34     4  coordinator epoch of the newest marker, int32; -1: none
     38     8  first offset of the open transaction, int64; -1: none

Big-endian. Of each producer only the newest batch is kept.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from kbroker._fast.base.crc32c import crc32c
from kbroker.errors import CorruptionError

VERSION = 1
_HEADER = struct.Struct(">hIi")
_PRODUCER = struct.Struct(">qhiqiqiq")
CRC_FROM = 6
assert (_HEADER.size, _PRODUCER.size) == (10, 46)


class SnapshotProducer(NamedTuple):
    """One producer of a snapshot."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    txn_first_offset: int


def encode_producer_snapshot(producers: Iterable[SnapshotProducer]) -> bytes:
    """The file's bytes. struct.error for values out of range."""
    rows = [_PRODUCER.pack(*producer) for producer in producers]
    body = len(rows).to_bytes(4, "big") + b"".join(rows)
    return struct.pack(">hI", VERSION, crc32c(body)) + body


def parse_producer_snapshot(data: bytes, name: str = "producer snapshot") -> list[SnapshotProducer]:
    """The producers. CorruptionError."""
    if len(data) < _HEADER.size:
        raise CorruptionError(f"{name}: {len(data)} bytes are no snapshot")
    version, crc, count = _HEADER.unpack_from(data)
    if version != VERSION:
        raise CorruptionError(f"{name}: version {version}; version {VERSION} is understood")
    if crc32c(data[CRC_FROM:]) != crc:
        raise CorruptionError(f"{name}: the CRC does not match")
    if count < 0 or len(data) != _HEADER.size + count * _PRODUCER.size:
        raise CorruptionError(f"{name}: {count} producers in {len(data)} bytes")
    found = [SnapshotProducer(*row) for row in _PRODUCER.iter_unpack(data[_HEADER.size :])]
    for producer in found:
        if producer.producer_id < 0 or producer.epoch < -1 or producer.offset_delta < 0:
            raise CorruptionError(f"{name}: producer {producer} cannot be")
        if min(producer.last_sequence, producer.last_offset, producer.txn_first_offset) < -1:
            raise CorruptionError(f"{name}: producer {producer} cannot be")
    if len({producer.producer_id for producer in found}) != len(found):
        raise CorruptionError(f"{name}: a producer is in it twice")
    return found
