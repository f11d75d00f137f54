"""Share states to and from the records of `__share_group_state` (protocol/share_state_records.py).

An update holds everything that has changed since its snapshot, not only the last write: so the newest snapshot and the
newest update of a partition are its whole state, and the topic can be compacted. Kafka's readers
merge them to the same state.
"""

from __future__ import annotations

from typing import NamedTuple

from kbroker.coordinator.runtime.shard import UnknownRecordError
from kbroker.coordinator.share_state.store import ShareKey, StateBatch
from kbroker.errors import ProtocolError
from kbroker.protocol import records
from kbroker.protocol import share_state_records as schemas

_VALUE_VERSION = 0  # of both
_SNAPSHOT, _UPDATE = 0, 1  # versions of keys


class SnapshotRecord(NamedTuple):
    """The whole state."""

    key: ShareKey
    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    create_ms: int
    write_ms: int
    batches: tuple[StateBatch, ...]


class UpdateRecord(NamedTuple):
    """What has changed since the snapshot of this epoch."""

    key: ShareKey
    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


class SnapshotRemoved(NamedTuple):
    """The state is deleted."""

    key: ShareKey


class UpdateRemoved(NamedTuple):
    """The state is deleted, and its updates with it."""

    key: ShareKey


ShareRecord = SnapshotRecord | UpdateRecord | SnapshotRemoved | UpdateRemoved


def encode_record(record: ShareRecord) -> tuple[bytes, bytes | None]:
    """Key and value of the record."""
    if isinstance(record, SnapshotRecord | SnapshotRemoved):
        key = records.encode_record(schemas.ShareSnapshotKey(**record.key._asdict()), _SNAPSHOT)
    else:
        key = records.encode_record(schemas.ShareUpdateKey(**record.key._asdict()), _UPDATE)
    if isinstance(record, SnapshotRecord):
        return key, records.encode_record(_snapshot_value(record), _VALUE_VERSION)
    if isinstance(record, UpdateRecord):
        return key, records.encode_record(_update_value(record), _VALUE_VERSION)
    return key, None


def _snapshot_value(record: SnapshotRecord) -> schemas.ShareSnapshotValue:
    return schemas.ShareSnapshotValue(
        snapshot_epoch=record.snapshot_epoch,
        state_epoch=record.state_epoch,
        leader_epoch=record.leader_epoch,
        start_offset=record.start_offset,
        delivery_complete_count=record.delivery_complete_count,
        create_timestamp=record.create_ms,
        write_timestamp=record.write_ms,
        state_batches=_to_structs(record.batches),
    )


def _update_value(record: UpdateRecord) -> schemas.ShareUpdateValue:
    return schemas.ShareUpdateValue(
        snapshot_epoch=record.snapshot_epoch,
        leader_epoch=record.leader_epoch,
        start_offset=record.start_offset,
        delivery_complete_count=record.delivery_complete_count,
        state_batches=_to_structs(record.batches),
    )


def decode_record(key: bytes, value: bytes | None) -> ShareRecord:
    """The record; raises UnknownRecordError."""
    try:
        kind = records.record_version(key)
        if kind == _SNAPSHOT:
            return _decode_snapshot(key, value)
        if kind == _UPDATE:
            return _decode_update(key, value)
    except ProtocolError as error:
        raise UnknownRecordError(str(error)) from error
    raise UnknownRecordError(f"record type {kind}")


def _decode_snapshot(key: bytes, value: bytes | None) -> ShareRecord:
    named = records.decode_record(schemas.ShareSnapshotKey, key)
    share_key = ShareKey(named.group_id, named.topic_id, named.partition)
    if value is None:
        return SnapshotRemoved(share_key)
    message = records.decode_record(schemas.ShareSnapshotValue, value)
    return SnapshotRecord(
        share_key,
        message.snapshot_epoch,
        message.state_epoch,
        message.leader_epoch,
        message.start_offset,
        message.delivery_complete_count,
        message.create_timestamp,
        message.write_timestamp,
        _from_structs(message.state_batches),
    )


def _decode_update(key: bytes, value: bytes | None) -> ShareRecord:
    named = records.decode_record(schemas.ShareUpdateKey, key)
    share_key = ShareKey(named.group_id, named.topic_id, named.partition)
    if value is None:
        return UpdateRemoved(share_key)
    message = records.decode_record(schemas.ShareUpdateValue, value)
    return UpdateRecord(
        share_key,
        message.snapshot_epoch,
        message.leader_epoch,
        message.start_offset,
        message.delivery_complete_count,
        _from_structs(message.state_batches),
    )


def _to_structs(batches: tuple[StateBatch, ...]) -> list[schemas.StateBatch]:
    return [schemas.StateBatch(**batch._asdict()) for batch in batches]


def _from_structs(structs: list[schemas.StateBatch]) -> tuple[StateBatch, ...]:
    batches = tuple(
        StateBatch(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
        for batch in structs
    )
    if any(batch.first_offset > batch.last_offset for batch in batches):
        raise UnknownRecordError("a state batch that ends before it begins")
    return batches
