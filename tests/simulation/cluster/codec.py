"""How records of the manifest are stored in a history: mostly as a number, for speed, else in the real format."""

from __future__ import annotations

from typing import Any

from kbroker._fast.manifest.part_tables import PartTables
from kbroker.storage.manifest import record_decode, record_encode
from kbroker.storage.manifest.part_deltas import deltas_of
from kbroker.storage.manifest.record import COLUMNS_VERSION, ManifestRecord, parse_record
from tests.simulation.cluster.violation import Violation

BEFORE = 2  # the newest version of records and checkpoints that the release before knows

_records: list[ManifestRecord] = []
_known: dict[bytes, ManifestRecord] = {}
_is_real = False


def begin(*, is_real: bool) -> None:
    """Begins a history."""
    global _is_real
    _records.clear()
    _known.clear()
    _is_real = is_real


def encode_record(record: ManifestRecord, tables: PartTables | None = None) -> Any:
    """The payload of a record."""
    if tables is not None:
        record = record._replace(partitions={(topic_id, n): delta for topic_id, n, delta in deltas_of(tables)})
    if not _is_real:
        _records.append(record)
        return {"record": len(_records) - 1}
    data = record_encode.encode_record(record, tables)
    if record_decode.read_record(data, "new manifest record") != record:
        raise Violation(f"{record} is encoded as another")
    return data


def version(payload: Any) -> int:
    """Of a record, as the log has it."""
    return int(payload.get("v", COLUMNS_VERSION)) if isinstance(payload, dict) else COLUMNS_VERSION


def read_record(payload: Any, name: str) -> ManifestRecord:
    """The record of a payload. Every copy of the log reads each: it is decoded once."""
    if not isinstance(payload, bytes):
        return _records[payload["record"]] if "record" in payload else parse_record(payload, name)
    record = _known.get(payload)
    if record is None:
        record = _known[payload] = record_decode.read_record(payload, name)
    return record
