"""Members of the classic protocol in a consumer group (KIP-848, online migration).

The coordinator assigns. JoinGroup is answered at once, with the member's epoch as the generation and with no leader, so
that each member takes itself for a follower; SyncGroup returns what the member may own now; Heartbeat tells it to
rejoin whenever that would bring it closer to its target.
"""

from __future__ import annotations

from dataclasses import replace

from kbroker.coordinator.group.classic import rebalance
from kbroker.coordinator.group.consumer import conversion, session
from kbroker.coordinator.group.consumer.embedded_protocol import read_subscription, write_assignment
from kbroker.coordinator.group.consumer.epochs import ConsumerEpochs
from kbroker.coordinator.group.consumer.members import PROTOCOL_TYPE, new_member_id
from kbroker.coordinator.group.consumer.state import ClassicMetadata, ConsumerMember, MemberMetadata, MemberState
from kbroker.coordinator.group.consumer.update import ConsumerUpdate
from kbroker.coordinator.group.requests import JoinRequest, Leaver
from kbroker.coordinator.group.table import GroupTable, leave_response
from kbroker.coordinator.group.timers import TimerKind
from kbroker.coordinator.runtime.result import Result
from kbroker.errors import ErrorCode, KafkaError, ProtocolError
from kbroker.protocol.apis.groups.k11_join_group import JoinGroupResponse
from kbroker.protocol.apis.groups.k12_heartbeat import HeartbeatRequest, HeartbeatResponse
from kbroker.protocol.apis.groups.k14_sync_group import SyncGroupRequest, SyncGroupResponse

# -- JoinGroup ---------------------------------------------------------------------------------------------------


def join(shard: GroupTable, group: ConsumerEpochs, request: JoinRequest) -> Result:
    """Handles one JoinGroup to a consumer group that has members. Raises KafkaError to refuse."""
    _check_join(shard, group, request)
    member_id = request.member_id or new_member_id()
    if not request.member_id and request.requires_known_member_id and request.group_instance_id is None:
        return Result(response=rebalance.join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id))
    update = ConsumerUpdate(shard, group)
    replaced = _enter(update, request, member_id)
    before = update.members.get(member_id)
    try:
        subscription = read_subscription(request.protocols[0][1], shard.environment.topics)
    except ProtocolError:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from None
    known = MemberMetadata() if before is None else before.metadata
    metadata = replace(
        known,
        instance_id=request.group_instance_id if request.group_instance_id is not None else known.instance_id,
        rack_id=subscription.rack_id if subscription.rack_id is not None else known.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        topic_names=subscription.topic_names,
        topic_regex=None,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        server_assignor=None,
        classic=ClassicMetadata(request.session_timeout_ms, tuple(request.protocols)),
    )
    changed = update.put_metadata(member_id, metadata)
    if changed or group.topics is None:
        update.refresh(bump=changed)
    update.retarget()
    member = update.reconcile(member_id, subscription.owned)
    update.check_room(member_id)
    response = _join_response(member)
    if replaced is not None and conversion.may_downgrade_for(shard, group, replaced=replaced):
        response.generation_id = group.group_epoch
        return conversion.downgrade(shard, group, without=[replaced], joining=member, response=response)
    shard.timers.cancel(TimerKind.REVOCATION, request.group_id, member_id)
    session.restart_session(shard, request.group_id, member)
    session.expect_sync(shard, request.group_id, member)
    return Result(records=update.records, response=response)


def _check_join(shard: GroupTable, group: ConsumerEpochs, request: JoinRequest) -> None:
    known = request.member_id in group.members or request.group_instance_id in group.static_members
    if not known and len(group.members) >= shard.config.consumer_group_size_max:
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)
    if not group.supports_classic(request.protocol_type, {name for name, _ in request.protocols}):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _enter(update: ConsumerUpdate, request: JoinRequest, member_id: str) -> str | None:
    """Gives a returning static member its place under a new id; returns the id that it replaces."""
    group, instance_id = update.group, request.group_instance_id
    if instance_id is None:
        return None
    holder_id = group.static_members.get(instance_id)
    if request.member_id:
        group.member(request.member_id, instance_id)
        return None
    if holder_id is None:
        return None
    update.replace_static(group.members[holder_id], member_id)
    return holder_id


