"""Records of version 3 of the manifest, read and written value by value with struct: the oracle of the columns.

Nothing is checked here. docs/formats/manifest.md has the tables.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from kbroker.storage.manifest.keys import (
    PackedETag,
    PackedKey,
    pack_etag,
    pack_object_key,
    unpack_etag,
    unpack_object_key,
)
from kbroker.storage.manifest.leadership import Mode, ModeChange, Move, NewPartition, Registration
from kbroker.storage.manifest.partition_state import RefRow, pack_times
from kbroker.storage.manifest.record import FileEntry, ManifestRecord, PartitionDelta

HEADER = "<HHIq12I"
TOPIC, FILE, PART, ADDED = "16s", "qqqQQQIiii", "IiqiqqqqqqIIIiIII", "qqqqIiqqIII"
REMOVED, PRODUCER, BATCH, OPEN, ABORTED, GONE, EPOCH = "q", "qhiqqB", "iqiq", "qq", "qqqq", "q", "qq"
TABLES = (TOPIC, FILE, PART, ADDED, REMOVED, PRODUCER, BATCH, OPEN, ABORTED, GONE, EPOCH)


def table_bytes(codes: str, rows: list[tuple]) -> bytes:
    """Rows, column by column."""
    forms = ["<16s"] if codes == TOPIC else [f"<{code}" for code in codes]
    return b"".join(struct.pack(form, row[place]) for place, form in enumerate(forms) for row in rows)


def encode(record: ManifestRecord) -> bytes:
    """The record's bytes."""
    topics = list(dict.fromkeys(topic_id for topic_id, _ in record.partitions))
    deltas = list(record.partitions.values())
    producers = [entry for delta in deltas for entry in delta.producers]
    prefixes: list[str] = []
    keys, etags, files = {}, {}, []
    for place, (key, size, etag, crc32c) in enumerate(record.files):
        prefix, packed = pack_object_key(key) or (None, PackedKey(0, 0, 0, 0))
        if prefix is None:
            keys[str(place)] = key
        elif prefix not in prefixes:
            prefixes.append(prefix)
        form = pack_etag(etag)
        if form is None:
            etags[str(place)] = etag
            form = PackedETag(0, 0, 0)
        number = -1 if prefix is None else prefixes.index(prefix)
        files.append((size, packed[0], packed[1], packed[3], form[0], form[1], crc32c, number, packed[2], form[2]))

    def given(value: int | None) -> int:
        return -1 if value is None else value

    parts = [
        (
            topics.index(topic_id), partition, delta.number, delta.leader_epoch, delta.grace_ms,
            given(delta.log_start_offset), given(delta.end_offset), given(delta.last_stable_offset),
            given(delta.clean_offset), given(delta.horizon_ms), len(delta.added), len(delta.removed),
            len(delta.producers), -1 if delta.open_transactions is None else len(delta.open_transactions),
            len(delta.aborted), len(delta.aborted_gone), len(delta.leader_epochs),
        )
        for (topic_id, partition), delta in record.partitions.items()
    ]  # fmt: skip
    added = [
        (
            row.base_offset, row.end_offset - row.base_offset, row.start, row.length, row.crc32c, row.leader_epoch,
            row.max_timestamp, row.record_count, row.span_ms + 1, row.late_ms + 1, row.file,
        )
        for delta in deltas
        for row in delta.added
    ]  # fmt: skip
    rows = [
        [(topic_id,) for topic_id in topics],
        files,
        parts,
        added,
        [(base,) for delta in deltas for base in delta.removed],
        [(*entry[:5], len(entry[5])) for entry in producers],
        [batch for entry in producers for batch in entry[5]],
        [entry for delta in deltas for entry in delta.open_transactions or ()],
        [entry for delta in deltas for entry in delta.aborted],
        [(last,) for delta in deltas for last in delta.aborted_gone],
        [entry for delta in deltas for entry in delta.leader_epochs],
    ]
    about: dict[str, Any] = {"k": prefixes, "o": keys, "e": etags}
    about["d"] = [[topic_id.hex(), grace_ms] for topic_id, grace_ms in record.dropped_topics]
    about["n"] = [[topic_id.hex(), partition, mode] for topic_id, partition, mode in record.new_partitions]
    about["m"] = [[topic_id.hex(), partition, mode] for topic_id, partition, mode in record.modes]
    about["l"] = [[move.topic_id.hex(), *move[1:]] for move in record.moves]
    about |= {"w": record.wal, "q": record.queued, "x": record.deleted, "u": record.reserved}
    about |= {"i": record.registrations, "c": record.fences}
    about = {name: value for name, value in about.items() if value or name in "koe"}
    text = json.dumps(about, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
    header = struct.pack(HEADER, 3, 0, len(text), record.time_ms, *map(len, rows), 0)
    return header + text + b"".join(table_bytes(codes, table) for codes, table in zip(TABLES, rows, strict=True))


def decode(data: bytes) -> ManifestRecord:
    """The record of bytes that are right."""
    _, _, json_bytes, time_ms, *counts, _ = struct.unpack_from(HEADER, data)
    position = struct.calcsize(HEADER)
    about = json.loads(data[position : position + json_bytes])
    position += json_bytes
    tables: list[list[tuple]] = []
    for codes, count in zip(TABLES, counts, strict=True):
        columns = []
        for code in ["16s"] if codes == TOPIC else codes:
            size = struct.calcsize(f"<{code}")
            columns.append([struct.unpack_from(f"<{code}", data, position + size * n)[0] for n in range(count)])
            position += size * count
        tables.append(list(zip(*columns, strict=True)))
    assert position == len(data)
    topics, files, parts, *rest = tables
    added, removed, producers, batches, opened, aborted, gone, epochs = map(iter, rest)

    def take(rows: Any, count: int) -> tuple:
        return tuple(next(rows) for _ in range(count))

    def optional(value: int) -> int | None:
        return value if value >= 0 else None

    partitions = {}
    for topic, partition, number, epoch, grace, start, end, stable, clean, horizon, *of in parts:
        references = [
            RefRow(base, base + count, at, size, crc, leader, newest, records, pack_times(span - 1, late - 1), file)
            for base, count, at, size, crc, leader, newest, records, span, late, file in take(added, of[0])
        ]
        partitions[topics[topic][0], partition] = PartitionDelta(
            grace, optional(start), optional(end), optional(stable),
            take(opened, of[3]) if of[3] >= 0 else None,
            take(epochs, of[6]), take(aborted, of[4]),
            tuple((*entry[:5], take(batches, entry[5])) for entry in take(producers, of[2])),
            tuple(base for base, in take(removed, of[1])),
            tuple(references), optional(clean), tuple(last for last, in take(gone, of[5])), optional(horizon),
            number, epoch,
        )  # fmt: skip
    entries = []
    for place, (size, first, second, rewrite, one, two, crc, prefix, generation, form) in enumerate(files):
        packed = PackedKey(first, second, generation, rewrite)
        key = about["o"][str(place)] if prefix < 0 else unpack_object_key(about["k"][prefix], packed)
        etag = about["e"][str(place)] if form == 0 else unpack_etag(PackedETag(one, two, form))
        entries.append(FileEntry(key, size, etag, crc))

    def mode_rows(name: str, kind: Any) -> tuple:
        return tuple(kind(bytes.fromhex(topic), at, Mode(mode)) for topic, at, mode in about.get(name, []))

    return ManifestRecord(
        time_ms,
        tuple(about["w"]) if "w" in about else None,
        tuple(entries),
        partitions,
        tuple((bytes.fromhex(topic), grace) for topic, grace in about.get("d", [])),
        tuple(map(tuple, about.get("q", []))),
        tuple(about.get("x", [])),
        tuple(map(tuple, about.get("u", []))),
        tuple(Registration(*item) for item in about.get("i", [])),
        tuple(about.get("c", [])),
        tuple(
            Move(bytes.fromhex(topic), at, leader, epoch, tuple(tail) if tail else None, clean, unclean)
            for topic, at, leader, epoch, tail, clean, unclean in about.get("l", [])
        ),
        mode_rows("m", ModeChange),
        mode_rows("n", NewPartition),
    )
