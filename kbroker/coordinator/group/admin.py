"""ListGroups, DescribeGroups and DeleteGroups on one shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from concurrent.futures import Future

from kbroker.coordinator.group.classic.generation import ClassicGeneration
from kbroker.coordinator.group.classic.member import ClassicGroupMember
from kbroker.coordinator.group.classic.state import CONSUMER_PROTOCOL_TYPE, ClassicGroupState, GroupRecord
from kbroker.coordinator.group.offsets.state import OffsetRecord
from kbroker.coordinator.group.records import Record
from kbroker.coordinator.group.share.epochs import ShareEpochs
from kbroker.coordinator.group.share.offsets import delete_group
from kbroker.coordinator.group.table import EMPTY, Group, GroupTable
from kbroker.coordinator.runtime.result import Result
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.apis.groups.k15_describe_groups import DescribedGroup, DescribedGroupMember
from kbroker.protocol.apis.groups.k16_list_groups import ListedGroup


def list_groups(shard: GroupTable, states: frozenset[str], types: frozenset[str]) -> Result:
    """The shard's groups; empty filters pass all. Filters are in lower case."""
    listed = []
    for group in shard.groups.values():
        if types and group.TYPE not in types:
            continue
        state = group.state_name
        if not states or state.lower() in states:
            listed.append(
                ListedGroup(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type or "",
                    group_state=state,
                    group_type=group.TYPE,
                )
            )
    return Result(response=listed)


def groups_by_state(shard: GroupTable) -> Counter[Hashable]:
    """Groups by (type, state), as ListGroups names them."""
    return Counter((group.TYPE, group.state_name) for group in shard.groups.values())


def describe(shard: GroupTable, group_id: str) -> Result:
    """One classic group; see `not_described` for the others."""
    if group_id not in shard.groups:
        return Result(response=not_described(group_id, ErrorCode.GROUP_ID_NOT_FOUND))
    group = shard.find(ClassicGeneration, group_id)
    if group is None:
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


def _described_member(group: ClassicGeneration, member: ClassicGroupMember, stable: bool) -> DescribedGroupMember:
    """Metadata and assignment belong together only in a Stable group."""
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(group.protocol or "") if stable else b"",
        member_assignment=member.assignment if stable else b"",
    )


def delete(shard: GroupTable, group_id: str, future: Future[ErrorCode]) -> Result:
    """Removes an Empty group and its offsets; for a share group the answer waits until its share state is removed too.

    Raises GROUP_ID_NOT_FOUND or NON_EMPTY_GROUP.
    """
    group = shard.groups.get(group_id)
    if group is None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    if group.state_name != EMPTY:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
    share_group = shard.find(ShareEpochs, group_id)
    if share_group is not None:
        return delete_group(shard, share_group, future)
    partitions = {(topic, partition) for topic, partition, _ in group.offsets}
    partitions.update(shard.pending_offsets.of_group(group_id))
    records: list[Record] = [OffsetRecord(group_id, topic, partition, None) for topic, partition in partitions]
    records += group.tombstones() or ([] if records else [GroupRecord(group_id, None)])
    return Result(records=records, response=ErrorCode.NONE)


def delete_offsets(shard: GroupTable, group_id: str, partitions: Sequence[tuple[str, int]]) -> Result:
    """Removes committed offsets, also pending ones. The response has the outcome of each partition.

    Raises GROUP_ID_NOT_FOUND, or NON_EMPTY_GROUP for a group with members that are not consumers.
    """
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    group = shard.groups.get(group_id)
    if group is None or not group.COMMITS_OFFSETS:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    if group.state_name != EMPTY and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
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


def _has_offset(shard: GroupTable, group: Group, topic: str, partition: int) -> bool:
    return group.offsets.get(topic, partition) is not None or shard.pending_offsets.is_pending(
        group.group_id, topic, partition
    )
