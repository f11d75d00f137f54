"""One decision on a consumer group (KIP-848)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from kbroker.coordinator.group.assignor import MemberSpec
from kbroker.coordinator.group.consumer.assignors import ASSIGNORS, DEFAULT_ASSIGNOR
from kbroker.coordinator.group.consumer.epochs import ConsumerEpochs
from kbroker.coordinator.group.consumer.members import Subscription, names_of, subscription_of
from kbroker.coordinator.group.consumer.reconciliation import reconcile
from kbroker.coordinator.group.consumer.state import (
    ConsumerMember,
    CurrentRecord,
    GroupEpochRecord,
    MemberMetadata,
    MemberRecord,
    RegexRecord,
    ResolvedRegex,
    TargetRecord,
    TopicMetadataRecord,
)
from kbroker.coordinator.group.records import Record
from kbroker.coordinator.group.table import GroupTable
from kbroker.coordinator.group.topic_partitions import NO_PARTITIONS, Partitions
from kbroker.coordinator.group.update import GroupUpdate


class ConsumerUpdate(GroupUpdate[ConsumerEpochs, ConsumerMember, Subscription]):
    """Call the steps in the order in which they are defined."""

    MEMBER = ConsumerMember

    def __init__(self, shard: GroupTable, group: ConsumerEpochs, records: list[Record] | None = None) -> None:
        super().__init__(shard, group, records)
        self.resolved = group.resolved
        self.topics = group.topics or {}

    @staticmethod
    def subscription_of(metadata: MemberMetadata) -> Subscription:
        return subscription_of(metadata)

    @staticmethod
    def names_in(subscription: Subscription) -> frozenset[str]:
        return subscription.topic_names

    def replace_static(self, old: ConsumerMember, member_id: str) -> None:
        """Gives the place of a static member, its target and its partitions, to a new member id."""
        target = self.target.get(old.member_id, NO_PARTITIONS)
        self.remove(old.member_id)
        group_id = self.group.group_id
        current = replace(old.current, member_epoch=0, previous_member_epoch=0)
        self.members[member_id] = ConsumerMember(member_id, old.metadata, current)
        self._subscriptions[subscription_of(old.metadata)] += 1
        self.target = {**self.target, member_id: target}
        self.records += [
            MemberRecord(group_id, member_id, old.metadata),
            TargetRecord(group_id, member_id, target),
            CurrentRecord(group_id, member_id, current),
        ]

    # -- topics and epochs ---------------------------------------------------------------------------------------

    def refresh(self, *, bump: bool, changed: Collection[str] = ()) -> None:
        """Begins a new group epoch if the subscribed topics or (`bump`) the members have changed.

        `changed` are topics that were created or deleted: expressions are matched against these.
        """
        self._resolve(changed)
        topics = self._existing(names_of(self._subscriptions, self.resolved))
        if topics != self.topics:
            self.topics = topics
            self.records.append(TopicMetadataRecord(self.group.group_id, topics))
            bump = True
        if bump:
            self.epoch += 1
            self.records.append(GroupEpochRecord(self.group.group_id, self.epoch))

    def _resolve(self, changed: Collection[str]) -> None:
        used = {subscription.regex for subscription in self._subscriptions if subscription.regex is not None}
        if not used and not self.resolved:
            return
        environment, group_id = self._shard.environment, self.group.group_id
        resolved = {regex: known for regex, known in self.resolved.items() if regex in used}
        self.records += [RegexRecord(group_id, regex, None) for regex in self.resolved.keys() - used]
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
        self.resolved = resolved

    def retarget(self) -> None:
        """Computes the target assignment if it is older than the group epoch and the assignment interval is over.

        Until then members keep the last target, and new ones own nothing: changes of many members at about the same
        time take one computation.
        """
        if self.epoch <= self.target_epoch or self._assigned_just_now():
            return
        topic_ids = {
            subscription: frozenset(
                self.topics[name].topic_id
                for name in names_of({subscription: 1}, self.resolved)
                if name in self.topics
            )
            for subscription in self._subscriptions
        }
        specs = {
            member_id: MemberSpec(
                member.metadata.instance_id,
                topic_ids[subscription_of(member.metadata)],
                self.target.get(member_id, NO_PARTITIONS),
            )
            for member_id, member in self.members.items()
        }
        name = self.group.assignor_name(self.members)
        assign = ASSIGNORS.get(name, ASSIGNORS[DEFAULT_ASSIGNOR])
        self._put_target(assign(specs, {info.topic_id: info.partition_count for info in self.topics.values()}))

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
            self.target.get(member_id, NO_PARTITIONS),
            self.group.free_for(member_id),
            owned,
        )
        if current is not member.current:
            self.put_current(member_id, current)
        return self.members[member_id]
