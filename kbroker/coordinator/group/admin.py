"""ListGroups, DescribeGroups and DeleteGroups on one shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from concurrent.futures import Future

from kbroker.coordinator.group.classic.group import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicGroup,
    ClassicGroupMember,
    ClassicGroupState,
)
from kbroker.coordinator.group.consumer.group import ConsumerGroup, ConsumerGroupState
from kbroker.coordinator.group.shard import Group, GroupShard
from kbroker.coordinator.group.share.group import ShareGroup, ShareGroupState
from kbroker.coordinator.group.share.offsets import delete_group
from kbroker.coordinator.group.state import GroupRecord, OffsetRecord, Record
from kbroker.coordinator.runtime.result import Result
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.apis.k15_describe_groups import DescribedGroup, DescribedGroupMember
from kbroker.protocol.apis.k16_list_groups import ListedGroup

EMPTY_STATES = (ClassicGroupState.EMPTY, ConsumerGroupState.EMPTY, ShareGroupState.EMPTY)
GROUP_TYPES: dict[type[Group], str] = {ClassicGroup: "classic", ConsumerGroup: "consumer", ShareGroup: "share"}


def list_groups(shard: GroupShard, states: frozenset[str], types: frozenset[str]) -> Result:
    """The shard's groups; empty filters pass all. Filters are in lower case."""
    listed = []
    for group in shard.groups.values():
        group_type = GROUP_TYPES[type(group)]
        if types and group_type not in types:
            continue
        state = group.state.value
        if not states or state.lower() in states:
            listed.append(
                ListedGroup(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type or "",
                    group_state=state,
                    group_type=group_type,
                )
            )
    return Result(response=listed)


def groups_by_state(shard: GroupShard) -> Counter[Hashable]:
    """Groups by (type, state), as ListGroups names them."""
    return Counter((GROUP_TYPES[type(group)], group.state.value) for group in shard.groups.values())


def describe(shard: GroupShard, group_id: str) -> Result:
    """One classic group; see `not_described` for the others."""
    group = shard.groups.get(group_id)
    if group is None:
        return Result(response=not_described(group_id, ErrorCode.GROUP_ID_NOT_FOUND))
    if not isinstance(group, ClassicGroup):
        not_classic = not_described(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
        not_classic.error_message = f"Group {group_id} is not a classic group."
        return Result(response=not_classic)
    stable = group.state is ClassicGroupState.STABLE
    return Result(
        response=DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=(group.protocol or "") if stable else "",
            members=[_described_member(group, member, stable) for member in group.members.values()],
        )
    )


def not_described(group_id: str, error: ErrorCode) -> DescribedGroup:
    """The answer for a group that cannot be described."""
    if error is not ErrorCode.GROUP_ID_NOT_FOUND:
        return DescribedGroup(group_id=group_id, error_code=error)
    return DescribedGroup(
        group_id=group_id,
        error_code=error,
        error_message=f"Group {group_id} not found.",
        group_state=ClassicGroupState.DEAD.value,
    )


def _described_member(group: ClassicGroup, member: ClassicGroupMember, stable: bool) -> DescribedGroupMember:
    """Metadata and assignment belong together only in a Stable group."""
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(group.protocol or "") if stable else b"",
        member_assignment=member.assignment if stable else b"",
    )


def delete(shard: GroupShard, group_id: str, future: Future[ErrorCode]) -> Result:
    """Removes an Empty group and its offsets; a share group is answered when its share state is gone too.

    Raises GROUP_ID_NOT_FOUND or NON_EMPTY_GROUP.
    """
    group = shard.groups.get(group_id)
    if group is None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    if group.state not in EMPTY_STATES:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
    if isinstance(group, ShareGroup):
        return delete_group(shard, group, future)
    partitions = {(topic, partition) for topic, partition, _ in group.offsets}
    partitions.update(shard.pending_offsets.of_group(group_id))
    records: list[Record] = [OffsetRecord(group_id, topic, partition, None) for topic, partition in partitions]
    records += group.tombstones() or ([] if records else [GroupRecord(group_id, None)])
    return Result(records=records, response=ErrorCode.NONE)


def delete_offsets(shard: GroupShard, group_id: str, partitions: Sequence[tuple[str, int]]) -> Result:
    """Removes committed offsets, pending ones too. The response has the outcome of each partition.

    Raises GROUP_ID_NOT_FOUND, or NON_EMPTY_GROUP for a group with members whose subscriptions nobody here can read.
    """
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    group = shard.groups.get(group_id)
    if group is None or isinstance(group, ShareGroup):
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    if group.state not in EMPTY_STATES and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
    subscribed = group.subscribed({topic for topic, _ in partitions})
    outcome = {
        key: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if key[0] in subscribed else ErrorCode.NONE for key in partitions
    }
    records: list[Record] = [
        OffsetRecord(group_id, topic, partition, None)
        for (topic, partition), error in outcome.items()
        if not error and _has_offset(shard, group, topic, partition)
    ]
    return Result(records=records, response=outcome)


def _has_offset(shard: GroupShard, group: Group, topic: str, partition: int) -> bool:
    return group.offsets.get(topic, partition) is not None or shard.pending_offsets.is_pending(
        group.group_id, topic, partition
    )
