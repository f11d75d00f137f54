"""A share group's state to and from records, in Kafka's own schemas (protocol/share_group_records.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.coordinator.group import record_tables
from kbroker.coordinator.group.share.state import (
    ShareAssignment,
    ShareCurrentRecord,
    ShareEpoch,
    ShareEpochRecord,
    ShareGroupRecord,
    ShareMemberRecord,
    ShareMetadata,
    ShareTargetEpochRecord,
    ShareTargetRecord,
    StatePartitions,
    StatePartitionsRecord,
    StateTopic,
)
from kbroker.coordinator.group.topic_partitions import from_structs, to_structs
from kbroker.protocol import share_group_records as schemas
from kbroker.protocol.consumer_group_records import TopicPartitions
from kbroker.protocol.fields import Message

_STATE_STABLE = 0  # of a member: there is nothing to give up and nothing to wait for


def encode_share_group_record(record: ShareGroupRecord) -> tuple[bytes, bytes | None]:
    """Key and value of the record."""
    return record_tables.encode(_ENCODERS, record)


def _encode_member(record: ShareMemberRecord) -> tuple[Message, Message | None]:
    key = schemas.ShareGroupMemberMetadataKey(group_id=record.group_id, member_id=record.member_id)
    metadata = record.metadata
    if metadata is None:
        return key, None
    return key, schemas.ShareGroupMemberMetadataValue(
        rack_id=metadata.rack_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=sorted(metadata.topic_names),
    )


def _encode_epoch(record: ShareEpochRecord) -> tuple[Message, Message | None]:
    key = schemas.ShareGroupMetadataKey(group_id=record.group_id)
    if record.epoch is None:
        return key, None
    epoch, metadata_hash = record.epoch
    return key, schemas.ShareGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)


def _encode_target_epoch(record: ShareTargetEpochRecord) -> tuple[Message, Message | None]:
    key = schemas.ShareGroupTargetAssignmentMetadataKey(group_id=record.group_id)
    if record.epoch is None:
        return key, None
    return key, schemas.ShareGroupTargetAssignmentMetadataValue(assignment_epoch=record.epoch)


def _encode_target(record: ShareTargetRecord) -> tuple[Message, Message | None]:
    key = schemas.ShareGroupTargetAssignmentMemberKey(group_id=record.group_id, member_id=record.member_id)
    if record.partitions is None:
        return key, None
    topic_partitions = to_structs(TopicPartitions, record.partitions)
    return key, schemas.ShareGroupTargetAssignmentMemberValue(topic_partitions=topic_partitions)


def _encode_current(record: ShareCurrentRecord) -> tuple[Message, Message | None]:
    key = schemas.ShareGroupCurrentMemberAssignmentKey(group_id=record.group_id, member_id=record.member_id)
    current = record.current
    if current is None:
        return key, None
    return key, schemas.ShareGroupCurrentMemberAssignmentValue(
        member_epoch=current.member_epoch,
        previous_member_epoch=current.previous_member_epoch,
        state=_STATE_STABLE,
        assigned_partitions=to_structs(TopicPartitions, current.assigned),
    )


def _encode_partitions(record: StatePartitionsRecord) -> tuple[Message, Message | None]:
    key = schemas.ShareGroupStatePartitionMetadataKey(group_id=record.group_id)
    state = record.partitions
    if state is None:
        return key, None
    return key, schemas.ShareGroupStatePartitionMetadataValue(
        initializing_topics=_encode_topics(state.initializing),
        initialized_topics=_encode_topics(state.initialized),
        deleting_topics=[
            schemas.TopicInfo(topic_id=topic_id, topic_name=name) for topic_id, name in state.deleting.items()
        ],
    )


def _encode_topics(topics: Mapping[bytes, StateTopic]) -> list[schemas.TopicPartitionsInfo]:
    return [
        schemas.TopicPartitionsInfo(topic_id=topic_id, topic_name=topic.name, partitions=sorted(topic.partitions))
        for topic_id, topic in topics.items()
    ]


_ENCODERS: record_tables.Encoders = {
    ShareMemberRecord: _encode_member,
    ShareEpochRecord: _encode_epoch,
    ShareTargetEpochRecord: _encode_target_epoch,
    ShareTargetRecord: _encode_target,
    ShareCurrentRecord: _encode_current,
    StatePartitionsRecord: _encode_partitions,
}


def decode_share_group_record(key: bytes, value: bytes | None) -> ShareGroupRecord | None:
    """The record; None if the key has another version. Raises ProtocolError."""
    decoded: ShareGroupRecord | None = record_tables.decode(_DECODERS, key, value)
    return decoded


def _decode_member(
    key: schemas.ShareGroupMemberMetadataKey, value: schemas.ShareGroupMemberMetadataValue | None
) -> ShareMemberRecord:
    if value is None:
        return ShareMemberRecord(key.group_id, key.member_id, None)
    metadata = ShareMetadata(
        value.rack_id, value.client_id, value.client_host, frozenset(value.subscribed_topic_names)
    )
    return ShareMemberRecord(key.group_id, key.member_id, metadata)


def _decode_epoch(
    key: schemas.ShareGroupMetadataKey, value: schemas.ShareGroupMetadataValue | None
) -> ShareEpochRecord:
    return ShareEpochRecord(key.group_id, None if value is None else ShareEpoch(value.epoch, value.metadata_hash))


def _decode_target_epoch(
    key: schemas.ShareGroupTargetAssignmentMetadataKey,
    value: schemas.ShareGroupTargetAssignmentMetadataValue | None,
) -> ShareTargetEpochRecord:
    return ShareTargetEpochRecord(key.group_id, None if value is None else value.assignment_epoch)


def _decode_target(
    key: schemas.ShareGroupTargetAssignmentMemberKey, value: schemas.ShareGroupTargetAssignmentMemberValue | None
) -> ShareTargetRecord:
    partitions = None if value is None else from_structs(value.topic_partitions)
    return ShareTargetRecord(key.group_id, key.member_id, partitions)


def _decode_current(
    key: schemas.ShareGroupCurrentMemberAssignmentKey, value: schemas.ShareGroupCurrentMemberAssignmentValue | None
) -> ShareCurrentRecord:
    if value is None:
        return ShareCurrentRecord(key.group_id, key.member_id, None)
    assigned = from_structs(value.assigned_partitions)
    current = ShareAssignment(value.member_epoch, value.previous_member_epoch, assigned)
    return ShareCurrentRecord(key.group_id, key.member_id, current)


def _decode_partitions(
    key: schemas.ShareGroupStatePartitionMetadataKey, value: schemas.ShareGroupStatePartitionMetadataValue | None
) -> StatePartitionsRecord:
    if value is None:
        return StatePartitionsRecord(key.group_id, None)
    state = StatePartitions(
        initializing=_decode_topics(value.initializing_topics),
        initialized=_decode_topics(value.initialized_topics),
        deleting={topic.topic_id: topic.topic_name for topic in value.deleting_topics},
    )
    return StatePartitionsRecord(key.group_id, state)


def _decode_topics(structs: Iterable[schemas.TopicPartitionsInfo]) -> dict[bytes, StateTopic]:
    return {
        struct.topic_id: StateTopic(struct.topic_name, frozenset(struct.partitions))
        for struct in structs
        if struct.partitions
    }


_DECODERS: record_tables.Decoders = {
    10: (schemas.ShareGroupMemberMetadataKey, schemas.ShareGroupMemberMetadataValue, _decode_member),
    11: (schemas.ShareGroupMetadataKey, schemas.ShareGroupMetadataValue, _decode_epoch),
    12: (
        schemas.ShareGroupTargetAssignmentMetadataKey,
        schemas.ShareGroupTargetAssignmentMetadataValue,
        _decode_target_epoch,
    ),
    13: (
        schemas.ShareGroupTargetAssignmentMemberKey,
        schemas.ShareGroupTargetAssignmentMemberValue,
        _decode_target,
    ),
    14: (
        schemas.ShareGroupCurrentMemberAssignmentKey,
        schemas.ShareGroupCurrentMemberAssignmentValue,
        _decode_current,
    ),
    15: (
        schemas.ShareGroupStatePartitionMetadataKey,
        schemas.ShareGroupStatePartitionMetadataValue,
        _decode_partitions,
    ),
}
