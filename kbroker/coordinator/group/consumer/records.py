"""A consumer group's state to and from records, in Kafka's own schemas (protocol/consumer_group_records.py)."""

from __future__ import annotations

from kbroker.coordinator.group import record_tables
from kbroker.coordinator.group.consumer.state import (
    ClassicMetadata,
    ConsumerGroupRecord,
    CurrentAssignment,
    CurrentRecord,
    GroupEpochRecord,
    MemberMetadata,
    MemberRecord,
    MemberState,
    RegexRecord,
    ResolvedRegex,
    TargetEpochRecord,
    TargetRecord,
    TopicMetadataRecord,
)
from kbroker.coordinator.group.topic_partitions import Partitions, TopicInfo, from_structs, to_structs
from kbroker.protocol import consumer_group_records as schemas
from kbroker.protocol.fields import Message


def encode_consumer_group_record(record: ConsumerGroupRecord) -> tuple[bytes, bytes | None]:
    """Key and value of the record."""
    return record_tables.encode(_ENCODERS, record)


def _encode_group(record: GroupEpochRecord) -> tuple[Message, Message | None]:
    key = schemas.ConsumerGroupMetadataKey(group_id=record.group_id)
    return key, None if record.epoch is None else schemas.ConsumerGroupMetadataValue(epoch=record.epoch)


def _encode_topics(record: TopicMetadataRecord) -> tuple[Message, Message | None]:
    key = schemas.ConsumerGroupPartitionMetadataKey(group_id=record.group_id)
    if record.topics is None:
        return key, None
    topics = [
        schemas.TopicMetadata(topic_id=info.topic_id, topic_name=name, num_partitions=info.partition_count)
        for name, info in record.topics.items()
    ]
    return key, schemas.ConsumerGroupPartitionMetadataValue(topics=topics)


def _encode_member(record: MemberRecord) -> tuple[Message, Message | None]:
    key = schemas.ConsumerGroupMemberMetadataKey(group_id=record.group_id, member_id=record.member_id)
    metadata = record.metadata
    if metadata is None:
        return key, None
    return key, schemas.ConsumerGroupMemberMetadataValue(
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=sorted(metadata.topic_names),
        subscribed_topic_regex=metadata.topic_regex,
        rebalance_timeout_ms=metadata.rebalance_timeout_ms,
        server_assignor=metadata.server_assignor,
        classic_member_metadata=None if metadata.classic is None else _encode_classic(metadata.classic),
    )


def _encode_classic(classic: ClassicMetadata) -> schemas.ClassicMemberMetadata:
    return schemas.ClassicMemberMetadata(
        session_timeout_ms=classic.session_timeout_ms,
        supported_protocols=[
            schemas.ClassicProtocol(name=name, metadata=metadata) for name, metadata in classic.protocols
        ],
    )


def _encode_target_epoch(record: TargetEpochRecord) -> tuple[Message, Message | None]:
    key = schemas.ConsumerGroupTargetAssignmentMetadataKey(group_id=record.group_id)
    if record.epoch is None:
        return key, None
    return key, schemas.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=record.epoch)


def _encode_target(record: TargetRecord) -> tuple[Message, Message | None]:
    key = schemas.ConsumerGroupTargetAssignmentMemberKey(group_id=record.group_id, member_id=record.member_id)
    if record.partitions is None:
        return key, None
    topic_partitions = to_structs(schemas.TopicPartitions, record.partitions)
    return key, schemas.ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topic_partitions)


def _encode_current(record: CurrentRecord) -> tuple[Message, Message | None]:
    key = schemas.ConsumerGroupCurrentMemberAssignmentKey(group_id=record.group_id, member_id=record.member_id)
    current = record.current
    if current is None:
        return key, None
    return key, schemas.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=current.member_epoch,
        previous_member_epoch=current.previous_member_epoch,
        state=current.state,
        assigned_partitions=_encode_owned(current.assigned, current),
        partitions_pending_revocation=_encode_owned(current.pending_revocation, current),
    )


def _encode_owned(partitions: Partitions, current: CurrentAssignment) -> list[schemas.OwnedPartitions]:
    owned = to_structs(schemas.OwnedPartitions, partitions)
    for entry in owned:
        since = current.since.get(entry.topic_id, {})
        entry.assignment_epochs = [since.get(index, current.member_epoch) for index in entry.partitions]
    return owned


def _encode_regex(record: RegexRecord) -> tuple[Message, Message | None]:
    key = schemas.ConsumerGroupRegularExpressionKey(group_id=record.group_id, regular_expression=record.regex)
    if record.resolved is None:
        return key, None
    return key, schemas.ConsumerGroupRegularExpressionValue(
        topics=sorted(record.resolved.topics), timestamp=record.resolved.timestamp_ms
    )


_ENCODERS: record_tables.Encoders = {
    GroupEpochRecord: _encode_group,
    TopicMetadataRecord: _encode_topics,
    MemberRecord: _encode_member,
    TargetEpochRecord: _encode_target_epoch,
    TargetRecord: _encode_target,
    CurrentRecord: _encode_current,
    RegexRecord: _encode_regex,
}


def decode_consumer_group_record(key: bytes, value: bytes | None) -> ConsumerGroupRecord | None:
    """The record; None if the key has another version. Raises ProtocolError."""
    decoded: ConsumerGroupRecord | None = record_tables.decode(_DECODERS, key, value)
    return decoded


