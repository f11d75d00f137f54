"""ShareGroupDescribe on one shard (KIP-932)."""

from __future__ import annotations

from kbroker.coordinator.group.share.epochs import ShareEpochs
from kbroker.coordinator.group.share.simple_assignor import ASSIGNOR_NAME
from kbroker.coordinator.group.share.state import ShareMember
from kbroker.coordinator.group.table import GroupTable
from kbroker.coordinator.runtime.result import Result
from kbroker.errors import ErrorCode
from kbroker.protocol.apis.share_groups.k77_share_group_describe import (
    Assignment,
    DescribedGroup,
    Member,
    TopicPartitions,
)


def describe(shard: GroupTable, group_id: str) -> Result:
    """One share group; GROUP_ID_NOT_FOUND for an unknown one or one of another type, INVALID_GROUP_ID for ""."""
    if not group_id:
        return Result(response=not_described(group_id, ErrorCode.INVALID_GROUP_ID))
    group = shard.find(ShareEpochs, group_id)
    if group is None:
        reason = f"Group {group_id} " + ("is not a share group." if group_id in shard.groups else "not found.")
        return Result(response=not_described(group_id, ErrorCode.GROUP_ID_NOT_FOUND, reason))
    names = {topic_id: topic.name for topic_id, topic in group.partitions.initialized.items()}
    return Result(
        response=DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            group_epoch=group.group_epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=ASSIGNOR_NAME,
            members=[_member(member, names) for member in group.members.values()],
        )
    )


def not_described(group_id: str, error: ErrorCode, reason: str | None = None) -> DescribedGroup:
    """The answer for a group that cannot be described."""
    return DescribedGroup(group_id=group_id, error_code=error, error_message=reason)


def _member(member: ShareMember, names: dict[bytes, str]) -> Member:
    metadata, current = member.metadata, member.current
    return Member(
        member_id=member.member_id,
        rack_id=metadata.rack_id,
        member_epoch=current.member_epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=sorted(metadata.topic_names),
        assignment=Assignment(
            topic_partitions=[
                TopicPartitions(topic_id=topic_id, topic_name=names[topic_id], partitions=sorted(indexes))
                for topic_id, indexes in current.assigned.items()
                if topic_id in names
            ]
        ),
    )
