"""The rebalance of a classic group: from PreparingRebalance to the answers to JoinGroup, and members that leave.

Each function decides and returns the records to write (see `Result`).
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from functools import partial

from kbroker.coordinator.group.classic.generation import ClassicGeneration
from kbroker.coordinator.group.classic.member import ClassicGroupMember
from kbroker.coordinator.group.classic.state import GROUP_TYPE, ClassicGroupState, GroupRecord
from kbroker.coordinator.group.table import GroupTable
from kbroker.coordinator.runtime.result import Result, complete
from kbroker.errors import ErrorCode
from kbroker.protocol.apis.groups.k11_join_group import JoinGroupResponse, JoinGroupResponseMember
from kbroker.protocol.apis.groups.k14_sync_group import SyncGroupResponse

logger = logging.getLogger(__name__)

State = ClassicGroupState

_SILENT_WAIT_MS_MIN = 1_000  # for static members: their clients may send a rebalance timeout of 0


# -- sessions ----------------------------------------------------------------------------------------------------


def restart_session(
    shard: GroupTable, group: ClassicGeneration, member: ClassicGroupMember, timeout_ms: int | None = None
) -> None:
    """Gives the member another session timeout from now."""
    delay_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
    timer = member.session_timer
    if timer is not None:
        if timer.postpone(delay_ms / 1000):
            return
        timer.cancel()
    member.session_timer = shard.schedule(delay_ms, partial(_session_expired, shard, group, member))


def _session_expired(shard: GroupTable, group: ClassicGeneration, member: ClassicGroupMember) -> Result | None:
    if group.members.get(member.member_id) is not member:
        return None
    waits = member.join_future is not None or member.sync_future is not None
    if waits and not member.is_new:
        return None  # it cannot send heartbeats while its request is parked; the answer restarts the session
    remove_member(shard, group, member)
    return members_gone(shard, group, f"the session of member {member.member_id} expired")


def remove_member(shard: GroupTable, group: ClassicGeneration, member: ClassicGroupMember) -> None:
    """Removes a member. Its parked requests get UNKNOWN_MEMBER_ID, so that a live client joins again."""
    answer_join(group, member, join_error(ErrorCode.UNKNOWN_MEMBER_ID))
    fail_sync(member, ErrorCode.UNKNOWN_MEMBER_ID)
    group.remove(member)
    shard.counts.members -= 1


def members_gone(shard: GroupTable, group: ClassicGeneration, reason: str) -> Result:
    """Rebalances, if the state asks for it, after members or pending ids were removed."""
    if group.state in (State.STABLE, State.COMPLETING_REBALANCE):
        return prepare(shard, group, reason)
    if group.state is State.PREPARING_REBALANCE:
        return maybe_complete(shard, group)
    shard.drop_if_abandoned(group.group_id)
    return Result()


# -- the rebalance -----------------------------------------------------------------------------------------------


def prepare_or_complete(shard: GroupTable, group: ClassicGeneration, reason: str) -> Result:
    """After a member joined or changed: starts a rebalance, or completes the current one if all have joined."""
    return prepare(shard, group, reason) if group.can_rebalance else maybe_complete(shard, group)


def prepare(shard: GroupTable, group: ClassicGeneration, reason: str) -> Result:
    """Starts a rebalance. From Empty it waits the initial delay for more members; otherwise for all to rejoin.

    `reason` is for the log: what an operator asks first.
    """
    logger.info("group %s: generation %d is rebalanced: %s", group.group_id, group.generation, reason)
    if group.state is State.COMPLETING_REBALANCE:
        fail_syncs(shard, group, ErrorCode.REBALANCE_IN_PROGRESS)
    if group.sync_timer is not None:
        group.sync_timer.cancel()
    initial = group.state is State.EMPTY
    if group.rebalance_began_ms is None and group.members:
        group.rebalance_began_ms = shard.now_ms()
        shard.activity.rebalances[GROUP_TYPE] += 1
    group.transition_to(State.PREPARING_REBALANCE, shard.now_ms())
    if initial:
        group.member_added = False
        delay_ms = shard.config.initial_rebalance_delay_ms
        _await_first_members(shard, group, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
        return Result()
    if group.all_members_joined:
        return complete_joins(shard, group)
    _set_join_timer(shard, group, group.rebalance_timeout_ms)
    return Result()


def maybe_complete(shard: GroupTable, group: ClassicGeneration) -> Result:
    """Completes the rebalance if no member is missing. The initial delay always runs to its end."""
    if (
        group.state is State.PREPARING_REBALANCE
        and group.all_members_joined
        and group.previous_state is not State.EMPTY
    ):
        return complete_joins(shard, group)
    return Result()


def _await_first_members(shard: GroupTable, group: ClassicGeneration, delay_ms: int, remaining_ms: int) -> None:
    def delay_ended() -> Result | None:
        if not (group.member_added and remaining_ms > 0):
            return complete_joins(shard, group)
        group.member_added = False
        next_delay_ms = min(shard.config.initial_rebalance_delay_ms, remaining_ms)
        _await_first_members(shard, group, next_delay_ms, max(remaining_ms - delay_ms, 0))
        return None

    group.join_timer = shard.schedule(delay_ms, delay_ended)


def _set_join_timer(shard: GroupTable, group: ClassicGeneration, delay_ms: int) -> None:
    group.join_timer = shard.schedule(delay_ms, partial(complete_joins, shard, group))


def complete_joins(shard: GroupTable, group: ClassicGeneration) -> Result:
    """Ends PreparingRebalance: drops dynamic members that did not rejoin and answers the others."""
    if group.join_timer is not None:
        group.join_timer.cancel()
    if group.state is not State.PREPARING_REBALANCE:
        return Result()
    for member in list(group.members.values()):
        if member.join_future is None and member.group_instance_id is None:
            remove_member(shard, group, member)
    if group.members and not group.elect_joined_leader():
        # Only static members that have not rejoined are left: wait until they do or their sessions expire.
        _set_join_timer(shard, group, max(group.rebalance_timeout_ms, _SILENT_WAIT_MS_MIN))
        return Result()
    now_ms = shard.now_ms()
    group.begin_next_generation(now_ms)
    if group.state is State.EMPTY:
        group.rebalance_began_ms = None
        return Result(records=[GroupRecord(group.group_id, group.to_stored({}, now_ms))])
    _expect_syncs(shard, group)
    for member in group.members.values():
        member.is_new = False
        answer_join(group, member, join_response(group, member))
        restart_session(shard, group, member)
    return Result()


def _expect_syncs(shard: GroupTable, group: ClassicGeneration) -> None:
    group.pending_sync = set(group.members)
    generation = group.generation

    def syncs_overdue() -> Result | None:
        if generation != group.generation or group.state not in (State.COMPLETING_REBALANCE, State.STABLE):
            return None
        late = [group.members[member_id] for member_id in group.pending_sync if member_id in group.members]
        for member in late:
            remove_member(shard, group, member)
        if not late:
            return None
        return prepare(shard, group, f"{len(late)} members sent no SyncGroup, as {late[0].member_id}")

    group.sync_timer = shard.schedule(group.rebalance_timeout_ms, syncs_overdue)


def sync_received(group: ClassicGeneration, member: ClassicGroupMember) -> None:
    """Notes that a member of this generation called SyncGroup."""
    group.pending_sync.discard(member.member_id)
    if not group.pending_sync and group.sync_timer is not None:
        group.sync_timer.cancel()


# -- answers -----------------------------------------------------------------------------------------------------


def join_error(error: ErrorCode, member_id: str = "") -> JoinGroupResponse:
    """A refused JoinGroup."""
    return JoinGroupResponse(error_code=error, member_id=member_id, generation_id=-1, leader="")


def join_response(group: ClassicGeneration, member: ClassicGroupMember) -> JoinGroupResponse:
    """The current generation for `member`: the leader gets all members' metadata."""
    is_leader = member.member_id == group.leader
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.leader or "",
        member_id=member.member_id,
        members=member_list(group) if is_leader else [],
    )


