"""A classic group's state to and from the value of its record, in Kafka's own schema."""

from __future__ import annotations

from kbroker.coordinator.group.classic.state import StoredGroup, StoredMember
from kbroker.protocol import records
from kbroker.protocol.records import GroupMetadataValue, MemberMetadata


def encode_group(group: StoredGroup) -> bytes:
    """The value of the group's record."""
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


def decode_group(value: bytes) -> StoredGroup:
    """The group as the value says; raises ProtocolError."""
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
