"""Decodes a manifest record of version 3, with every value checked."""

from __future__ import annotations

from typing import Any

from kbroker.lazy_numpy import np
from kbroker.storage.manifest.checkpoints.leadership import parse_registration, parse_tail
from kbroker.storage.manifest.column_checks import check_file_columns, check_references, parse_prefixes, require
from kbroker.storage.manifest.key_table import PREFIX_OTHER
from kbroker.storage.manifest.keys import FORM_OTHER, PackedETag, PackedKey, unpack_etag, unpack_object_key
from kbroker.storage.manifest.leadership import NO_LEADER, Mode, ModeChange, Move, NewPartition
from kbroker.storage.manifest.part_deltas import deltas_of_rows
from kbroker.storage.manifest.partition_state import COLUMNS as ROW_COLUMNS
from kbroker.storage.manifest.partition_state import FILE, PRODUCER_BATCHES_MAX, TIMES
from kbroker.storage.manifest.record import (
    INT32_MAX,
    INT64_MAX,
    FileEntry,
    ManifestRecord,
    PartitionDelta,
    RecordParser,
    parse_record,
    parse_wal,
)
from kbroker.storage.manifest.record_columns import PART_TABLES, TABLES, RecordColumns, split_columns

# Columns that hold -1 for unchanged or not given, and those that hold what is always there. Unsigned ones hold no less
# than 0 anyway.
_LEAST = {
    "parts": {
        "partition": 0, "number": -1, "leader_epoch": -1, "grace_ms": 0, "log_start_offset": -1, "end_offset": -1,
        "last_stable_offset": -1, "clean_offset": -1, "horizon_ms": -1, "open": -1,
    },
    "removed": {"base_offset": 0},
    "producers": {
        "producer_id": 0, "epoch": -1, "coordinator_epoch": -1, "last_timestamp": -INT64_MAX, "first_offset": -1,
    },
    "batches": {"sequence": -1, "last_offset": 0, "delta": 0, "timestamp": -INT64_MAX},
    "open": {"producer_id": 0, "first_offset": 0},
    "aborted": {"producer_id": 0, "first": 0, "last": 0, "stable": 0},
    "aborted_gone": {"last": 0},
    "epochs": {"leader_epoch": 0, "start_offset": 0},
}  # fmt: skip

COUNTED_TABLES = ("added", "removed", "producers", "open", "aborted", "aborted_gone", "epochs")  # columns of `parts`


def read_record(payload: Any, name: str) -> ManifestRecord:
    """A record as the log has it: JSON of version 1 or 2, or bytes of version 3.

    Checks its form; check_record checks whether it fits. CorruptionError that names the record and the place.
    """
    if not isinstance(payload, bytes):
        return parse_record(payload, name)
    parser = RecordParser(name)
    columns = read_columns(payload, parser)
    return record_of(parser, columns, partitions_of(columns.topics, columns.rows))


def read_columns(payload: bytes, parser: RecordParser) -> RecordColumns:
    """The columns of a record of version 3, with every value of the tables checked."""
    columns = split_columns(payload, parser)
    column, rows, files = columns.column, columns.rows, columns.files
    for table, least in _LEAST.items():
        _check_least(parser, columns, table, least)
    for name in COUNTED_TABLES:
        counts = column("parts", name) if name != "open" else np.maximum(column("parts", name), 0)  # -1: unchanged
        _check_sum(parser, counts, len(rows[name]), name)
    batches = column("producers", "batches")
    _check_sum(parser, batches, len(rows["batches"]), "batches")
    require(parser, "producers", batches <= PRODUCER_BATCHES_MAX, "batches")
    require(parser, "aborted", column("aborted", "last") >= column("aborted", "first"), "last")
    require(parser, "parts", column("parts", "topic") < len(columns.topics), "topic")
    if len(set(columns.topics)) < len(columns.topics):
        raise parser.fail("topics: one is there twice")
    places = np.sort(column("parts", "topic") << 32 | column("parts", "partition"))
    if (places[1:] == places[:-1]).any():
        raise parser.fail("parts: a partition is there twice")
    check_file_columns(parser, "objects", files, parse_prefixes(parser, columns.about.get("k"), "k"))
    require(parser, "objects", files["prefix"] >= PREFIX_OTHER, "prefix")
    base, count, start, length, crc, epoch, timestamp, records, span, _, file = rows["added"].T
    require(parser, "references", file < len(files["size"]), "object")
    size = files["size"][file]
    check_references(
        parser, "references", base, count, start, length, crc, epoch, timestamp, records, span - 1, size
    )
    return columns


def _check_least(parser: RecordParser, columns: RecordColumns, table: str, least: dict[str, int]) -> None:
    bounds = np.array([least.get(name, -INT64_MAX - 1) for name, _ in TABLES[table]])
    low = columns.rows[table] < bounds
    if low.any():
        for place, (name, _) in enumerate(TABLES[table]):
            require(parser, table, ~low[:, place], name)


def _check_sum(parser: RecordParser, counts: np.ndarray, rows: int, name: str) -> None:
    if int(counts.sum(dtype=np.int64)) != rows:
        raise parser.fail(f"parts: {name} of all partitions are not the {rows} rows of the table")


