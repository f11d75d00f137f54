"""ListGroups, DescribeGroups and DeleteGroups on one shard."""

from __future__ import annotations

from kbroker.coordinator.classic_group import ClassicGroup, ClassicGroupMember, ClassicGroupState
from kbroker.coordinator.group_shard import GroupShard
from kbroker.coordinator.group_state import GroupRecord, OffsetRecord, Record
from kbroker.coordinator.result import Result
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.apis.k15_describe_groups import DescribedGroup, DescribedGroupMember
from kbroker.protocol.apis.k16_list_groups import ListedGroup

GROUP_TYPE_CLASSIC = "classic"


def list_groups(shard: GroupShard, states: frozenset[str], types: frozenset[str]) -> Result:
    """The shard's groups; empty filters pass all. Filters are in lower case."""
    if types and GROUP_TYPE_CLASSIC not in types:
        return Result(response=[])
    return Result(
        response=[
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=GROUP_TYPE_CLASSIC,
            )
            for group in shard.groups.values()
            if not states or group.state.value.lower() in states
        ]
    )


def describe(shard: GroupShard, group_id: str) -> Result:
    """One group; see `not_described` for the others."""
    group = shard.groups.get(group_id)
    if group is None:
        return Result(response=not_described(group_id, ErrorCode.GROUP_ID_NOT_FOUND))
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


def delete(shard: GroupShard, group_id: str) -> Result:
    """Removes an Empty group and its offsets. Raises GROUP_ID_NOT_FOUND or NON_EMPTY_GROUP."""
    group = shard.groups.get(group_id)
    if group is None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    if group.state is not ClassicGroupState.EMPTY:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
    records: list[Record] = [OffsetRecord(group_id, topic, partition, None) for topic, partition, _ in group.offsets]
    if group.stored is not None or not records:
        records.append(GroupRecord(group_id, None))
    return Result(records=records, response=ErrorCode.NONE)