def _join_response(member: ConsumerMember) -> JoinGroupResponse:
    assert member.metadata.classic is not None
    return JoinGroupResponse(
        generation_id=member.current.member_epoch,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=member.metadata.classic.protocols[0][0],
        leader="",
        member_id=member.member_id,
        members=[],
    )


# -- SyncGroup and Heartbeat -------------------------------------------------------------------------------------


def sync(shard: GroupTable, group: ConsumerEpochs, request: SyncGroupRequest) -> Result:
    """What the member may own now. Raises KafkaError to refuse."""
    member, classic = _classic_member(group, request.member_id, request.group_instance_id)
    if request.generation_id != member.current.member_epoch:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    name, subscription = classic.protocols[0]
    if request.protocol_type not in (None, PROTOCOL_TYPE) or request.protocol_name not in (None, name):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    is_behind = member.current.member_epoch < group.group_epoch
    if is_behind and member.current.state is not MemberState.UNREVOKED_PARTITIONS:
        session.expect_join(shard, group.group_id, member)
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
    shard.timers.cancel(TimerKind.SYNC, group.group_id, member.member_id)
    session.restart_session(shard, group.group_id, member)
    return Result(
        response=SyncGroupResponse(
            protocol_type=PROTOCOL_TYPE,
            protocol_name=name,
            assignment=write_assignment(member.current.assigned, group.topics or {}, subscription),
        )
    )


def heartbeat(shard: GroupTable, group: ConsumerEpochs, request: HeartbeatRequest) -> Result:
    """Renews the session; REBALANCE_IN_PROGRESS makes the member rejoin. Raises KafkaError to refuse."""
    member, _ = _classic_member(group, request.member_id, request.group_instance_id)
    if request.generation_id != member.current.member_epoch:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    session.restart_session(shard, group.group_id, member)
    if not _should_rejoin(group, member):
        return Result(response=HeartbeatResponse())
    session.expect_join(shard, group.group_id, member)
    return Result(response=HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))


def _should_rejoin(group: ConsumerEpochs, member: ConsumerMember) -> bool:
    """True if rejoining would bring the member closer to its target."""
    state = member.current.state
    return (
        member.current.member_epoch < group.group_epoch
        or state is MemberState.UNREVOKED_PARTITIONS
        or (state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(member))
    )


def _classic_member(
    group: ConsumerEpochs, member_id: str, instance_id: str | None
) -> tuple[ConsumerMember, ClassicMetadata]:
    member = group.member(member_id, instance_id)
    if member.metadata.classic is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} does not use the classic protocol.")
    return member, member.metadata.classic


# -- LeaveGroup --------------------------------------------------------------------------------------------------


def leave(shard: GroupTable, group: ConsumerEpochs, leavers: list[Leaver]) -> Result:
    """Removes members. The answer has one entry per leaver, in order, each with its own error."""
    leaving: list[str] = []
    response = leave_response(leavers, [_name(group, leaver, leaving) for leaver in leavers])
    if conversion.may_downgrade(shard, group, without=leaving):
        return conversion.downgrade(shard, group, without=leaving, response=response)
    update = ConsumerUpdate(shard, group)
    for member_id in leaving:
        update.remove(member_id)
    if leaving:
        update.refresh(bump=True)
    return Result(records=update.records, response=response)


def _name(group: ConsumerEpochs, leaver: Leaver, leaving: list[str]) -> ErrorCode:
    """Adds the member that `leaver` names, of either protocol, to `leaving`."""
    member_id = leaver.member_id
    by_administrator = not member_id and leaver.group_instance_id is not None
    if by_administrator:
        member_id = group.static_members.get(leaver.group_instance_id or "", "")
    try:
        group.member(member_id, leaver.group_instance_id)
    except KafkaError as error:
        return ErrorCode.UNKNOWN_MEMBER_ID if by_administrator else error.code
    if member_id in leaving:
        return ErrorCode.UNKNOWN_MEMBER_ID  # named twice
    leaving.append(member_id)
    return ErrorCode.NONE
