"""Heartbeat and LeaveGroup (classic protocol)."""

from __future__ import annotations

from kbroker.coordinator.group.classic import rebalance
from kbroker.coordinator.group.classic.generation import ClassicGeneration
from kbroker.coordinator.group.classic.state import ClassicGroupState
from kbroker.coordinator.group.requests import Leaver
from kbroker.coordinator.group.table import GroupTable, leave_response
from kbroker.coordinator.runtime.result import Result
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.apis.groups.k12_heartbeat import HeartbeatRequest, HeartbeatResponse


def heartbeat(shard: GroupTable, request: HeartbeatRequest) -> Result:
    """Handles one Heartbeat, of a group of any type. Raises KafkaError to refuse."""
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    return shard.known(request.group_id).heartbeat(shard, request)


def heartbeat_of_member(shard: GroupTable, group: ClassicGeneration, request: HeartbeatRequest) -> Result:
    """Renews the session of a member of a classic group; REBALANCE_IN_PROGRESS makes it rejoin."""
    member = group.member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    rebalance.restart_session(shard, group, member)
    if group.state is ClassicGroupState.PREPARING_REBALANCE:
        return Result(response=HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    return Result(response=HeartbeatResponse())


def renew_session(shard: GroupTable, request: HeartbeatRequest) -> bool:
    """Renews the session of a member for which there is no news; False: `heartbeat` must decide.

    Any thread may call it: it reads single values, each of which was true a moment ago, and moves a deadline.
    """
    group = shard.find(ClassicGeneration, request.group_id)
    if group is None or group.state is not ClassicGroupState.STABLE or group.generation != request.generation_id:
        return False
    instance_id = request.group_instance_id
    if instance_id is not None and group.static_members.get(instance_id) != request.member_id:
        return False
    member = group.members.get(request.member_id)
    timer = None if member is None else member.session_timer
    return member is not None and timer is not None and timer.postpone(member.session_timeout_ms / 1000)


def leave(shard: GroupTable, group_id: str, leavers: list[Leaver]) -> Result:
    """Handles one LeaveGroup, of a group of any type. The answer has one entry per leaver, in order."""
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    group = shard.groups.get(group_id)
    if group is None:
        return Result(response=leave_response(leavers, [ErrorCode.UNKNOWN_MEMBER_ID] * len(leavers)))
    return group.leave(shard, leavers)


def remove_leavers(shard: GroupTable, group: ClassicGeneration, leavers: list[Leaver]) -> Result:
    """Removes members from a classic group."""
    errors = [_remove(shard, group, leaver) for leaver in leavers]
    left = [each.member_id or each.group_instance_id for each, code in zip(leavers, errors, strict=True) if not code]
    more = f", and {len(left) - 1} more" if len(left) > 1 else ""
    result = rebalance.members_gone(shard, group, f"member {left[0]} left{more}") if left else Result()
    result.response = leave_response(leavers, errors)
    return result


def _remove(shard: GroupTable, group: ClassicGeneration, leaver: Leaver) -> ErrorCode:
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
