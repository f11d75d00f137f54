"""Encodes a manifest record in version 3."""

from __future__ import annotations

from typing import Any

from kbroker._fast.manifest.part_tables import PartTables
from kbroker.lazy_numpy import np
from kbroker.storage.manifest.key_table import PREFIX_OTHER
from kbroker.storage.manifest.keys import FORM_OTHER, PackedETag, PackedKey, pack_etag, pack_object_key
from kbroker.storage.manifest.record import UINT32_MAX, FileEntry, ManifestRecord
from kbroker.storage.manifest.record_columns import PART_TABLES, ROW_WIDTHS, TABLES, join_columns


def encode_record(record: ManifestRecord, tables: PartTables | None = None) -> bytes:
    """The record's bytes, which `read_record` turns into an equal record.

    `tables`: what it says of partitions, where `record.partitions` does not.
    """
    if tables is None:
        tables = PartTables()
        for (topic_id, partition), delta in record.partitions.items():
            tables.add(topic_id, partition, delta, delta.number, delta.leader_epoch)
    about, files = _files(record.files)
    columns = {"topics": [np.frombuffer(b"".join(tables.topics), "V16")], "files": files}
    for table, values in zip(PART_TABLES, tables.tables, strict=True):
        columns[table] = list(np.frombuffer(values, np.int64).reshape(-1, ROW_WIDTHS[table]).T)
    base, end, start, length, crc, epoch, timestamp, records, times, file = columns["added"]
    span, late = times >> 32 & UINT32_MAX, times & UINT32_MAX
    columns["added"] = [base, end - base, start, length, crc, epoch, timestamp, records, span, late, file]
    return join_columns(record.time_ms, about | _rare(record), columns)


def _files(files: tuple[FileEntry, ...]) -> tuple[dict[str, Any], list[np.ndarray]]:
    prefixes: dict[str, int] = {}
    keys: dict[str, str] = {}
    etags: dict[str, str] = {}
    rows: list[tuple[int, ...]] = []
    for place, (key, size, etag, crc32c) in enumerate(files):
        packed = pack_object_key(key)
        if packed is None:
            keys[str(place)] = key
            prefix, numbers = PREFIX_OTHER, PackedKey(0, 0, 0, 0)
        else:
            prefix, numbers = prefixes.setdefault(packed[0], len(prefixes)), packed[1]
        form = pack_etag(etag)
        if form is None:
            etags[str(place)] = etag
            form = PackedETag(0, 0, FORM_OTHER)
        first, second, generation, rewrite = numbers
        rows.append((size, first, second, rewrite, *form[:2], crc32c, prefix, generation, form.form))
    columns = zip(*rows, strict=True) if rows else [()] * len(TABLES["files"])
    arrays = [np.array(column, dtype) for column, (_, dtype) in zip(columns, TABLES["files"], strict=True)]
    return {"k": list(prefixes), "o": keys, "e": etags}, arrays


def _rare(record: ManifestRecord) -> dict[str, Any]:
    """What few records have, as JSON; keys without content are left out."""
    content = {
        "w": record.wal,
        "d": [[topic_id.hex(), grace_ms] for topic_id, grace_ms in record.dropped_topics],
        "q": record.queued,
        "x": record.deleted,
        "u": record.reserved,
        "i": record.registrations,
        "c": record.fences,
        "n": [[topic_id.hex(), partition, int(mode)] for topic_id, partition, mode in record.new_partitions],
        "m": [[topic_id.hex(), partition, int(mode)] for topic_id, partition, mode in record.modes],
        "l": [[move.topic_id.hex(), *move[1:]] for move in record.moves],
    }
    return {key: value for key, value in content.items() if value}
