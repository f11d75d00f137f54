"""Heartbeat and LeaveGroup (classic protocol)."""

from __future__ import annotations

from dataclasses import dataclass

from kbroker.coordinator.group.classic import rebalance
from kbroker.coordinator.group.classic.group import ClassicGroup, ClassicGroupState
from kbroker.coordinator.group.consumer import classic_members as consumer_classic
from kbroker.coordinator.group.consumer.group import ConsumerGroup
from kbroker.coordinator.group.shard import GroupShard
from kbroker.coordinator.group.share.group import ShareGroup
from kbroker.coordinator.runtime.result import Result
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.apis.k12_heartbeat import HeartbeatRequest, HeartbeatResponse
from kbroker.protocol.apis.k13_leave_group import LeaveGroupResponse, MemberResponse


def heartbeat(shard: GroupShard, request: HeartbeatRequest) -> Result:
    """Renews the member's session; REBALANCE_IN_PROGRESS makes it rejoin. Raises KafkaError to refuse."""
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    group = shard.group(request.group_id)
    if isinstance(group, ConsumerGroup):
        return consumer_classic.heartbeat(shard, group, request)
    member = group.member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    rebalance.restart_session(shard, group, member)
    if group.state is ClassicGroupState.PREPARING_REBALANCE:
        return Result(response=HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    return Result(response=HeartbeatResponse())


def renew_session(shard: GroupShard, request: HeartbeatRequest) -> bool:
    """The heartbeat of a member that has nothing to be told; False if it is any other and needs `heartbeat`.

    Any thread may call it: it looks at single values, each of which was true a moment ago, and moves a deadline.
    """
    group = shard.groups.get(request.group_id)
    if (
        not isinstance(group, ClassicGroup)
        or group.state is not ClassicGroupState.STABLE
        or group.generation != request.generation_id
    ):
        return False
    instance_id = request.group_instance_id
    if instance_id is not None and group.static_members.get(instance_id) != request.member_id:
        return False
    member = group.members.get(request.member_id)
    timer = None if member is None else member.session_timer
    return member is not None and timer is not None and timer.postpone(member.session_timeout_ms / 1000)


@dataclass(frozen=True, slots=True)
class Leaver:
    """One member that leaves: by its id, or a static one by its instance id alone (an administrator's removal)."""

    member_id: str
    group_instance_id: str | None = None


def leave(shard: GroupShard, group_id: str, leavers: list[Leaver]) -> Result:
    """Removes members. The answer has one entry per leaver, in order, each with its own error."""
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    group = shard.groups.get(group_id)
    if isinstance(group, ShareGroup):
        group = None  # has no such members
    if isinstance(group, ConsumerGroup):
        return consumer_classic.leave(shard, group, leavers)
    answers = []
    for leaver in leavers:
        error = ErrorCode.UNKNOWN_MEMBER_ID if group is None else _remove(shard, group, leaver)
        answers.append(
            MemberResponse(member_id=leaver.member_id, group_instance_id=leaver.group_instance_id, error_code=error)
        )
    result = Result()
    if group is not None and any(answer.error_code == ErrorCode.NONE for answer in answers):
        result = rebalance.members_gone(shard, group)
    result.response = LeaveGroupResponse(members=answers)
    return result


def _remove(shard: GroupShard, group: ClassicGroup, leaver: Leaver) -> ErrorCode:
    member_id = leaver.member_id
    if not member_id and leaver.group_instance_id is not None:
        member_id = group.static_members.get(leaver.group_instance_id, "")
    if group.drop_pending(member_id):
        return ErrorCode.NONE
    try:
        member = group.member(member_id, leaver.group_instance_id)
    except KafkaError as error:
        return error.code
    rebalance.remove_member(shard, group, member)
    return ErrorCode.NONE
