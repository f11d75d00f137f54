"""Manifest records of version 3, byte by byte (docs/formats/manifest.md). All integers are little-endian.

    offset size field
    0      2    version, 3
    2      2    reserved, 0
    4      4    length of the JSON
    8      8    when the record was made, ms
    16     4    rows of table 0: topics
    20     4    rows of table 1: objects that the record names for the first time
    24     4    rows of table 2: partitions that it changes
    28     4    rows of table 3: references added
    32     4    rows of table 4: references replaced
    36     4    rows of table 5: producers
    40     4    rows of table 6: their batches
    44     4    rows of table 7: open transactions
    48     4    rows of table 8: aborted transactions
    52     4    rows of table 9: aborted transactions without remaining batches
    56     4    rows of table 10: leader epochs begun
    60     4    reserved, 0
    64     n    the JSON (UTF-8), then the tables, each column by column

Nothing may follow. The frame around it (ledger.numbered_log_format) has the CRC.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from kbroker._fast.manifest.unpack import unpack_rows
from kbroker.lazy_numpy import np
from kbroker.storage.manifest.record import COLUMNS_VERSION, RecordParser

HEADER = struct.Struct("<HHIq12I")
TOPIC_BYTES = 16
# Columns by table, in order. Of `parts`, -1 says that a value is unchanged or not given; the last seven say how many
# rows of the tables below are the partition's.
TABLES: dict[str, tuple[tuple[str, str], ...]] = {
    "topics": (("topic_id", "V16"),),
    "files": (
        ("size", "<i8"),
        ("first", "<i8"),
        ("second", "<i8"),
        ("rewrite", "<u8"),
        ("etag_first", "<u8"),
        ("etag_second", "<u8"),
        ("crc32c", "<u4"),
        ("prefix", "<i4"),
        ("generation", "<i4"),
        ("etag_form", "<i4"),
    ),
    "parts": (
        ("topic", "<u4"),
        ("partition", "<i4"),
        ("number", "<i8"),
        ("leader_epoch", "<i4"),
        ("grace_ms", "<i8"),
        ("log_start_offset", "<i8"),
        ("end_offset", "<i8"),
        ("last_stable_offset", "<i8"),
        ("clean_offset", "<i8"),
        ("horizon_ms", "<i8"),
        ("added", "<u4"),
        ("removed", "<u4"),
        ("producers", "<u4"),
        ("open", "<i4"),
        ("aborted", "<u4"),
        ("aborted_gone", "<u4"),
        ("epochs", "<u4"),
    ),
    "added": (
        ("base_offset", "<i8"),
        ("count", "<i8"),
        ("start", "<i8"),
        ("length", "<i8"),
        ("crc32c", "<u4"),
        ("leader_epoch", "<i4"),
        ("max_timestamp", "<i8"),
        ("record_count", "<i8"),
        ("span", "<u4"),
        ("late", "<u4"),
        ("file", "<u4"),
    ),
    "removed": (("base_offset", "<i8"),),
    "producers": (
        ("producer_id", "<i8"),
        ("epoch", "<i2"),
        ("coordinator_epoch", "<i4"),
        ("last_timestamp", "<i8"),
        ("first_offset", "<i8"),
        ("batches", "u1"),
    ),
    "batches": (("sequence", "<i4"), ("last_offset", "<i8"), ("delta", "<i4"), ("timestamp", "<i8")),
    "open": (("producer_id", "<i8"), ("first_offset", "<i8")),
    "aborted": (("producer_id", "<i8"), ("first", "<i8"), ("last", "<i8"), ("stable", "<i8")),
    "aborted_gone": (("last", "<i8"),),
    "epochs": (("leader_epoch", "<i8"), ("start_offset", "<i8")),
}
PART_TABLES = tuple(TABLES)[2:]
# Values of a row where a table is rows of int64: a reference is then a RefRow.
ROW_WIDTHS = {table: len(TABLES[table]) - (table == "added") for table in PART_TABLES}
Table = dict[str, "np.ndarray"]  # a string: numpy is loaded at its first use


class RecordColumns(NamedTuple):
    """A record's header, JSON and tables; what they hold is not checked yet. `rows`: the other tables as rows of int64,
    with the columns of TABLES."""

    time_ms: int
    about: dict[str, Any]
    topics: list[bytes]
    files: Table
    rows: dict[str, np.ndarray]

    def column(self, table: str, name: str) -> np.ndarray:
        """A column of `rows`."""
        return self.rows[table][:, _places()[table][name]]


@cache
def _types() -> dict[str, list[tuple[str, np.dtype[Any]]]]:
    return {table: [(name, np.dtype(code)) for name, code in columns] for table, columns in TABLES.items()}


@cache
def _places() -> dict[str, dict[str, int]]:
    return {table: {name: n for n, (name, _) in enumerate(columns)} for table, columns in TABLES.items()}


@cache
def _codes(table: str) -> str:
    """The types of a table's columns, as of struct."""
    return "".join({"<i8": "q", "<i4": "i", "<u4": "I", "<i2": "h", "u1": "B"}[code] for _, code in TABLES[table])


