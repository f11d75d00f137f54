"""Durable state to and from the records of `__consumer_offsets`, in Kafka's own schemas.

    key                                    value
    v1  OffsetCommitKey                    OffsetCommitValue: see offsets/records.py
    v2  GroupMetadataKey                   GroupMetadataValue v3
    v3-8, v16: see consumer/records.py
    v10-15: see share/records.py

A null value removes. Every version that Kafka ever wrote is read.
"""

from __future__ import annotations

from kbroker.coordinator.group.consumer.records import decode_consumer_group_record, encode_consumer_group_record
from kbroker.coordinator.group.offsets.records import decode_offset_record, encode_offset_record, is_offset_key
from kbroker.coordinator.group.share.records import decode_share_group_record, encode_share_group_record
from kbroker.coordinator.group.share.state import SHARE_GROUP_RECORDS
from kbroker.coordinator.group.state import (
    GroupRecord,
    OffsetRecord,
    Record,
    StoredGroup,
    StoredMember,
)
from kbroker.coordinator.runtime.shard import UnknownRecordError
from kbroker.errors import ProtocolError
from kbroker.protocol import records
from kbroker.protocol.records import GroupMetadataKey, GroupMetadataValue, MemberMetadata


def encode_record(record: Record) -> tuple[bytes, bytes | None]:
    """Key and value of the record."""
    if isinstance(record, OffsetRecord):
        return encode_offset_record(record)
    if isinstance(record, SHARE_GROUP_RECORDS):
        return encode_share_group_record(record)
    if not isinstance(record, GroupRecord):
        return encode_consumer_group_record(record)
    group_key = records.encode_record(GroupMetadataKey(group=record.group_id))
    return group_key, None if record.value is None else _encode_group(record.value)


def decode_record(key: bytes, value: bytes | None) -> Record:
    """The record; raises UnknownRecordError."""
    try:
        if is_offset_key(key):
            return decode_offset_record(key, value)
        decoded = records.decode_group_key(key)
        if isinstance(decoded, GroupMetadataKey):
            return GroupRecord(decoded.group, None if value is None else _decode_group(value))
        other = decode_consumer_group_record(key, value) or decode_share_group_record(key, value)
        if other is not None:
            return other
        raise UnknownRecordError(f"type {records.record_version(key)}")
    except ProtocolError as error:
        raise UnknownRecordError(str(error)) from error


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
