"""JoinGroup (classic protocol): which members may join, under which member id, and whether that starts a rebalance."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial

from kbroker.coordinator.group.classic import rebalance
from kbroker.coordinator.group.classic.generation import ClassicGeneration
from kbroker.coordinator.group.classic.member import ClassicGroupMember
from kbroker.coordinator.group.classic.state import ClassicGroupState, GroupRecord
from kbroker.coordinator.group.memory import of_classic_member, of_group
from kbroker.coordinator.group.requests import JoinRequest
from kbroker.coordinator.group.table import Group, GroupTable
from kbroker.coordinator.runtime.result import Result, complete
from kbroker.errors import ErrorCode, KafkaError

State = ClassicGroupState

REASON_MAX = 255  # characters of a client's reason, as in Kafka


def join(shard: GroupTable, request: JoinRequest, future: Future) -> Result:
    """Handles one JoinGroup, of a group of any type; `future` may be parked. Raises KafkaError to refuse."""
    config = shard.config
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    if not config.session_timeout_min_ms <= request.session_timeout_ms <= config.session_timeout_max_ms:
        raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
    if request.group_id not in shard.groups:
        check_room(shard, request, -of_group(request.group_id))
        if request.member_id:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        shard.check_group_bound()
    return shard.get_or_create(request.group_id).join(shard, request, future)


def join_group(shard: GroupTable, group: ClassicGeneration, request: JoinRequest, future: Future) -> Result:
    """Handles one JoinGroup of a classic group."""
    try:
        check_room(shard, request, group.bytes_of(request))
        _check_size(shard, group, request.member_id)
        if request.member_id:
            return _join_existing(shard, group, request, future)
        return _join_new(shard, group, request, future)
    finally:
        shard.drop_if_abandoned(group.group_id)  # a refused client must not leave a group


def take_over(shard: GroupTable, group: Group, request: JoinRequest, future: Future) -> Result:
    """Turns a group of another type without members into a classic one; its offsets stay."""

    def removed(error: ErrorCode) -> Result | None:
        if error:
            complete(future, rebalance.join_error(error, request.member_id))
            return None
        current = shard.groups.get(request.group_id)
        if current is not None and current.TYPE == group.TYPE:
            # A member has recreated it meanwhile: the request is decided on the group as it is at its next try.
            complete(future, rebalance.join_error(ErrorCode.REBALANCE_IN_PROGRESS, request.member_id))
            return None
        try:
            result = join(shard, request, future)
        except KafkaError as refused:
            complete(future, rebalance.join_error(refused.code, request.member_id))
            return None
        if result.response is not None:
            _answer_when_durable(result, future)
        return result

    return Result(records=list(group.tombstones()), on_complete=removed)


def _answer_when_durable(result: Result, future: Future) -> None:
    """Completes the request with the result's response, as the runtime does for a first result."""
    response, then = result.response, result.on_complete

    def done(error: ErrorCode) -> Result | None:
        complete(future, rebalance.join_error(error) if error else response)
        return None if then is None else then(error)

    result.response, result.on_complete = None, done


def check_room(shard: GroupTable, request: JoinRequest, taken: int) -> None:
    """Refuses a join for which there is no memory. `taken` are the bytes of the member that it replaces.

    So existing members go on, also under a new id (static ones), while others are kept out.
    """
    shard.check_room(of_classic_member(request) - taken, newcomer=taken <= 0)


def _check_size(shard: GroupTable, group: ClassicGeneration, member_id: str) -> None:
    """Refuses a member beyond group.max.size, as far as the state allows counting."""
    size_max = shard.config.group_size_max
    member = group.members.get(member_id)
    if group.state is State.PREPARING_REBALANCE:
        accepted = (member is not None and member.join_future is not None) or (group.awaiting_join_count < size_max)
    elif group.state is State.EMPTY:
        accepted = True
    else:
        accepted = member is not None or len(group.members) < size_max
    if member_id == "" and len(group.pending_members) >= size_max:
        accepted = False  # ids that were given out are bounded like members
    if not accepted:
        group.drop_pending(member_id)
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)


# -- new members -------------------------------------------------------------------------------------------------


def _join_new(shard: GroupTable, group: ClassicGeneration, request: JoinRequest, future: Future) -> Result:
    if not group.supports(request.protocol_type, request.protocols):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    member_id = group.new_member_id(request.client_id, request.group_instance_id)
    if request.group_instance_id is not None:
        if request.group_instance_id in group.static_members:
            return _replace_static(shard, group, request, member_id, future)
        return _add(shard, group, request, member_id, future)
    if request.requires_known_member_id:
        expire = partial(_pending_expired, shard, group, member_id)
        group.add_pending(member_id, shard.schedule(request.session_timeout_ms, expire))
        return Result(response=rebalance.join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id))
    return _add(shard, group, request, member_id, future)


def _pending_expired(shard: GroupTable, group: ClassicGeneration, member_id: str) -> Result | None:
    if not group.drop_pending(member_id):
        return None
    shard.drop_if_abandoned(group.group_id)
    return rebalance.maybe_complete(shard, group)  # a rebalance may have waited for it alone