def version_of(payload: object) -> Any:
    """The version that a record, or a checkpoint, says it has; None for what says none."""
    if isinstance(payload, bytes):
        return int.from_bytes(payload[:2], "little") if len(payload) > 1 else None
    return payload.get("v") if isinstance(payload, dict) else None


def join_columns(time_ms: int, about: Mapping[str, Any], tables: Mapping[str, Sequence[np.ndarray]]) -> bytes:
    """The bytes of a record. Each table's columns are in the order of TABLES, of any integer type; the same arguments
    give the same bytes. ValueError for a value that its column cannot hold."""
    text = json.dumps(about, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")).encode()
    rows = [len(tables[table][0]) for table in TABLES]
    pieces = [HEADER.pack(COLUMNS_VERSION, 0, len(text), time_ms, *rows, 0), text]
    for table, columns in _types().items():
        for column, (name, dtype) in zip(tables[table], columns, strict=True):
            stored = column.astype(dtype, copy=False)
            if dtype.itemsize < column.dtype.itemsize and (stored != column).any():
                raise ValueError(f"a value of column {name} of table {table} does not fit into {dtype}")
            pieces.append(stored.tobytes())
    return b"".join(pieces)


def split_columns(data: bytes, parser: RecordParser) -> RecordColumns:
    """The opposite. CorruptionError for another length than the header says; the columns are copies."""
    if len(data) < HEADER.size:
        raise parser.fail(f"{len(data)} bytes, a header alone has {HEADER.size}")
    version, reserved, json_bytes, time_ms, *rows, also_reserved = HEADER.unpack_from(data)
    parser.check_known(version)
    if version != COLUMNS_VERSION or reserved or also_reserved:
        raise parser.fail(f"bad header (version {version}, reserved {reserved} and {also_reserved})")
    sizes = [
        count * sum(dtype.itemsize for _, dtype in columns)
        for count, columns in zip(rows, _types().values(), strict=True)
    ]
    if HEADER.size + json_bytes + sum(sizes) != len(data):
        raise parser.fail(f"{len(data)} bytes are not the JSON and tables of {rows} rows that the header says")
    position = HEADER.size + json_bytes
    try:
        about = json.loads(data[HEADER.size : position].decode())
    except (ValueError, RecursionError) as error:
        raise parser.fail(f"JSON at {HEADER.size}: {error}") from error
    topics_rows, files_rows, *part_rows = rows
    topics = [data[at : at + TOPIC_BYTES] for at in range(position, position + topics_rows * TOPIC_BYTES, TOPIC_BYTES)]
    position += topics_rows * TOPIC_BYTES
    files: Table = {}
    for name, dtype in _types()["files"]:
        files[name] = np.frombuffer(data, dtype, files_rows, position).astype(dtype.newbyteorder("="))  # aligned
        position += files_rows * dtype.itemsize
    tables: dict[str, np.ndarray] = {}
    for table, count in zip(PART_TABLES, part_rows, strict=True):
        tables[table] = np.empty((count, len(TABLES[table])), np.int64)
        position = unpack_rows(data, position, _codes(table), tables[table])
    return RecordColumns(parser.integer(time_ms, "time"), parser.mapping(about, "JSON"), topics, files, tables)
