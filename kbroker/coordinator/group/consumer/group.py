"""A group of the consumer protocol (KIP-848): members, epochs, target and ownership.

Three epochs. The group epoch grows with every change of members, subscriptions or topics. The assignment epoch is the
group epoch that the target was computed for. Each member's own epoch follows the assignment epoch as it gets there.

All of it is durable: only `apply` changes it, with a record, at append for live traffic and in offset order for a load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any, NamedTuple

from kbroker.coordinator.group import memory as group_memory
from kbroker.coordinator.group.assignor import DEFAULT_ASSIGNOR
from kbroker.coordinator.group.consumer.state import (
    ConsumerGroupRecord,
    ConsumerMember,
    CurrentAssignment,
    CurrentRecord,
    GroupEpochRecord,
    MemberMetadata,
    MemberRecord,
    RegexRecord,
    ResolvedRegex,
    TargetEpochRecord,
    TargetRecord,
    TopicMetadataRecord,
)
from kbroker.coordinator.group.memory import GroupMemory
from kbroker.coordinator.group.offsets.committed import GroupOffsets
from kbroker.coordinator.group.topic_partitions import NO_PARTITIONS, Partitions, TopicInfo, difference
from kbroker.errors import ErrorCode, KafkaError

PROTOCOL_TYPE = "consumer"


class ConsumerGroupState(Enum):
    """States of a consumer group, by the names that describe calls show."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"  # the target is behind the group
    RECONCILING = "Reconciling"  # some member is behind the target
    STABLE = "Stable"
    DEAD = "Dead"


class Subscription(NamedTuple):
    """What a member subscribes to; equal for most members of a group."""

    topic_names: frozenset[str]
    regex: str | None


def subscription_of(metadata: MemberMetadata) -> Subscription:
    """The subscription in a member's metadata."""
    return Subscription(metadata.topic_names, metadata.topic_regex)


class ConsumerGroup:
    """One consumer group. Pure bookkeeping: no timers are set and no records written here."""

    protocol_type = PROTOCOL_TYPE

    def __init__(self, group_id: str, offsets: GroupOffsets | None = None) -> None:
        self.group_id = group_id
        self.offsets = GroupOffsets() if offsets is None else offsets
        self.memory = GroupMemory(group_id)
        self.epoch: int | None = None  # None: no record of the group itself yet
        self.assignment_epoch: int | None = None
        self.assigned_ms: int | None = None  # when the target was computed; None: before the last load
        self.topics: Mapping[str, TopicInfo] | None = None  # subscribed ones that exist
        self.resolved: dict[str, ResolvedRegex] = {}
        self.members: dict[str, ConsumerMember] = {}
        self.static_members: dict[str, str] = {}  # instance id -> member id
        self.target: dict[str, Partitions] = {}
        self.subscriptions: Counter[Subscription] = Counter()
        self.classic_count = 0
        self._classic_supporters: Counter[str] = Counter()  # protocol -> classic members that support it
        self._owners: dict[bytes, dict[int, str]] = {}
        self._names: frozenset[str] | None = None  # what all subscribe to; None: to be worked out

    # -- what it is ----------------------------------------------------------------------------------------------

    @property
    def group_epoch(self) -> int:
        """The group epoch, 0 before the first."""
        return self.epoch or 0

    @property
    def target_epoch(self) -> int:
        """The epoch of the target assignment, 0 before the first."""
        return self.assignment_epoch or 0

    @property
    def state(self) -> ConsumerGroupState:
        """The state, derived from epochs and members."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        target_epoch = self.target_epoch
        if self.group_epoch > target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled_to(target_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def has_regex(self) -> bool:
        """True if a member subscribes by an expression."""
        return any(subscription.regex is not None for subscription in self.subscriptions)

    @property
    def is_empty(self) -> bool:
        """True if it has no members."""
        return not self.members

    @property
    def is_abandoned(self) -> bool:
        """True if nothing would be lost with this object."""
        return not self.offsets and next(self.live_keys(), None) is None

    def subscribes_to(self, topic: str) -> bool:
        """True if a member subscribes to `topic`, by name or by an expression that matched it."""
        if self._names is None:
            self._names = names_of(self.subscriptions, self.resolved)
        return topic in self._names

    def subscribed(self, topics: Collection[str]) -> set[str]:
        """Those of the topics that members subscribe to."""
        return {topic for topic in topics if self.subscribes_to(topic)}

    # -- members -------------------------------------------------------------------------------------------------

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
        """The assignor that most members ask for; who asks for none has no vote."""
        asked = (member.metadata.server_assignor for member in (members or self.members).values())
        votes = Counter(name for name in asked if name is not None)
        return votes.most_common(1)[0][0] if votes else DEFAULT_ASSIGNOR

    def supports_classic(self, protocol_type: str, names: set[str]) -> bool:
        """True if a member of the classic protocol with these protocols can join."""
        return protocol_type == PROTOCOL_TYPE and any(
            self._classic_supporters[name] == self.classic_count for name in names
        )

    def only_classic_without(self, member_ids: Collection[str]) -> bool:
        """True if these members are the last that speak the consumer protocol; others may be among them."""
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

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """True if some of the member's target still belongs to others."""
        missing = difference(self.target.get(member.member_id, NO_PARTITIONS), member.current.assigned)
        return self.free_for(member.member_id)(missing) != missing

    # -- replay --------------------------------------------------------------------------------------------------

    def apply(self, record: ConsumerGroupRecord) -> None:
        """Applies one record of this group. The only place where its state changes."""
        kind, name = type(record), str(record[1]) if type(record) in _NAMED else ""
        before = self._weight(kind, name)
        _APPLY[kind](self, record)
        self.memory.add(self._weight(kind, name) - before)

    def _weight(self, kind: type, name: str) -> int:
        """The bytes of what records of a key set; subscriptions are counted where they are indexed."""
        if kind in (MemberRecord, CurrentRecord):
            return group_memory.of_consumer_member(self.members.get(name))
        if kind is TargetRecord:
            return group_memory.of_partitions(self.target.get(name))
        if kind is RegexRecord:
            return group_memory.of_regex(name, self.resolved.get(name))
        return group_memory.of_topics(self.topics) if kind is TopicMetadataRecord else 0

    def _apply_epoch(self, record: GroupEpochRecord) -> None:
        self.epoch = record.epoch

    def _apply_topics(self, record: TopicMetadataRecord) -> None:
        self.topics = record.topics

    def _apply_target_epoch(self, record: TargetEpochRecord) -> None:
        self.assignment_epoch = record.epoch

    def _apply_target(self, record: TargetRecord) -> None:
        if record.partitions is None:
            self.target.pop(record.member_id, None)
        else:
            self.target[record.member_id] = record.partitions

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

    def bytes_of(self, member_id: str) -> int:
        """The bytes that a member takes, 0 if there is none; without its subscription."""
        return group_memory.of_consumer_member(self.members.get(member_id))

    def cost_of(self, metadata: MemberMetadata) -> int:
        """The bytes that a member's subscription would add: 0 if another has the same."""
        known = subscription_of(metadata) in self.subscriptions
        return 0 if known else group_memory.of_names(metadata.topic_names)

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

    # -- records -------------------------------------------------------------------------------------------------

    def live_keys(self) -> Iterator[tuple[type, str]]:
        """(record type, member id or expression) of each live record."""
        if self.epoch is not None:
            yield GroupEpochRecord, ""
        if self.topics is not None:
            yield TopicMetadataRecord, ""
        for regex in self.resolved:
            yield RegexRecord, regex
        for member_id in self.members:
            yield MemberRecord, member_id
        for member_id in self.target:
            yield TargetRecord, member_id
        if self.assignment_epoch is not None:
            yield TargetEpochRecord, ""
        for member_id in self.members:
            yield CurrentRecord, member_id

    def record(self, kind: type, name: str) -> ConsumerGroupRecord | None:
        """The record that now says the state of a key; None if there is none."""
        value = _LIVE[kind](self, name)
        if value is None:
            return None
        return _make(kind, self.group_id, name, value)

    def tombstones(self) -> list[ConsumerGroupRecord]:
        """Records that remove the group and all it has; its offsets stay."""
        removed: list[ConsumerGroupRecord] = []
        for kind, name in reversed(list(self.live_keys())):
            if kind is not GroupEpochRecord:
                removed.append(_make(kind, self.group_id, name, None))
        return [*removed, GroupEpochRecord(self.group_id, None)]


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