def _decode_group(
    key: schemas.ConsumerGroupMetadataKey, value: schemas.ConsumerGroupMetadataValue | None
) -> GroupEpochRecord:
    return GroupEpochRecord(key.group_id, None if value is None else value.epoch)


def _decode_topics(
    key: schemas.ConsumerGroupPartitionMetadataKey, value: schemas.ConsumerGroupPartitionMetadataValue | None
) -> TopicMetadataRecord:
    if value is None:
        return TopicMetadataRecord(key.group_id, None)
    topics = {topic.topic_name: TopicInfo(topic.topic_id, topic.num_partitions) for topic in value.topics}
    return TopicMetadataRecord(key.group_id, topics)


def _decode_member(
    key: schemas.ConsumerGroupMemberMetadataKey, value: schemas.ConsumerGroupMemberMetadataValue | None
) -> MemberRecord:
    if value is None:
        return MemberRecord(key.group_id, key.member_id, None)
    classic = value.classic_member_metadata
    metadata = MemberMetadata(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topic_names=frozenset(value.subscribed_topic_names),
        topic_regex=value.subscribed_topic_regex or None,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        server_assignor=value.server_assignor,
        classic=None if classic is None else _decode_classic(classic),
    )
    return MemberRecord(key.group_id, key.member_id, metadata)


def _decode_classic(classic: schemas.ClassicMemberMetadata) -> ClassicMetadata:
    protocols = tuple((protocol.name, bytes(protocol.metadata)) for protocol in classic.supported_protocols)
    return ClassicMetadata(classic.session_timeout_ms, protocols)


def _decode_target_epoch(
    key: schemas.ConsumerGroupTargetAssignmentMetadataKey,
    value: schemas.ConsumerGroupTargetAssignmentMetadataValue | None,
) -> TargetEpochRecord:
    return TargetEpochRecord(key.group_id, None if value is None else value.assignment_epoch)


def _decode_target(
    key: schemas.ConsumerGroupTargetAssignmentMemberKey,
    value: schemas.ConsumerGroupTargetAssignmentMemberValue | None,
) -> TargetRecord:
    return TargetRecord(key.group_id, key.member_id, None if value is None else from_structs(value.topic_partitions))


def _decode_current(
    key: schemas.ConsumerGroupCurrentMemberAssignmentKey,
    value: schemas.ConsumerGroupCurrentMemberAssignmentValue | None,
) -> CurrentRecord:
    if value is None:
        return CurrentRecord(key.group_id, key.member_id, None)
    known = value.state in (MemberState.STABLE, MemberState.UNREVOKED_PARTITIONS, MemberState.UNRELEASED_PARTITIONS)
    current = CurrentAssignment(
        member_epoch=value.member_epoch,
        previous_member_epoch=value.previous_member_epoch,
        state=MemberState(value.state) if known else MemberState.UNKNOWN,
        assigned=from_structs(value.assigned_partitions),
        pending_revocation=from_structs(value.partitions_pending_revocation),
        since=_decode_since(value),
    )
    return CurrentRecord(key.group_id, key.member_id, current)


def _decode_since(value: schemas.ConsumerGroupCurrentMemberAssignmentValue) -> dict[bytes, dict[int, int]]:
    since: dict[bytes, dict[int, int]] = {}
    for owned in (*value.assigned_partitions, *value.partitions_pending_revocation):
        epochs = owned.assignment_epochs
        if epochs is None or len(epochs) != len(owned.partitions):
            epochs = [value.member_epoch] * len(owned.partitions)  # not known before KIP-1251
        if epochs:
            since.setdefault(owned.topic_id, {}).update(zip(owned.partitions, epochs, strict=True))
    return since


def _decode_regex(
    key: schemas.ConsumerGroupRegularExpressionKey, value: schemas.ConsumerGroupRegularExpressionValue | None
) -> RegexRecord:
    resolved = None if value is None else ResolvedRegex(frozenset(value.topics), value.timestamp)
    return RegexRecord(key.group_id, key.regular_expression, resolved)


_DECODERS: record_tables.Decoders = {
    3: (schemas.ConsumerGroupMetadataKey, schemas.ConsumerGroupMetadataValue, _decode_group),
    4: (schemas.ConsumerGroupPartitionMetadataKey, schemas.ConsumerGroupPartitionMetadataValue, _decode_topics),
    5: (schemas.ConsumerGroupMemberMetadataKey, schemas.ConsumerGroupMemberMetadataValue, _decode_member),
    6: (
        schemas.ConsumerGroupTargetAssignmentMetadataKey,
        schemas.ConsumerGroupTargetAssignmentMetadataValue,
        _decode_target_epoch,
    ),
    7: (
        schemas.ConsumerGroupTargetAssignmentMemberKey,
        schemas.ConsumerGroupTargetAssignmentMemberValue,
        _decode_target,
    ),
    8: (
        schemas.ConsumerGroupCurrentMemberAssignmentKey,
        schemas.ConsumerGroupCurrentMemberAssignmentValue,
        _decode_current,
    ),
    16: (schemas.ConsumerGroupRegularExpressionKey, schemas.ConsumerGroupRegularExpressionValue, _decode_regex),
}