def record_of(
    parser: RecordParser, columns: RecordColumns, partitions: dict[tuple[bytes, int], PartitionDelta]
) -> ManifestRecord:
    """The record, with these of its partitions. Checks the JSON."""
    about = columns.about
    return ManifestRecord(
        time_ms=columns.time_ms,
        wal=parse_wal(parser, about),
        files=_files(parser, columns),
        partitions=partitions,
        dropped_topics=tuple(
            (parser.topic_id(topic_hex, "d"), parser.integer(grace_ms, "d"))
            for topic_hex, grace_ms in _rows(parser, about, "d", 2)
        ),
        queued=parser.keys_due(about.get("q", []), "q"),
        deleted=tuple(parser.key(key, "x") for key in parser.array(about.get("x", []), "x")),
        reserved=parser.keys_due(about.get("u", []), "u"),
        registrations=tuple(parse_registration(parser, item, "i") for item in parser.array(about.get("i", []), "i")),
        fences=tuple(parser.integer(number, "c", 1) for number in parser.array(about.get("c", []), "c")),
        moves=tuple(_move(parser, item) for item in parser.array(about.get("l", []), "l")),
        modes=tuple(ModeChange(*_mode(parser, item, "m")) for item in _rows(parser, about, "m", 3)),
        new_partitions=tuple(NewPartition(*_mode(parser, item, "n")) for item in _rows(parser, about, "n", 3)),
    )


def _rows(parser: RecordParser, about: dict[str, Any], key: str, width: int) -> list[list[Any]]:
    return [parser.array(item, key, width) for item in parser.array(about.get(key, []), key)]


def _mode(parser: RecordParser, item: list[Any], what: str) -> tuple[bytes, int, Mode]:
    topic_hex, partition, mode = item
    return (
        parser.topic_id(topic_hex, what),
        parser.integer(partition, what, 0, INT32_MAX),
        Mode(parser.integer(mode, what, 0, max(Mode))),
    )


def _move(parser: RecordParser, item: Any) -> Move:
    topic_hex, partition, leader, leader_epoch, tail, clean, unclean = parser.array(item, "l", len(Move._fields))
    return Move(
        parser.topic_id(topic_hex, "l"),
        parser.integer(partition, "l", 0, INT32_MAX),
        parser.integer(leader, "l", NO_LEADER),
        parser.integer(leader_epoch, "l", 0, INT32_MAX),
        parse_tail(parser, tail, "l"),
        parser.boolean(clean, "l"),
        parser.boolean(unclean, "l"),
    )


def _files(parser: RecordParser, columns: RecordColumns) -> tuple[FileEntry, ...]:
    prefixes: list[str] = columns.about["k"]
    keys = parser.mapping(columns.about.get("o"), "o")
    etags = parser.mapping(columns.about.get("e"), "e")
    found: list[FileEntry] = []
    taken = 0
    rows = zip(*(column.tolist() for column in columns.files.values()), strict=True)
    for place, row in enumerate(rows):
        size, first, second, rewrite, etag_first, etag_second, crc32c, prefix, generation, form = row
        if prefix == PREFIX_OTHER:
            key = parser.key(keys.get(str(place)), "o")
            taken += 1
        else:
            key = unpack_object_key(prefixes[prefix], PackedKey(first, second, generation, rewrite))
        if form == FORM_OTHER:
            etag = parser.text(etags.get(str(place)), "e")
            taken += 1
        else:
            etag = unpack_etag(PackedETag(etag_first, etag_second, form))
        found.append(FileEntry(key, size, etag, crc32c))
    if taken != len(keys) + len(etags):
        raise parser.fail("o, e: keys or ETags of no object")
    return tuple(found)


def select_parts(rows: dict[str, np.ndarray], chosen: np.ndarray) -> dict[str, np.ndarray]:
    """The tables with the chosen partitions alone."""
    first = TABLES["parts"].index(("added", "<u4"))
    counts = np.maximum(rows["parts"][:, first:], 0)
    kept = {name: np.repeat(chosen, counts[:, n]) for n, name in enumerate(COUNTED_TABLES)}
    kept["parts"] = chosen
    kept["batches"] = np.repeat(kept["producers"], rows["producers"][:, -1])
    return {name: rows[name][kept[name]] for name in PART_TABLES}


def partitions_of(topics: list[bytes], rows: dict[str, np.ndarray]) -> dict[tuple[bytes, int], PartitionDelta]:
    """The deltas in these tables, which were checked."""
    listed = {name: table.tolist() for name, table in rows.items()}
    listed["added"] = reference_rows(rows["added"]).tolist()
    return {(topic_id, partition): delta for topic_id, partition, delta in deltas_of_rows(topics, listed)}


def reference_rows(added: np.ndarray) -> np.ndarray:
    """The references added as rows in RefRow's order."""
    found = added[:, :ROW_COLUMNS].copy()
    found[:, 1] += found[:, 0]
    found[:, TIMES] = added[:, TIMES] << 32 | added[:, TIMES + 1]
    found[:, FILE] = added[:, FILE + 1]
    return found
