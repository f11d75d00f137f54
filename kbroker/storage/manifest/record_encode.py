"""Encodes a manifest record: version 3 as bytes, versions 1 and 2 as JSON."""

from __future__ import annotations

from typing import Any

from kbroker._fast.manifest.part_tables import PartTables
from kbroker.lazy_numpy import np
from kbroker.storage.manifest.key_table import PREFIX_OTHER
from kbroker.storage.manifest.keys import FORM_OTHER, PackedETag, PackedKey, pack_etag, pack_object_key
from kbroker.storage.manifest.leadership import NO_LEADER
from kbroker.storage.manifest.record import REFERENCE_V1, UINT32_MAX, FileEntry, ManifestRecord, PartitionDelta
from kbroker.storage.manifest.record_columns import PART_TABLES, ROW_WIDTHS, TABLES, join_columns
from kbroker.storage.manifest.record_leadership import has_leadership


def encode_record(record: ManifestRecord, tables: PartTables | None = None) -> bytes:
    """The record in version 3: bytes, which `read_record` turns into an equal record.

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


def without_times(record: ManifestRecord) -> ManifestRecord:
    """The record as version 1 can say it: not knowing how early the records of its objects are."""
    partitions = {
        place: delta._replace(added=tuple(row._replace(times=0) for row in delta.added))
        for place, delta in record.partitions.items()
    }
    return record._replace(partitions=partitions)


def encode_json(record: ManifestRecord, version: int) -> dict[str, Any]:
    """The record in version 1 or 2, which `parse_record` turns into an equal record, of version 1 without times.

    ValueError for leadership, which these versions cannot say.
    """
    senders = any(delta.number != NO_LEADER for delta in record.partitions.values())
    if senders or has_leadership(record):
        raise ValueError(f"a manifest record of version {version} cannot say which broker leads")
    partitions: dict[str, dict[str, Any]] = {}
    for (topic_id, partition), delta in record.partitions.items():
        partitions.setdefault(topic_id.hex(), {})[str(partition)] = _delta_json(delta, version)
    content = {
        "w": record.wal,
        "f": record.files,
        "p": partitions,
        "d": {topic_id.hex(): grace_ms for topic_id, grace_ms in record.dropped_topics},
        "q": record.queued,
        "x": record.deleted,
        "u": record.reserved,
    }
    return {"v": version, "t": record.time_ms, **{key: value for key, value in content.items() if value}}


def _delta_json(delta: PartitionDelta, version: int) -> dict[str, Any]:
    length = REFERENCE_V1 if version == 1 else None
    numbers = {
        "g": delta.grace_ms or None,
        "s": delta.log_start_offset,
        "e": delta.end_offset,
        "l": delta.last_stable_offset,
        "o": delta.open_transactions,  # unlike the lists below, an empty one says something
        "c": delta.clean_offset,
        "z": delta.horizon_ms,
    }
    lists = {
        "r": [row.reference()[:length] for row in delta.added],
        "m": delta.removed,
        "h": delta.leader_epochs,
        "a": delta.aborted,
        "k": delta.aborted_gone,
        "b": delta.producers,
    }
    found: dict[str, Any] = {key: value for key, value in numbers.items() if value is not None}
    return found | {key: value for key, value in lists.items() if value}
