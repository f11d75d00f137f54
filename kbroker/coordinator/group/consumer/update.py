"""One decision on a consumer group: the records it takes, and the group as they will leave it.

Nothing of the group itself changes here; that happens when the records are replayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from kbroker.coordinator.group.assignor import MemberSpec
from kbroker.coordinator.group.consumer.assignors import ASSIGNORS, DEFAULT_ASSIGNOR
from kbroker.coordinator.group.consumer.epochs import ConsumerEpochs
from kbroker.coordinator.group.consumer.members import names_of, subscription_of
from kbroker.coordinator.group.consumer.reconciliation import reconcile
from kbroker.coordinator.group.consumer.state import (
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
from kbroker.coordinator.group.memory import of_consumer_member, of_names, of_partitions, of_regex, of_topics
from kbroker.coordinator.group.records import Record
from kbroker.coordinator.group.table import GroupTable
from kbroker.coordinator.group.topic_partitions import NO_PARTITIONS, Partitions, TopicInfo


class GroupUpdate:
    """Lives for one operation. Call the steps in the order in which they are defined."""

    def __init__(self, shard: GroupTable, group: ConsumerEpochs, records: list[Record] | None = None) -> None:
        self.records: list[Record] = [] if records is None else records
        self.group = group
        self.members = dict(group.members)
        self.epoch = group.group_epoch
        self.target_epoch = group.target_epoch
        self._shard = shard
        self._target = group.target
        self._subscriptions = Counter(group.subscriptions)
        self._resolved = group.resolved
        self._topics = group.topics or {}

    # -- members -------------------------------------------------------------------------------------------------

    def put_metadata(self, member_id: str, metadata: MemberMetadata) -> bool:
        """Adds or changes a member; True if that changes the group's subscriptions."""
        before = self.members.get(member_id)
        if before is not None and before.metadata == metadata:
            return False
        self.records.append(MemberRecord(self.group.group_id, member_id, metadata))
        if before is None:
            self.members[member_id] = ConsumerMember(member_id, metadata)
        else:
            self.members[member_id] = replace(before, metadata=metadata)
            self._unsubscribe(before)
        self._subscriptions[subscription_of(metadata)] += 1
        return before is None or subscription_of(before.metadata) != subscription_of(metadata)

    def remove(self, member_id: str) -> None:
        """Removes a member with its assignments."""
        member = self.members.pop(member_id)
        self._unsubscribe(member)
        group_id = self.group.group_id
        self.records += [
            CurrentRecord(group_id, member_id, None),
            TargetRecord(group_id, member_id, None),
            MemberRecord(group_id, member_id, None),
        ]

    def replace_static(self, old: ConsumerMember, member_id: str) -> None:
        """Gives the place of a static member, its target and its partitions, to a new member id."""
        target = self._target.get(old.member_id, NO_PARTITIONS)
        self.remove(old.member_id)
        group_id = self.group.group_id
        current = replace(old.current, member_epoch=0, previous_member_epoch=0)
        self.members[member_id] = ConsumerMember(member_id, old.metadata, current)
        self._subscriptions[subscription_of(old.metadata)] += 1
        self._target = {**self._target, member_id: target}
        self.records += [
            MemberRecord(group_id, member_id, old.metadata),
            TargetRecord(group_id, member_id, target),
            CurrentRecord(group_id, member_id, current),
        ]

    def put_current(self, member_id: str, current: CurrentAssignment) -> None:
        """Sets a member's current assignment."""
        self.members[member_id] = replace(self.members[member_id], current=current)
        self.records.append(CurrentRecord(self.group.group_id, member_id, current))

    def _unsubscribe(self, member: ConsumerMember) -> None:
        subscription = subscription_of(member.metadata)
        self._subscriptions[subscription] -= 1
        if not self._subscriptions[subscription]:
            del self._subscriptions[subscription]

    # -- topics and epochs ---------------------------------------------------------------------------------------

    def refresh(self, *, bump: bool, changed: Collection[str] = ()) -> None:
        """Begins a new group epoch if the subscribed topics or (`bump`) the members have changed.

        `changed` are topics that were created or deleted: expressions are matched against these.
        """
        self._resolve(changed)
        catalog = self._shard.environment.topics
        topics: dict[str, TopicInfo] = {}
        for name in names_of(self._subscriptions, self._resolved):
            info = catalog.info(name)
            if info is not None:
                topics[name] = info
        if topics != self._topics:
            self._topics = topics
            self.records.append(TopicMetadataRecord(self.group.group_id, topics))
            bump = True
        if bump:
            self.epoch += 1
            self.records.append(GroupEpochRecord(self.group.group_id, self.epoch))

    def _resolve(self, changed: Collection[str]) -> None:
        used = {subscription.regex for subscription in self._subscriptions if subscription.regex is not None}
        if not used and not self._resolved:
            return
        environment, group_id = self._shard.environment, self.group.group_id
        resolved = {regex: known for regex, known in self._resolved.items() if regex in used}
        self.records += [RegexRecord(group_id, regex, None) for regex in self._resolved.keys() - used]
        for regex in used:
            known = resolved.get(regex)
            if known is None:
                topics = environment.regexes.matching(regex, environment.topics.names())
            else:
                existing = [name for name in changed if environment.topics.info(name) is not None]
                topics = known.topics.difference(changed) | environment.regexes.matching(regex, existing)
            if known is None or known.topics != topics:
                resolved[regex] = ResolvedRegex(topics, self._shard.now_ms())
                self.records.append(RegexRecord(group_id, regex, resolved[regex]))
        self._resolved = resolved

    def retarget(self) -> None:
        """Computes the target assignment if it is older than the group epoch and the assignment interval is over.

        Until then members keep the last target, and new ones own nothing: changes of many members at about the same
        time take one computation.
        """
        if self.epoch <= self.target_epoch or self._assigned_just_now():
            return
        group_id = self.group.group_id
        topic_ids = {
            subscription: frozenset(
                self._topics[name].topic_id
                for name in names_of({subscription: 1}, self._resolved)
                if name in self._topics
            )
            for subscription in self._subscriptions
        }
        specs = {
            member_id: MemberSpec(
                member.metadata.instance_id,
                topic_ids[subscription_of(member.metadata)],
                self._target.get(member_id, NO_PARTITIONS),
            )
            for member_id, member in self.members.items()
        }
        name = self.group.assignor_name(self.members)
        assign = ASSIGNORS.get(name, ASSIGNORS[DEFAULT_ASSIGNOR])
        target = assign(specs, {info.topic_id: info.partition_count for info in self._topics.values()})
        for member_id, partitions in target.items():
            before = self._target.get(member_id)
            if before is None or (before is not partitions and before != partitions):
                self.records.append(TargetRecord(group_id, member_id, partitions))
        self._target = target
        self.target_epoch = self.epoch
        self.records.append(TargetEpochRecord(group_id, self.epoch))

    def _assigned_just_now(self) -> bool:
        assigned_ms = self.group.assigned_ms
        if assigned_ms is None:
            return False
        interval_ms = self._shard.environment.assignment_interval_ms(self._shard.config, self.group.group_id)
        return 0 <= self._shard.now_ms() - assigned_ms < interval_ms

    def reconcile(self, member_id: str, owned: Partitions | None) -> ConsumerMember:
        """Moves a member towards its target as far as possible now, and returns it."""
        member = self.members[member_id]
        current = reconcile(
            member.current,
            self.target_epoch,
            self._target.get(member_id, NO_PARTITIONS),
            self.group.free_for(member_id),
            owned,
        )
        if current is not member.current:
            self.put_current(member_id, current)
        return self.members[member_id]

    # -- memory --------------------------------------------------------------------------------------------------

    def check_room(self, member_id: str) -> None:
        """Raises GROUP_MAX_SIZE_REACHED if there is no memory for the metadata that the member has sent.

        A member that sends nothing new is never refused, whatever the assignment adds.
        """
        known = self.group.members.get(member_id)
        if known is None or known.metadata != self.members[member_id].metadata:
            self._shard.check_room(self.growth(), newcomer=known is None)

    def growth(self) -> int:
        """By how many bytes the group will grow."""
        group, members = self.group, set()
        growth = 0 if group.group_id in self._shard.groups else group.memory.bytes
        for record in self.records:
            if isinstance(record, MemberRecord | CurrentRecord):
                members.add(record.member_id)
            elif isinstance(record, TargetRecord):
                growth += of_partitions(record.partitions) - of_partitions(group.target.get(record.member_id))
            elif isinstance(record, RegexRecord):
                growth += of_regex(record.regex, record.resolved)
                growth -= of_regex(record.regex, group.resolved.get(record.regex))
            elif isinstance(record, TopicMetadataRecord):
                growth += of_topics(record.topics) - of_topics(group.topics)
        for member_id in members:
            growth += of_consumer_member(self.members.get(member_id))
            growth -= of_consumer_member(group.members.get(member_id))
        for subscription in self._subscriptions.keys() - group.subscriptions.keys():
            growth += of_names(subscription.topic_names)
        for subscription in group.subscriptions.keys() - self._subscriptions.keys():
            growth -= of_names(subscription.topic_names)
        return growth
