"""The members of a consumer group, their subscriptions, and the owner of each partition."""

from __future__ import annotations

import base64
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from kbroker.coordinator.group.consumer.assignors import DEFAULT_ASSIGNOR
from kbroker.coordinator.group.consumer.state import (
    ConsumerMember,
    CurrentAssignment,
    CurrentRecord,
    MemberMetadata,
    MemberRecord,
    RegexRecord,
    ResolvedRegex,
)
from kbroker.coordinator.group.memory import GroupMemory, of_consumer_member, of_names
from kbroker.coordinator.group.requests import JoinRequest
from kbroker.coordinator.group.topic_partitions import Partitions
from kbroker.errors import ErrorCode, KafkaError

PROTOCOL_TYPE = "consumer"


class Subscription(NamedTuple):
    """What a member subscribes to; equal for most members of a group."""

    topic_names: frozenset[str]
    regex: str | None


def subscription_of(metadata: MemberMetadata) -> Subscription:
    """The subscription in a member's metadata."""
    return Subscription(metadata.topic_names, metadata.topic_regex)


class ConsumerMembers:
    """Bookkeeping: it sets no timers and writes no records."""

    protocol_type: str | None = PROTOCOL_TYPE

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.memory = GroupMemory(group_id)
        self.resolved: dict[str, ResolvedRegex] = {}
        self.members: dict[str, ConsumerMember] = {}
        self.static_members: dict[str, str] = {}  # instance id -> member id
        self.subscriptions: Counter[Subscription] = Counter()
        self.classic_count = 0
        self._classic_supporters: Counter[str] = Counter()  # protocol -> classic members that support it
        self._owners: dict[bytes, dict[int, str]] = {}
        self._names: frozenset[str] | None = None  # all subscribed topics; None: not computed yet

    @property
    def has_regex(self) -> bool:
        """True if a member subscribes by a regular expression."""
        return any(subscription.regex is not None for subscription in self.subscriptions)

    def subscribes_to(self, topic: str) -> bool:
        """True if a member subscribes to `topic`, by name or by an expression that matched it."""
        if self._names is None:
            self._names = names_of(self.subscriptions, self.resolved)
        return topic in self._names

    def subscribed(self, topics: Collection[str]) -> set[str]:
        """Those of the topics that members subscribe to."""
        return {topic for topic in topics if self.subscribes_to(topic)}

    def member(self, member_id: str, instance_id: str | None = None) -> ConsumerMember:
        """The member that a request names.

        Raises UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if another member id has taken the instance id over.
        """
        if instance_id is not None:
            holder = self.static_members.get(instance_id)
            if holder is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
            if holder != member_id:
                raise KafkaError(
                    ErrorCode.FENCED_INSTANCE_ID,
                    f"Static member {member_id} with instance id {instance_id} was fenced by member {holder}.",
                )
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def assignor_name(self, members: Mapping[str, ConsumerMember] | None = None) -> str:
        """The assignor that most members ask for; a member that asks for none has no vote."""
        asked = (member.metadata.server_assignor for member in (members or self.members).values())
        votes = Counter(name for name in asked if name is not None)
        return votes.most_common(1)[0][0] if votes else DEFAULT_ASSIGNOR

    def supports_classic(self, protocol_type: str, names: set[str]) -> bool:
        """True if a member of the classic protocol with these protocols can join."""
        return protocol_type == PROTOCOL_TYPE and any(
            self._classic_supporters[name] == self.classic_count for name in names
        )

    def only_classic_without(self, member_ids: Collection[str]) -> bool:
        """True if these members include the last that speak the consumer protocol."""
        leaving = sum(not self.members[member_id].is_classic for member_id in member_ids)
        return leaving > 0 and self.classic_count + leaving == len(self.members)

    def free_for(self, member_id: str) -> Callable[[Partitions], Partitions]:
        """A function of partitions: those among them that no member but `member_id` owns."""

        def free(wanted: Partitions) -> Partitions:
            result = {}
            for topic_id, partitions in wanted.items():
                owners = self._owners.get(topic_id)
                if owners:
                    partitions = frozenset(p for p in partitions if owners.get(p, member_id) == member_id)
                if partitions:
                    result[topic_id] = partitions
            return result

        return free

    # -- replay --------------------------------------------------------------------------------------------------

    def _apply_regex(self, record: RegexRecord) -> None:
        self._names = None
        if record.resolved is None:
            self.resolved.pop(record.regex, None)
        else:
            self.resolved[record.regex] = record.resolved

    def _apply_member(self, record: MemberRecord) -> None:
        before = self.members.get(record.member_id)
        if before is not None:
            self._unindex(before)
        if record.metadata is None:
            if before is not None:
                self._release(before)
                del self.members[record.member_id]
            return
        metadata = self._shared(record.metadata)
        member = replace(before, metadata=metadata) if before else ConsumerMember(record.member_id, metadata)
        self.members[record.member_id] = member
        self._index(member)

    def _apply_current(self, record: CurrentRecord) -> None:
        before = self.members.get(record.member_id)
        if before is not None:
            self._release(before)
        if record.current is not None:
            member = replace(before or ConsumerMember(record.member_id), current=record.current)
            self.members[record.member_id] = member
            if before is None:
                self._index(member)
            self._take(member)
        elif before is not None:
            self.members[record.member_id] = replace(before, current=CurrentAssignment())

    def _shared(self, metadata: MemberMetadata) -> MemberMetadata:
        """The metadata with a subscription object that members share, so that a thousand topics are kept once."""
        names = metadata.topic_names
        for subscription in self.subscriptions:
            if subscription.topic_names == names:
                return replace(metadata, topic_names=subscription.topic_names)
        return metadata

    def bytes_of(self, request: JoinRequest) -> int:
        """The bytes of the member that joins again, 0 for a new one; without its subscription."""
        member_id = request.member_id or self.static_members.get(request.group_instance_id or "", "")
        return of_consumer_member(self.members.get(member_id))

    def cost_of(self, metadata: MemberMetadata) -> int:
        """The bytes that a member's subscription would add: 0 if another has the same."""
        known = subscription_of(metadata) in self.subscriptions
        return 0 if known else of_names(metadata.topic_names)

    def _index(self, member: ConsumerMember) -> None:
        metadata = member.metadata
        self._names = None
        self.memory.add(self.cost_of(metadata))
        self.subscriptions[subscription_of(metadata)] += 1
        if metadata.instance_id is not None:
            self.static_members[metadata.instance_id] = member.member_id
        if metadata.classic is not None:
            self.classic_count += 1
            self._classic_supporters.update({name for name, _ in metadata.classic.protocols})

    def _unindex(self, member: ConsumerMember) -> None:
        metadata = member.metadata
        subscription = subscription_of(metadata)
        self._names = None
        self.subscriptions[subscription] -= 1
        if not self.subscriptions[subscription]:
            del self.subscriptions[subscription]
            self.memory.add(-self.cost_of(metadata))
        if metadata.instance_id is not None and self.static_members.get(metadata.instance_id) == member.member_id:
            del self.static_members[metadata.instance_id]
        if metadata.classic is not None:
            self.classic_count -= 1
            self._classic_supporters.subtract({name for name, _ in metadata.classic.protocols})
            self._classic_supporters += Counter()  # drops zeros: clients choose the names

    def _take(self, member: ConsumerMember) -> None:
        for topic_id, partition in _partitions_held(member.current):
            self._owners.setdefault(topic_id, {})[partition] = member.member_id

    def _release(self, member: ConsumerMember) -> None:
        for topic_id, partition in _partitions_held(member.current):
            owners = self._owners.get(topic_id)
            if owners is not None and owners.get(partition) == member.member_id:
                del owners[partition]
                if not owners:
                    del self._owners[topic_id]


def new_member_id() -> str:
    """A new id in Kafka's form: a UUID in URL-safe base64."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):  # a command line tool would take it for an option
            return text


def names_of(subscriptions: Mapping[Subscription, int], resolved: Mapping[str, ResolvedRegex]) -> frozenset[str]:
    """All topics of these subscriptions."""
    if len(subscriptions) == 1:
        (only,) = subscriptions
        if only.regex is None:
            return only.topic_names
    names: set[str] = set()
    for subscription in subscriptions:
        names |= subscription.topic_names
        if subscription.regex is not None and subscription.regex in resolved:
            names |= resolved[subscription.regex].topics
    return frozenset(names)


def _partitions_held(current: CurrentAssignment) -> Iterator[tuple[bytes, int]]:
    for held in (current.assigned, current.pending_revocation):
        for topic_id, partitions in held.items():
            for partition in partitions:
                yield topic_id, partition
