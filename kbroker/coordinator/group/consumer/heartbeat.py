"""ConsumerGroupHeartbeat (KIP-848): the one request with which members join, rebalance, stay and leave.

A heartbeat takes these steps: the member is added or updated; the group epoch grows if that or the topics changed the
group; the target is computed if it is older than the group epoch; the member moves towards its target; the answer says
what it owns now. An idle member's heartbeat takes none of them: it only renews the session.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kbroker.coordinator.group.classic.generation import ClassicGeneration
from kbroker.coordinator.group.consumer import conversion, session
from kbroker.coordinator.group.consumer.assignors import check_assignor
from kbroker.coordinator.group.consumer.epochs import ConsumerEpochs
from kbroker.coordinator.group.consumer.members import new_member_id
from kbroker.coordinator.group.consumer.state import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerMember,
    MemberMetadata,
    MemberState,
)
from kbroker.coordinator.group.consumer.update import ConsumerUpdate
from kbroker.coordinator.group.table import GroupTable
from kbroker.coordinator.group.topic_partitions import Partitions, is_subset, to_structs
from kbroker.coordinator.runtime.result import Result
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.apis.groups.k68_consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """A ConsumerGroupHeartbeat. None and -1: unchanged."""

    group_id: str
    member_id: str
    member_epoch: int
    client_id: str
    client_host: str
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topic_names: frozenset[str] | None = None
    topic_regex: str | None = None  # "": no longer
    server_assignor: str | None = None
    owned: Partitions | None = None
    makes_member_id: bool = False  # v1+: the client generates its id

    @property
    def is_idle(self) -> bool:
        """True if no field has changed."""
        return (
            self.topic_names is None
            and self.owned is None
            and self.topic_regex is None
            and self.server_assignor is None
            and self.rack_id is None
            and self.rebalance_timeout_ms == -1
        )

    @property
    def is_full(self) -> bool:
        """True if all fields are set: at a join, or after an error whose effect the member does not know."""
        return self.member_epoch == JOIN_EPOCH or (
            self.rebalance_timeout_ms != -1
            and self.owned is not None
            and (self.topic_names is not None or self.topic_regex is not None)
        )


def answer(shard: GroupTable, request: ConsumerHeartbeat) -> Result:
    """Handles one heartbeat; a refusal is an answer with the reason as text."""
    try:
        return heartbeat(shard, request)
    except KafkaError as error:
        return Result(response=ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message))


def heartbeat(shard: GroupTable, request: ConsumerHeartbeat) -> Result:
    """Handles one heartbeat. Raises KafkaError to refuse."""
    group = shard.find(ConsumerEpochs, request.group_id)
    if request.is_idle and group is not None:
        member = group.members.get(request.member_id)
        if member is not None and _is_settled(group, member, request, request.client_id, request.client_host):
            session.restart_session(shard, request.group_id, member)
            return Result(response=_response(shard, request.group_id, member))
    _check(shard, request)
    if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
        return _leave(shard, group, request)
    return _step(shard, group, request)


def renew_session(
    shard: GroupTable, request: ConsumerGroupHeartbeatRequest, client_id: str, client_host: str
) -> ConsumerGroupHeartbeatResponse | None:
    """The answer to a member that sends nothing new and for which there is no news; None: `answer` must decide.

    Any thread may call it: it reads single values, each of which was true a moment ago, and moves a deadline.
    """
    if (
        request.subscribed_topic_names is not None
        or request.topic_partitions is not None
        or request.subscribed_topic_regex is not None
        or request.server_assignor is not None
        or request.rack_id is not None
        or request.rebalance_timeout_ms != -1
    ):
        return None
    group = shard.find(ConsumerEpochs, request.group_id)
    if group is None:
        return None
    member = group.members.get(request.member_id)
    if member is None or not _is_settled(group, member, request, client_id, client_host):
        return None
    if not session.renew_session(shard, request.group_id, request.member_id):
        return None
    return _response(shard, request.group_id, member)


def _is_settled(
    group: ConsumerEpochs,
    member: ConsumerMember,
    request: ConsumerHeartbeat | ConsumerGroupHeartbeatRequest,
    client_id: str,
    client_host: str,
) -> bool:
    current, metadata = member.current, member.metadata
    return (
        current.member_epoch == request.member_epoch == group.assignment_epoch == group.epoch
        and current.state is MemberState.STABLE
        and metadata.classic is None
        and metadata.client_host == client_host
        and metadata.client_id == client_id
        and (request.instance_id is None or request.instance_id == metadata.instance_id)
    )


# -- validation --------------------------------------------------------------------------------------------------


def _check(shard: GroupTable, request: ConsumerHeartbeat) -> None:
    """Raises INVALID_REQUEST, UNSUPPORTED_ASSIGNOR or, for a join, INVALID_REGULAR_EXPRESSION."""
    if not request.group_id.strip():
        raise _invalid("GroupId can't be empty.")
    if request.instance_id is not None and not request.instance_id.strip():
        raise _invalid("InstanceId can't be empty.")
    if request.rack_id is not None and not request.rack_id.strip():
        raise _invalid("RackId can't be empty.")
    if not request.member_id.strip() and (request.makes_member_id or request.member_epoch != JOIN_EPOCH):
        raise _invalid("MemberId can't be empty.")
    if request.member_epoch == JOIN_EPOCH:
        _check_join(request)
    elif request.member_epoch < LEAVE_STATIC_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    elif request.member_epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    if request.server_assignor is not None:
        check_assignor(request.server_assignor)
    if request.member_epoch == JOIN_EPOCH:
        _check_regex(shard, request)


def _check_regex(shard: GroupTable, request: ConsumerHeartbeat) -> None:
    if request.topic_regex:
        shard.environment.regexes.check(request.topic_regex)


def _check_join(request: ConsumerHeartbeat) -> None:
    if request.rebalance_timeout_ms == -1:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    if request.owned is None or request.owned:
        raise _invalid("TopicPartitions must be empty when (re-)joining.")
    if request.topic_names is None and request.topic_regex is None:
        raise _invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _not_a_consumer_group(group_id: str) -> KafkaError:
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")


# -- leaving -----------------------------------------------------------------------------------------------------


def _leave(shard: GroupTable, group: ConsumerEpochs | None, request: ConsumerHeartbeat) -> Result:
    if group is None:
        raise _not_a_consumer_group(request.group_id)
    member = group.member(request.member_id, request.instance_id)
    response = ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
    if request.member_epoch == LEAVE_STATIC_EPOCH:
        return session.leave_temporarily(group, member, response)
    return session.remove(shard, group, request.member_id, response)


# -- joining and staying -----------------------------------------------------------------------------------------


def _step(shard: GroupTable, group: ConsumerEpochs | None, request: ConsumerHeartbeat) -> Result:
    update = _open(shard, group, request)
    member_id = request.member_id or new_member_id()
    before = _enter(shard, update, request, member_id)
    changed = update.put_metadata(member_id, _metadata(before, request))
    if changed or update.group.topics is None:
        update.refresh(bump=changed)
    update.retarget()
    member = update.reconcile(member_id, request.owned)
    update.check_room(member_id)
    session.restart_session(shard, request.group_id, member)
    if before is None or member.current is not before.current:
        session.follow_revocation(shard, request.group_id, member)
    response = _response(shard, request.group_id, member)
    if request.is_full or _is_news(before, member, request):
        response.assignment = Assignment(topic_partitions=to_structs(TopicPartitions, member.current.assigned))
    return Result(records=update.records, response=response)


def _is_news(before: ConsumerMember | None, member: ConsumerMember, request: ConsumerHeartbeat) -> bool:
    """True if the member cannot know its assignment yet: it has changed, or a response was lost."""
    return (
        before is None
        or before.current.member_epoch != request.member_epoch
        or before.current.assigned != member.current.assigned
    )


def _open(shard: GroupTable, group: ConsumerEpochs | None, request: ConsumerHeartbeat) -> ConsumerUpdate:
    """The group that the request is for; a join creates it, or turns a classic group into it."""
    if group is not None:
        return ConsumerUpdate(shard, group)
    group_id = request.group_id
    classic = shard.find(ClassicGeneration, group_id)
    if request.member_epoch != JOIN_EPOCH or (classic is None and group_id in shard.groups):
        raise _not_a_consumer_group(group_id)
    if classic is None:
        shard.check_group_bound()
        return ConsumerUpdate(shard, ConsumerEpochs(group_id))
    upgraded, records = conversion.upgrade(shard, classic)
    session.restore_timers(shard, upgraded)
    return ConsumerUpdate(shard, upgraded, records)


def _enter(
    shard: GroupTable, update: ConsumerUpdate, request: ConsumerHeartbeat, member_id: str
) -> ConsumerMember | None:
    """The member before this heartbeat; None for a new one. Raises KafkaError if it may not do what it asks."""
    group, instance_id = update.group, request.instance_id
    member = group.members.get(member_id)
    if request.member_epoch != JOIN_EPOCH:
        member = group.member(member_id, instance_id)
        _check_epoch(member, request)
        _check_regex(shard, request)
        return member
    holder_id = None if instance_id is None else group.static_members.get(instance_id)
    if holder_id is not None and holder_id != member_id:
        holder = group.members[holder_id]
        if not holder.is_classic and holder.current.member_epoch != LEAVE_STATIC_EPOCH:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance "
                f"id is owned by {holder_id} member.",
            )
        update.replace_static(holder, member_id)
        return update.members[member_id]
    if member is None and len(group.members) >= shard.config.consumer_group_size_max:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {shard.config.consumer_group_size_max} members.",
        )
    # A known member that rejoins owns nothing now, and gets what is still assigned to it.
    return member


def _check_epoch(member: ConsumerMember, request: ConsumerHeartbeat) -> None:
    """Raises FENCED_MEMBER_EPOCH, unless the epoch is old only because the last response was lost."""
    current, received = member.current, request.member_epoch
    if received == current.member_epoch:
        return
    lost_a_response = (
        received == current.previous_member_epoch
        and request.owned is not None
        and is_subset(request.owned, current.assigned)
    )
    if received > current.member_epoch or not lost_a_response:
        relation = "greater" if received > current.member_epoch else "smaller"
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a {relation} member epoch ({received}) than the one known by the group "
            f"coordinator ({current.member_epoch}). The member must abandon all its partitions and rejoin.",
        )


def _metadata(before: ConsumerMember | None, request: ConsumerHeartbeat) -> MemberMetadata:
    known = MemberMetadata() if before is None else before.metadata
    return replace(
        known,
        instance_id=request.instance_id if request.instance_id is not None else known.instance_id,
        rack_id=request.rack_id if request.rack_id is not None else known.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        topic_names=request.topic_names if request.topic_names is not None else known.topic_names,
        topic_regex=known.topic_regex if request.topic_regex is None else request.topic_regex or None,
        rebalance_timeout_ms=(
            request.rebalance_timeout_ms if request.rebalance_timeout_ms != -1 else known.rebalance_timeout_ms
        ),
        server_assignor=request.server_assignor if request.server_assignor is not None else known.server_assignor,
        classic=None,
    )


def _response(shard: GroupTable, group_id: str, member: ConsumerMember) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        member_id=member.member_id,
        member_epoch=member.current.member_epoch,
        heartbeat_interval_ms=shard.environment.heartbeat_interval_ms(shard.config, group_id),
    )