def _add(shard: GroupTable, group: ClassicGeneration, request: JoinRequest, member_id: str, future: Future) -> Result:
    member = ClassicGroupMember(
        member_id,
        request.group_instance_id,
        request.client_id,
        request.client_host,
        request.rebalance_timeout_ms,
        request.session_timeout_ms,
        request.protocols,
    )
    member.is_new = True
    if group.state is State.PREPARING_REBALANCE and group.previous_state is State.EMPTY:
        group.member_added = True
    group.add(member, request.protocol_type)
    shard.counts.members += 1
    group.park_join(member, future)
    # It sends no heartbeats while parked, so its session has not begun. A client that gave up must not stay, though.
    rebalance.restart_session(shard, group, member, shard.config.new_member_join_timeout_ms)
    return rebalance.prepare_or_complete(shard, group, _reason(request, member_id, "joins"))


# -- known members -----------------------------------------------------------------------------------------------


def _join_existing(shard: GroupTable, group: ClassicGeneration, request: JoinRequest, future: Future) -> Result:
    if not group.supports(request.protocol_type, request.protocols):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if request.member_id in group.pending_members and request.group_instance_id is None:
        return _add(shard, group, request, request.member_id, future)
    member = group.member(request.member_id, request.group_instance_id)
    unchanged = member.protocols == request.protocols
    if group.state is State.PREPARING_REBALANCE:
        _update(group, member, request, future)
        return rebalance.maybe_complete(shard, group)
    if group.state is State.COMPLETING_REBALANCE:
        if unchanged:  # it may have missed the response
            return Result(response=rebalance.join_response(group, member))
    elif unchanged and member.member_id != group.leader:
        # The leader rejoins to ask for a rebalance, for changes that its metadata does not show.
        return Result(response=rebalance.join_response(group, member))
    _update(group, member, request, future)
    return rebalance.prepare(shard, group, _reason(request, member.member_id, "joins again"))


def _reason(request: JoinRequest, member_id: str, event: str) -> str:
    """For the log. What the client says may be anything."""
    said = f"; the client says: {request.reason[:REASON_MAX]!r}" if request.reason else ""
    return f"member {member_id} {event}{said}"


def _update(group: ClassicGeneration, member: ClassicGroupMember, request: JoinRequest, future: Future) -> None:
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    member.session_timeout_ms = request.session_timeout_ms
    member.client_id = request.client_id
    member.client_host = request.client_host
    group.set_protocols(member, request.protocols)
    replaced = group.park_join(member, future)
    if replaced is not None:
        complete(replaced, rebalance.join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))


# -- returning static members ------------------------------------------------------------------------------------


def _replace_static(
    shard: GroupTable, group: ClassicGeneration, request: JoinRequest, new_id: str, future: Future
) -> Result:
    """A static member returns under a new id: the old id is fenced; the member keeps its place and its assignment."""
    assert request.group_instance_id is not None
    old_id = group.static_members[request.group_instance_id]
    old_leader = group.leader or ""
    member = group.members[old_id]
    rebalance.answer_join(group, member, rebalance.join_error(ErrorCode.FENCED_INSTANCE_ID, old_id))
    rebalance.fail_sync(member, ErrorCode.FENCED_INSTANCE_ID)
    before = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
    group.replace_static_member(old_id, new_id)
    _update(group, member, request, future)
    rebalance.restart_session(shard, group, member)
    if group.state is State.PREPARING_REBALANCE:
        return rebalance.maybe_complete(shard, group)
    if group.state is not State.STABLE or group.select_protocol() != group.protocol:
        return rebalance.prepare(shard, group, _reason(request, new_id, "is back"))

    def stored(error: ErrorCode) -> None:
        if group.state is not State.STABLE or group.members.get(new_id) is not member:
            return  # a rebalance began meanwhile and answers it, or the member left
        if error:
            group.replace_static_member(new_id, old_id)
            protocols, member.rebalance_timeout_ms, member.session_timeout_ms = before
            group.set_protocols(member, protocols)
            rebalance.answer_join(group, member, rebalance.join_error(error))
        else:
            rebalance.answer_join(group, member, _kept_place(group, member, request, old_leader))
        rebalance.restart_session(shard, group, member)

    assignments = {other.member_id: other.assignment for other in group.members.values()}
    record = GroupRecord(group.group_id, group.to_stored(assignments, shard.now_ms()))
    return Result(records=[record], on_complete=stored)


def _kept_place(
    group: ClassicGeneration, member: ClassicGroupMember, request: JoinRequest, old_leader: str
) -> rebalance.JoinGroupResponse:
    """The current generation, for a static member that returned: it must not compute an assignment."""
    response = rebalance.join_response(group, member)
    if request.supports_skipping_assignment:
        response.skip_assignment = member.member_id == group.leader
    else:
        response.members = []
        response.leader = old_leader  # so that before v9 the member does not take itself for the leader
    return response
