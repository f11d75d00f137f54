"""ConsumerGroupHeartbeat (KIP-848): the one request by which members join, rebalance, stay and leave.

A heartbeat takes these steps: the member is added or updated; the group epoch grows if that or the topics changed the
group; the target is computed if it is behind; the member moves towards its target; the answer says where it is now.
An idle member's heartbeat takes none of them: it only renews the session.
"""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kbroker.coordinator.group.assignor import check_assignor
from kbroker.coordinator.group.consumer import conversion as group_conversion
from kbroker.coordinator.group.consumer import session as consumer_session
from kbroker.coordinator.group.consumer.group import ConsumerGroup
from kbroker.coordinator.group.consumer.state import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerMember,
    MemberMetadata,
    MemberState,
)
from kbroker.coordinator.group.consumer.update import GroupUpdate
from kbroker.coordinator.group.share.group import ShareGroup
from kbroker.coordinator.group.topic_partitions import Partitions, is_subset, to_structs
from kbroker.coordinator.runtime.result import Result
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.apis.k68_consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

if TYPE_CHECKING:
    from kbroker.coordinator.group.shard import Group, GroupShard


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
    makes_member_id: bool = False  # v1+: the client gives itself its id

    @property
    def is_idle(self) -> bool:
        """True if it says nothing new."""
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
        """True if it says everything: after a join, or when the member does not know what got lost."""
        return self.member_epoch == JOIN_EPOCH or (
            self.rebalance_timeout_ms != -1
            and self.owned is not None
            and (self.topic_names is not None or self.topic_regex is not None)
        )


def answer(shard: GroupShard, request: ConsumerHeartbeat) -> Result:
    """Handles one heartbeat; a refusal is an answer with the reason in words."""
    try:
        return heartbeat(shard, request)
    except KafkaError as error:
        return Result(response=ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message))


def heartbeat(shard: GroupShard, request: ConsumerHeartbeat) -> Result:
    """Handles one heartbeat. Raises KafkaError to refuse."""
    group = shard.groups.get(request.group_id)
    if request.is_idle and isinstance(group, ConsumerGroup):
        member = group.members.get(request.member_id)
        if member is not None and _has_nothing_to_do(group, member, request, request.client_id, request.client_host):
            consumer_session.restart_session(shard, request.group_id, member)
            return Result(response=_response(shard, request.group_id, member))
    _check(shard, request)
    if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
        return _leave(shard, group, request)
    return _step(shard, group, request)


def renew_session(
    shard: GroupShard, request: ConsumerGroupHeartbeatRequest, client_id: str, client_host: str
) -> ConsumerGroupHeartbeatResponse | None:
    """The answer to a member that says nothing new and has nothing to do; None if it is any other and needs `answer`.

    Any thread may call it: it looks at single values, each of which was true a moment ago, and moves a deadline.
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
    group = shard.groups.get(request.group_id)
    if not isinstance(group, ConsumerGroup):
        return None
    member = group.members.get(request.member_id)
    if member is None or not _has_nothing_to_do(group, member, request, client_id, client_host):
        return None
    if not consumer_session.renew_session(shard, request.group_id, request.member_id):
        return None
    return _response(shard, request.group_id, member)


def _has_nothing_to_do(
    group: ConsumerGroup,
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


# -- what may be asked -------------------------------------------------------------------------------------------


def _check(shard: GroupShard, request: ConsumerHeartbeat) -> None:
    """Raises INVALID_REQUEST or UNSUPPORTED_ASSIGNOR, for a join INVALID_REGULAR_EXPRESSION too."""
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


def _check_regex(shard: GroupShard, request: ConsumerHeartbeat) -> None:
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


def _leave(shard: GroupShard, group: object, request: ConsumerHeartbeat) -> Result:
    if not isinstance(group, ConsumerGroup):
        raise _not_a_consumer_group(request.group_id)
    member = group.member(request.member_id, request.instance_id)
    response = ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
    if request.member_epoch == LEAVE_STATIC_EPOCH:
        return consumer_session.leave_for_a_while(group, member, response)
    return consumer_session.remove(shard, group, request.member_id, response)


# -- joining and staying -----------------------------------------------------------------------------------------


def _step(shard: GroupShard, found: Group | None, request: ConsumerHeartbeat) -> Result:
    update = _open(shard, found, request)
    member_id = request.member_id or new_member_id()
    before = _enter(shard, update, request, member_id)
    changed = update.put_metadata(member_id, _metadata(before, request))
    if changed or update.group.topics is None:
        update.refresh(bump=changed)
    update.retarget()
    member = update.reconcile(member_id, request.owned)
    shard.check_said(update, member_id)
    consumer_session.restart_session(shard, request.group_id, member)
    if before is None or member.current is not before.current:
        consumer_session.follow_revocation(shard, request.group_id, member)
    response = _response(shard, request.group_id, member)
    if request.is_full or _is_news(before, member, request):
        response.assignment = Assignment(topic_partitions=to_structs(TopicPartitions, member.current.assigned))
    return Result(records=update.records, response=response)


def _is_news(before: ConsumerMember | None, member: ConsumerMember, request: ConsumerHeartbeat) -> bool:
    """True if the member cannot know its assignment yet: it has changed, or an answer was lost."""
    return (
        before is None
        or before.current.member_epoch != request.member_epoch
        or before.current.assigned != member.current.assigned
    )


def _open(
    shard: GroupShard, found: Group | None, request: ConsumerHeartbeat
) -> GroupUpdate:
    """The group that the request is for; a join makes it, or turns a classic one into it."""
    if isinstance(found, ConsumerGroup):
        return GroupUpdate(shard, found)
    if request.member_epoch != JOIN_EPOCH or isinstance(found, ShareGroup):
        raise _not_a_consumer_group(request.group_id)
    if found is None:
        shard.check_group_bound()
        return GroupUpdate(shard, ConsumerGroup(request.group_id))
    group, records = group_conversion.upgrade(shard, found)
    consumer_session.restore_timers(shard, group)
    return GroupUpdate(shard, group, records)


def _enter(
    shard: GroupShard, update: GroupUpdate, request: ConsumerHeartbeat, member_id: str
) -> ConsumerMember | None:
    """The member as it is known; None for a new one. Raises KafkaError if it may not do what it asks."""
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
    # A known member that joins anew owns nothing now, and is told what is still its own.
    return member


def _check_epoch(member: ConsumerMember, request: ConsumerHeartbeat) -> None:
    """Raises FENCED_MEMBER_EPOCH, unless only the answer with the newest epoch can have been lost."""
    current, received = member.current, request.member_epoch
    if received == current.member_epoch:
        return
    lost_an_answer = (
        received == current.previous_member_epoch
        and request.owned is not None
        and is_subset(request.owned, current.assigned)
    )
    if received > current.member_epoch or not lost_an_answer:
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


def _response(shard: GroupShard, group_id: str, member: ConsumerMember) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        member_id=member.member_id,
        member_epoch=member.current.member_epoch,
        heartbeat_interval_ms=shard.environment.heartbeat_interval_ms(shard.config, group_id),
    )


def new_member_id() -> str:
    """A fresh id, in the form of Kafka's: a UUID in URL-safe base64."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):  # it would look like an option to command line tools
            return text
