"""ShareGroupHeartbeat (KIP-932): the one request with which members join, stay and leave.

A heartbeat adds or updates the member; the group epoch grows if that or the topics changed the group; the target is
computed if it is older than the group epoch; the member reaches it at once. An idle member's heartbeat only renews its
session.

A subscription to topics that the group has not read before is answered when their partitions have share state, so that
the member need not wait for its next heartbeat to be assigned some.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from kbroker.coordinator.group.share.epochs import ShareEpochs, not_found, not_share
from kbroker.coordinator.group.share.partition_states import PartitionStates
from kbroker.coordinator.group.share.partitions import follow, follow_when_durable, waits_for
from kbroker.coordinator.group.share.session import remove, restart_session
from kbroker.coordinator.group.share.state import JOIN_EPOCH, LEAVE_EPOCH, ShareMember, ShareMetadata
from kbroker.coordinator.group.share.update import ShareUpdate
from kbroker.coordinator.group.table import GroupTable
from kbroker.coordinator.group.topic_partitions import to_structs
from kbroker.coordinator.runtime.result import Result, complete
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.apis.share_groups.k76_share_group_heartbeat import (
    Assignment,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)


@dataclass(frozen=True, slots=True)
class ShareHeartbeat:
    """A ShareGroupHeartbeat. None: unchanged."""

    group_id: str
    member_id: str
    member_epoch: int
    client_id: str
    client_host: str
    rack_id: str | None = None
    topic_names: frozenset[str] | None = None


def answer(shard: GroupTable, request: ShareHeartbeat, future: Future[Any]) -> Result:
    """Handles one heartbeat, whose `future` may be parked; a refusal is an answer with the reason as text."""
    try:
        return heartbeat(shard, request, future)
    except KafkaError as error:
        return Result(response=refused(error.code, error.message))


def refused(error: ErrorCode, message: str | None = None) -> ShareGroupHeartbeatResponse:
    """The answer to a heartbeat that is not accepted."""
    return ShareGroupHeartbeatResponse(error_code=error, error_message=message)


def heartbeat(shard: GroupTable, request: ShareHeartbeat, future: Future[Any]) -> Result:
    """Handles one heartbeat. Raises KafkaError to refuse."""
    group = shard.find(ShareEpochs, request.group_id)
    if group is not None:
        member = group.members.get(request.member_id)
        if member is not None and _is_settled(group, member, request):
            restart_session(shard, request.group_id, request.member_id)
            return Result(response=_response(shard, request.group_id, member))
    _check(request)
    if request.member_epoch == LEAVE_EPOCH:
        return _leave(shard, request)
    return _step(shard, request, future)


def _is_settled(group: ShareEpochs, member: ShareMember, request: ShareHeartbeat) -> bool:
    metadata = member.metadata
    return (
        request.topic_names is None
        and request.rack_id is None
        and member.current.member_epoch == request.member_epoch == group.target_epoch == group.group_epoch
        and metadata.client_id == request.client_id
        and metadata.client_host == request.client_host
    )


def _check(request: ShareHeartbeat) -> None:
    """Raises INVALID_REQUEST."""
    if not request.member_id.strip():
        raise _invalid("MemberId can't be empty.")
    if not request.group_id.strip():
        raise _invalid("GroupId can't be empty.")
    if request.rack_id is not None and not request.rack_id.strip():
        raise _invalid("RackId can't be empty.")
    if request.member_epoch == JOIN_EPOCH:
        if not request.topic_names:
            raise _invalid("SubscribedTopicNames must be set in first request.")
    elif request.member_epoch < LEAVE_EPOCH:
        raise _invalid("MemberEpoch is invalid.")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


# -- joining and staying -----------------------------------------------------------------------------------------


def _step(shard: GroupTable, request: ShareHeartbeat, future: Future[Any]) -> Result:
    group_id, member_id = request.group_id, request.member_id
    update = ShareUpdate(shard, _open(shard, request))
    before = _enter(shard, update.group, request)
    changed = update.put_metadata(member_id, _metadata(before, request))
    update.refresh(bump=changed)
    update.retarget()
    member = update.reconcile(member_id)
    update.check_room(member_id)
    restart_session(shard, group_id, member_id)
    states, names = shard.share_states, request.topic_names
    if states is not None and names is not None and waits_for(update.partitions, names):
        return _park(shard, states, request, future, update)
    response = _response(shard, group_id, member)
    if _is_news(before, member, request):
        response.assignment = _assignment(member)
    return Result(records=update.records, response=response, on_complete=follow_when_durable(shard, group_id))


def _is_news(before: ShareMember | None, member: ShareMember, request: ShareHeartbeat) -> bool:
    """True if the member cannot know its assignment yet: it rejoined, its assignment changed or a response was lost."""
    return (
        before is None
        or request.topic_names is not None
        or before.current.member_epoch != request.member_epoch
        or before.current.assigned != member.current.assigned
    )


def _open(shard: GroupTable, request: ShareHeartbeat) -> ShareEpochs:
    """The group that the request is for; a join creates it."""
    group_id = request.group_id
    group = shard.find(ShareEpochs, group_id)
    if group is not None:
        return group
    shard.drop_if_abandoned(group_id)
    if group_id in shard.groups:
        raise not_share(group_id)
    if request.member_epoch != JOIN_EPOCH:
        raise not_found(group_id)
    shard.check_group_bound()
    return ShareEpochs(group_id)


def _enter(shard: GroupTable, group: ShareEpochs, request: ShareHeartbeat) -> ShareMember | None:
    """The member before this heartbeat; None for a new one. Raises KafkaError if it may not do what it asks."""
    if request.member_epoch != JOIN_EPOCH:
        member = group.member(request.member_id)
        _check_epoch(member, request.member_epoch)
        return member
    known = group.members.get(request.member_id)
    if known is None and len(group.members) >= shard.config.share_group_size_max:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The share group has reached its maximum capacity of {shard.config.share_group_size_max} members.",
        )
    return known


def _check_epoch(member: ShareMember, received: int) -> None:
    """Raises FENCED_MEMBER_EPOCH, unless the epoch is old only because the last response was lost."""
    current = member.current
    if received in (current.member_epoch, current.previous_member_epoch):
        return
    relation = "greater" if received > current.member_epoch else "smaller"
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The share group member has a {relation} member epoch ({received}) than the one known by the group "
        f"coordinator ({current.member_epoch}). The member must abandon all its partitions and rejoin.",
    )


def _metadata(before: ShareMember | None, request: ShareHeartbeat) -> ShareMetadata:
    known = ShareMetadata() if before is None else before.metadata
    return ShareMetadata(
        rack_id=request.rack_id if request.rack_id is not None else known.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        topic_names=request.topic_names if request.topic_names is not None else known.topic_names,
    )


def _response(shard: GroupTable, group_id: str, member: ShareMember) -> ShareGroupHeartbeatResponse:
    return ShareGroupHeartbeatResponse(
        member_id=member.member_id,
        member_epoch=member.current.member_epoch,
        heartbeat_interval_ms=shard.environment.share_heartbeat_interval_ms(shard.config, group_id),
    )


def _assignment(member: ShareMember) -> Assignment:
    return Assignment(topic_partitions=to_structs(TopicPartitions, member.current.assigned))


# -- subscriptions that wait for share state ---------------------------------------------------------------------


def _park(
    shard: GroupTable,
    states: PartitionStates[GroupTable],
    request: ShareHeartbeat,
    future: Future[Any],
    update: ShareUpdate,
) -> Result:
    def joined(error: ErrorCode) -> None:
        if error:
            complete(future, refused(error))
            return
        states.wait(request.group_id, lambda: _resume(shard, request, future))
        follow(shard, request.group_id)

    states.park(future, refused)
    return Result(records=update.records, on_complete=joined)


def _resume(shard: GroupTable, request: ShareHeartbeat, future: Future[Any]) -> None:
    shard.schedule(0, partial(_tell, shard, request, future))


def _tell(shard: GroupTable, request: ShareHeartbeat, future: Future[Any]) -> Result:
    """Answers with the member's current assignment."""
    group = shard.find(ShareEpochs, request.group_id)
    if group is None or request.member_id not in group.members:
        complete(future, refused(ErrorCode.UNKNOWN_MEMBER_ID))
        return Result()
    update = ShareUpdate(shard, group)
    update.retarget()
    member = update.reconcile(request.member_id)
    response = _response(shard, request.group_id, member)
    response.assignment = _assignment(member)
    return Result(
        records=update.records, on_complete=lambda error: complete(future, refused(error) if error else response)
    )


# -- leaving -----------------------------------------------------------------------------------------------------


def _leave(shard: GroupTable, request: ShareHeartbeat) -> Result:
    group_id = request.group_id
    group = shard.find(ShareEpochs, group_id)
    if group is None:
        raise not_share(group_id) if group_id in shard.groups else not_found(group_id)
    group.member(request.member_id)
    response = ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
    return remove(shard, group, request.member_id, response)
