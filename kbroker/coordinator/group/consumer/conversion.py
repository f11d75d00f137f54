"""Groups change their protocol while they run (KIP-848): classic to consumer and back.

Members of the classic protocol keep their ids, their generation (it becomes their epoch) and their partitions. They
only notice a rebalance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from kbroker.coordinator.group.classic import rebalance
from kbroker.coordinator.group.classic.generation import ClassicGeneration
from kbroker.coordinator.group.classic.member import ClassicGroupMember
from kbroker.coordinator.group.classic.state import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicGroupState,
    GroupRecord,
    StoredGroup,
    StoredMember,
)
from kbroker.coordinator.group.consumer.embedded_protocol import read_assignment, read_subscription, write_assignment
from kbroker.coordinator.group.consumer.epochs import ConsumerEpochs
from kbroker.coordinator.group.consumer.state import (
    ClassicMetadata,
    ConsumerGroupRecord,
    ConsumerMember,
    CurrentAssignment,
    CurrentRecord,
    GroupEpochRecord,
    MemberMetadata,
    MemberRecord,
    TargetEpochRecord,
    TargetRecord,
    since_epochs,
)
from kbroker.coordinator.group.records import Record
from kbroker.coordinator.group.table import GroupTable
from kbroker.coordinator.runtime.result import Result
from kbroker.errors import ErrorCode, KafkaError, ProtocolError

# -- classic to consumer -----------------------------------------------------------------------------------------


def upgrade(shard: GroupTable, classic: ClassicGeneration) -> tuple[ConsumerEpochs, list[Record]]:
    """The consumer group that a classic one turns into, and the records of the conversion.

    Parked requests are answered, so that their members rejoin. Raises GROUP_ID_NOT_FOUND if the group cannot be
    converted.
    """
    config = shard.config
    empty = classic.state is ClassicGroupState.EMPTY
    if not empty and not (
        config.upgrade_enabled
        and classic.protocol_type == CONSUMER_PROTOCOL_TYPE
        and len(classic.members) <= config.consumer_group_size_max
    ):
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {classic.group_id} is not a consumer group.")
    try:
        converted = [] if empty else _consumer_records(shard, classic)
    except ProtocolError:
        raise KafkaError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade the classic group {classic.group_id} to consumer group because the embedded consumer "
            "protocol is malformed.",
        ) from None
    for member in classic.members.values():
        refused = rebalance.join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
        rebalance.answer_join(classic, member, refused)
        rebalance.fail_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
    group = ConsumerEpochs(classic.group_id, classic.offsets)
    for record in converted:
        group.apply(record)
    return group, [*classic.tombstones(), *converted]


def _consumer_records(shard: GroupTable, classic: ClassicGeneration) -> list[ConsumerGroupRecord]:
    group_id, generation = classic.group_id, classic.generation
    # The assignments that members last received: during a rebalance memory may no longer have them.
    stored = {member.member_id: member.assignment for member in classic.stored.members} if classic.stored else {}
    records: list[ConsumerGroupRecord] = [GroupEpochRecord(group_id, generation)]
    for member in classic.members.values():
        if member.is_new:
            continue  # it does not know its id yet, and rejoins without it
        assigned = read_assignment(stored.get(member.member_id, member.assignment), shard.environment.topics)
        since = since_epochs({}, generation, assigned)
        current = CurrentAssignment(generation, generation, assigned=assigned, since=since)
        records += [
            MemberRecord(group_id, member.member_id, _metadata(shard, classic, member)),
            TargetRecord(group_id, member.member_id, assigned),
            CurrentRecord(group_id, member.member_id, current),
        ]
    return [*records, TargetEpochRecord(group_id, generation)]


def _metadata(shard: GroupTable, classic: ClassicGeneration, member: ClassicGroupMember) -> MemberMetadata:
    chosen = member.metadata(classic.protocol or "") or member.protocols[0][1]
    subscription = read_subscription(chosen, shard.environment.topics)
    return MemberMetadata(
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topic_names=subscription.topic_names,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMetadata(member.session_timeout_ms, tuple(member.protocols)),
    )


# -- consumer to classic -----------------------------------------------------------------------------------------


def may_downgrade(shard: GroupTable, group: ConsumerEpochs, *, without: Collection[str]) -> bool:
    """True if only members of the classic protocol remain without these, and the group may become a classic one."""
    left = len(group.members) - len(without)
    return (
        left > 0
        and group.only_classic_without(without)
        and shard.config.downgrade_enabled
        and left <= shard.config.group_size_max
    )


def may_downgrade_for(shard: GroupTable, group: ConsumerEpochs, *, replaced: str) -> bool:
    """The same for a static member, the last one of the consumer protocol, that returns with the classic protocol."""
    return (
        group.only_classic_without([replaced])
        and shard.config.downgrade_enabled
        and len(group.members) <= shard.config.group_size_max
    )


def downgrade(
    shard: GroupTable,
    group: ConsumerEpochs,
    *,
    without: Collection[str],
    joining: ConsumerMember | None = None,
    response: Any = None,
) -> Result:
    """Turns the group into a classic one of its members except `without`, plus `joining`; then they rebalance."""
    members = [member for member_id, member in group.members.items() if member_id not in without]
    if joining is not None:
        members.append(joining)
    group_id = group.group_id
    stored = _stored_group(shard, group, members)

    def converted(error: ErrorCode) -> Result | None:
        classic = shard.find(ClassicGeneration, group_id)
        if error or classic is None:
            return None
        for member in classic.members.values():
            rebalance.restart_session(shard, classic, member)
        if classic.state is not ClassicGroupState.STABLE:
            return None
        return rebalance.prepare(shard, classic, "its last member of the consumer protocol is gone")

    records: list[Record] = [*group.tombstones(), GroupRecord(group_id, stored)]
    return Result(records=records, response=response, on_complete=converted)


def _stored_group(shard: GroupTable, group: ConsumerEpochs, members: list[ConsumerMember]) -> StoredGroup:
    protocol = _common_protocol(members)
    return StoredGroup(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        generation=group.group_epoch,
        protocol=protocol,
        leader=None,  # a rebalance is due, also after a restart
        state_timestamp_ms=shard.now_ms(),
        members=tuple(_stored_member(group, member, protocol) for member in members),
    )


def _stored_member(group: ConsumerEpochs, member: ConsumerMember, protocol: str) -> StoredMember:
    metadata, classic = member.metadata, member.metadata.classic
    assert classic is not None
    subscription = dict(classic.protocols)[protocol]
    return StoredMember(
        member_id=member.member_id,
        group_instance_id=metadata.instance_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        rebalance_timeout_ms=metadata.rebalance_timeout_ms,
        session_timeout_ms=classic.session_timeout_ms,
        subscription=subscription,
        assignment=write_assignment(member.current.assigned, group.topics or {}, subscription),
    )


def _common_protocol(members: list[ConsumerMember]) -> str:
    """A protocol that all support, by their votes; a member joins only if there is one."""
    offered = [dict(member.metadata.classic.protocols) for member in members if member.metadata.classic is not None]
    common = set.intersection(*(set(protocols) for protocols in offered))
    votes = Counter(next(name for name in protocols if name in common) for protocols in offered)
    return votes.most_common(1)[0][0]
