"""A segment's `.txnindex` file: transactions that were aborted by a marker in it (docs/formats/kafka-log.md).

    Off  Size  Field
      0     2  version 0, int16
      2     8  producer id, int64
     10     8  first offset of the transaction, int64
     18     8  last offset: that of the marker, int64
     26     8  last stable offset after the abort, int64

Last offsets ascend. Big-endian. There is no file without aborted transactions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from kbroker.errors import CorruptionError

VERSION = 0
ENTRY_BYTES = 34
_ENTRY = struct.Struct(">hqqqq")

# (producer id, first offset, last offset, last stable offset when it ended)
AbortedTransaction = tuple[int, int, int, int]


def encode_txn_index(transactions: Iterable[AbortedTransaction]) -> bytes:
    """The file's bytes. ValueError for transactions out of order."""
    out = bytearray()
    before = -1
    for transaction in transactions:
        if not transaction[1] <= transaction[2] or transaction[2] <= before:
            raise ValueError(f"aborted transaction {transaction} after last offset {before}")
        before = transaction[2]
        out += _ENTRY.pack(VERSION, *transaction)
    return bytes(out)


def parse_txn_index(data: bytes, name: str = "transaction index") -> list[AbortedTransaction]:
    """The transactions. CorruptionError."""
    if len(data) % ENTRY_BYTES:
        raise CorruptionError(f"{name}: {len(data)} bytes are no whole number of entries")
    found: list[AbortedTransaction] = []
    for place, (version, producer_id, first, last, stable) in enumerate(_ENTRY.iter_unpack(data)):
        if version > VERSION:
            raise CorruptionError(f"{name}: entry {place} has version {version}; version {VERSION} is understood")
        if version < 0 or min(producer_id, first, stable) < 0 or last < first or (found and last <= found[-1][2]):
            raise CorruptionError(f"{name}: entry {place} cannot be: {(version, producer_id, first, last, stable)}")
        found.append((producer_id, first, last, stable))
    return found
