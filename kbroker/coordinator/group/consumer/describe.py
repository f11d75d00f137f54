"""ConsumerGroupDescribe on one shard (KIP-848)."""

from __future__ import annotations

from kbroker.coordinator.group.consumer.epochs import ConsumerEpochs
from kbroker.coordinator.group.consumer.state import ConsumerMember
from kbroker.coordinator.group.table import GroupTable
from kbroker.coordinator.group.topic_partitions import NO_PARTITIONS, Partitions
from kbroker.coordinator.runtime.result import Result
from kbroker.errors import ErrorCode
from kbroker.protocol.apis.groups.k69_consumer_group_describe import Assignment, DescribedGroup, Member, TopicPartitions

_MEMBER_TYPE_CLASSIC, _MEMBER_TYPE_CONSUMER = 0, 1


def describe(shard: GroupTable, group_id: str) -> Result:
    """One consumer group; an error GROUP_ID_NOT_FOUND for an unknown or a classic one, INVALID_GROUP_ID for ""."""
    if not group_id:
        return Result(response=not_described(group_id, ErrorCode.INVALID_GROUP_ID))
    group = shard.find(ConsumerEpochs, group_id)
    if group is None:
        reason = f"Group {group_id} " + ("is not a consumer group." if group_id in shard.groups else "not found.")
        return Result(response=not_described(group_id, ErrorCode.GROUP_ID_NOT_FOUND, reason))
    names = {info.topic_id: name for name, info in (group.topics or {}).items()}
    return Result(
        response=DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            group_epoch=group.group_epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=group.assignor_name(),
            members=[_member(group, member, names) for member in group.members.values()],
        )
    )


def not_described(group_id: str, error: ErrorCode, reason: str | None = None) -> DescribedGroup:
    """The answer for a group that cannot be described."""
    return DescribedGroup(group_id=group_id, error_code=error, error_message=reason)


def _member(group: ConsumerEpochs, member: ConsumerMember, names: dict[bytes, str]) -> Member:
    metadata, current = member.metadata, member.current
    return Member(
        member_id=member.member_id,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        member_epoch=current.member_epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=sorted(metadata.topic_names),
        subscribed_topic_regex=metadata.topic_regex,
        assignment=_assignment(current.assigned, names),
        target_assignment=_assignment(group.target.get(member.member_id, NO_PARTITIONS), names),
        member_type=_MEMBER_TYPE_CLASSIC if member.is_classic else _MEMBER_TYPE_CONSUMER,
    )


def _assignment(partitions: Partitions, names: dict[bytes, str]) -> Assignment:
    """Partitions with the names of their topics; deleted topics are left out."""
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, topic_name=names[topic_id], partitions=sorted(indexes))
            for topic_id, indexes in partitions.items()
            if topic_id in names
        ]
    )
