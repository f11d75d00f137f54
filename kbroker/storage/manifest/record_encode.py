"""Encodes a manifest record in version 3."""

from __future__ import annotations

from itertools import chain
from typing import Any

from kbroker.lazy_numpy import np
from kbroker.storage.manifest.key_table import PREFIX_OTHER
from kbroker.storage.manifest.keys import FORM_OTHER, PackedETag, PackedKey, pack_etag, pack_object_key
from kbroker.storage.manifest.record import FileEntry, ManifestRecord, PartitionDelta
from kbroker.storage.manifest.record_columns import TABLES, join_columns

_UNCHANGED = -1


def encode_record(record: ManifestRecord) -> bytes:
    """The record's bytes, which `read_record` turns into an equal record."""
    topics: dict[bytes, int] = {}
    for topic_id, _ in record.partitions:
        topics.setdefault(topic_id, len(topics))
    deltas = record.partitions.values()
    producers = [entry for delta in deltas for entry in delta.producers]
    about, files = _files(record.files)
    tables = {
        "topics": [np.frombuffer(b"".join(topics), "V16")],
        "files": files,
        "parts": _columns("parts", [_part(topics[key[0]], key[1], delta) for key, delta in record.partitions.items()]),
        "added": _added(deltas),
        "removed": _columns("removed", [(offset,) for delta in deltas for offset in delta.removed]),
        "producers": _columns("producers", [(*entry[:5], len(entry[5])) for entry in producers]),
        "batches": _columns("batches", [batch for entry in producers for batch in entry[5]]),
        "open": _columns("open", [entry for delta in deltas for entry in delta.open_transactions or ()]),
        "aborted": _columns("aborted", [entry for delta in deltas for entry in delta.aborted]),
        "aborted_gone": _columns("aborted_gone", [(last,) for delta in deltas for last in delta.aborted_gone]),
        "epochs": _columns("epochs", [entry for delta in deltas for entry in delta.leader_epochs]),
    }
    return join_columns(record.time_ms, about | _rare(record), tables)


def _columns(table: str, rows: list[Any]) -> list[np.ndarray]:
    """Rows of integers as columns. OverflowError for one above int64."""
    width = len(TABLES[table])
    matrix = np.fromiter(chain.from_iterable(rows), np.int64, len(rows) * width)
    return list(matrix.reshape(-1, width).T)


def _part(topic: int, partition: int, delta: PartitionDelta) -> tuple[int, ...]:
    start, end, stable = delta.log_start_offset, delta.end_offset, delta.last_stable_offset
    clean, horizon, opened = delta.clean_offset, delta.horizon_ms, delta.open_transactions
    return (
        topic,
        partition,
        delta.number,
        delta.leader_epoch,
        delta.grace_ms,
        _UNCHANGED if start is None else start,
        _UNCHANGED if end is None else end,
        _UNCHANGED if stable is None else stable,
        _UNCHANGED if clean is None else clean,
        _UNCHANGED if horizon is None else horizon,
        len(delta.added),
        len(delta.removed),
        len(delta.producers),
        _UNCHANGED if opened is None else len(opened),
        len(delta.aborted),
        len(delta.aborted_gone),
        len(delta.leader_epochs),
    )


def _added(deltas: Any) -> list[np.ndarray]:
    rows = [row for delta in deltas for row in delta.added]
    matrix = np.fromiter(chain.from_iterable(rows), np.int64, len(rows) * 10).reshape(-1, 10)
    base, end, start, length, crc, epoch, timestamp, records, times, file = matrix.T
    span, late = times >> 32 & 0xFFFFFFFF, times & 0xFFFFFFFF
    return [base, end - base, start, length, crc, epoch, timestamp, records, span, late, file]


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
