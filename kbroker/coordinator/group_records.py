"""Durable state to and from the records of `__consumer_offsets`, in Kafka's own schemas.

    key                                    value
    v1  OffsetCommitKey                    OffsetCommitValue v3; v1 where the client gave a retention time
    v2  GroupMetadataKey                   GroupMetadataValue v3

A null value removes. Every version that Kafka ever wrote is read.
"""

from __future__ import annotations

from kbroker.coordinator.group_state import (
    GroupRecord,
    OffsetAndMetadata,
    OffsetRecord,
    Record,
    StoredGroup,
    StoredMember,
)
from kbroker.coordinator.shard import UnknownRecordError
from kbroker.errors import ProtocolError
from kbroker.protocol import records
from kbroker.protocol.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)

_VALUE_VERSION_WITH_EXPIRY = 1


def encode_record(record: Record) -> tuple[bytes, bytes | None]:
    """Key and value of the record."""
    if isinstance(record, OffsetRecord):
        key = OffsetCommitKey(group=record.group_id, topic=record.topic, partition=record.partition)
        return records.encode_record(key), None if record.value is None else _encode_offset(record.value)
    group_key = records.encode_record(GroupMetadataKey(group=record.group_id))
    return group_key, None if record.value is None else _encode_group(record.value)


def decode_record(key: bytes, value: bytes | None) -> Record:
    """The record; raises UnknownRecordError."""
    try:
        decoded = records.decode_group_key(key)
        if isinstance(decoded, OffsetCommitKey):
            offset = None if value is None else _decode_offset(value)
            return OffsetRecord(decoded.group, decoded.topic, decoded.partition, offset)
        if isinstance(decoded, GroupMetadataKey):
            return GroupRecord(decoded.group, None if value is None else _decode_group(value))
        raise UnknownRecordError(f"type {records.record_version(key)}")
    except ProtocolError as error:
        raise UnknownRecordError(str(error)) from error


def _encode_offset(value: OffsetAndMetadata) -> bytes:
    message = OffsetCommitValue(
        offset=value.offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        commit_timestamp=value.commit_timestamp_ms,
        expire_timestamp=value.expire_timestamp_ms,
    )
    # Requests that give a retention time (v2-4) carry no leader epoch, so the older layout loses nothing.
    return records.encode_record(message, _VALUE_VERSION_WITH_EXPIRY if value.expire_timestamp_ms >= 0 else None)


def _decode_offset(value: bytes) -> OffsetAndMetadata:
    message = records.decode_record(OffsetCommitValue, value)
    return OffsetAndMetadata(
        message.offset,
        message.leader_epoch,
        message.metadata,
        message.commit_timestamp,
        message.expire_timestamp,
    )


def _encode_group(group: StoredGroup) -> bytes:
    return records.encode_record(
        GroupMetadataValue(
            protocol_type=group.protocol_type,
            generation=group.generation,
            protocol=group.protocol,
            leader=group.leader,
            current_state_timestamp=group.state_timestamp_ms,
            members=[
                MemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.subscription,
                    assignment=member.assignment,
                )
                for member in group.members
            ],
        )
    )


def _decode_group(value: bytes) -> StoredGroup:
    message = records.decode_record(GroupMetadataValue, value)
    return StoredGroup(
        protocol_type=message.protocol_type,
        generation=message.generation,
        protocol=message.protocol,
        leader=message.leader,
        state_timestamp_ms=message.current_state_timestamp,
        members=tuple(_decode_member(member) for member in message.members),
    )


def _decode_member(member: MemberMetadata) -> StoredMember:
    timeout_ms = member.rebalance_timeout
    return StoredMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=timeout_ms if timeout_ms >= 0 else member.session_timeout,  # not in version 0
        session_timeout_ms=member.session_timeout,
        subscription=bytes(member.subscription),
        assignment=bytes(member.assignment),
    )