def member_list(group: ClassicGeneration) -> list[JoinGroupResponseMember]:
    """All members with their metadata for the chosen protocol, for the leader."""
    protocol = group.protocol or ""
    return [
        JoinGroupResponseMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            metadata=member.metadata(protocol),
        )
        for member in group.members.values()
    ]


def answer_join(group: ClassicGeneration, member: ClassicGroupMember, response: JoinGroupResponse) -> None:
    """Answers the member's parked JoinGroup, if there is one."""
    future = group.take_join(member)
    if future is not None:
        complete(future, response)


def _answer_sync(member: ClassicGroupMember, response: SyncGroupResponse) -> bool:
    future, member.sync_future = member.sync_future, None
    if future is None:
        return False
    complete(future, response)
    return True


def park_sync(member: ClassicGroupMember, future: Future) -> None:
    """Keeps a SyncGroup's future until the assignments are durable; an earlier one of the member must rejoin."""
    fail_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
    member.sync_future = future


def fail_sync(member: ClassicGroupMember, error: ErrorCode) -> bool:
    """Answers the member's parked SyncGroup with an error; False if there is none."""
    return _answer_sync(member, SyncGroupResponse(error_code=error))


def fail_syncs(shard: GroupTable, group: ClassicGeneration, error: ErrorCode) -> None:
    """Clears the assignments and answers all parked SyncGroups with an error."""
    for member in group.members.values():
        member.assignment = b""
        if fail_sync(member, error):
            restart_session(shard, group, member)


def release_syncs(shard: GroupTable, group: ClassicGeneration, assignments: dict[str, bytes]) -> None:
    """The assignments are durable: the group is Stable, and each parked SyncGroup gets its member's assignment."""
    group.transition_to(State.STABLE, shard.now_ms())
    if group.rebalance_began_ms is not None:
        shard.activity.rebalance_ended(GROUP_TYPE, shard.now_ms() - group.rebalance_began_ms)
        group.rebalance_began_ms = None
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, b"")
        if _answer_sync(member, sync_response(group, member)):
            restart_session(shard, group, member)


def sync_response(group: ClassicGeneration, member: ClassicGroupMember) -> SyncGroupResponse:
    """The member's assignment."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment
    )