def _make(kind: type, group_id: str, name: str, value: Any) -> ConsumerGroupRecord:
    record: Any = kind(group_id, name, value) if kind in _NAMED else kind(group_id, value)
    return record  # type: ignore[no-any-return]


def _partitions_held(current: CurrentAssignment) -> Iterator[tuple[bytes, int]]:
    for held in (current.assigned, current.pending_revocation):
        for topic_id, partitions in held.items():
            for partition in partitions:
                yield topic_id, partition


def _live_current(group: ConsumerGroup, member_id: str) -> CurrentAssignment | None:
    member = group.members.get(member_id)
    return None if member is None else member.current


def _live_metadata(group: ConsumerGroup, member_id: str) -> MemberMetadata | None:
    member = group.members.get(member_id)
    return None if member is None else member.metadata


_NAMED = frozenset({MemberRecord, TargetRecord, CurrentRecord, RegexRecord})
_APPLY: dict[type, Callable[[ConsumerGroup, Any], None]] = {
    GroupEpochRecord: ConsumerGroup._apply_epoch,
    TopicMetadataRecord: ConsumerGroup._apply_topics,
    MemberRecord: ConsumerGroup._apply_member,
    TargetEpochRecord: ConsumerGroup._apply_target_epoch,
    TargetRecord: ConsumerGroup._apply_target,
    CurrentRecord: ConsumerGroup._apply_current,
    RegexRecord: ConsumerGroup._apply_regex,
}
_LIVE: dict[type, Callable[[ConsumerGroup, str], Any]] = {
    GroupEpochRecord: lambda group, _: group.epoch,
    TopicMetadataRecord: lambda group, _: group.topics,
    MemberRecord: _live_metadata,
    TargetEpochRecord: lambda group, _: group.assignment_epoch,
    TargetRecord: lambda group, member_id: group.target.get(member_id),
    CurrentRecord: _live_current,
    RegexRecord: lambda group, regex: group.resolved.get(regex),
}
