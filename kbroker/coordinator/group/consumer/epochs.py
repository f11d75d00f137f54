"""Epochs, topics and target of a consumer group (KIP-848).

Three epochs. The group epoch grows with every change of members, subscriptions or topics. The assignment epoch is the
group epoch that the target was computed for. Each member's own epoch follows the assignment epoch as it reconciles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from kbroker.coordinator.group.consumer.members import ConsumerMembers
from kbroker.coordinator.group.consumer.state import (
    ConsumerGroupRecord,
    ConsumerMember,
    CurrentRecord,
    GroupEpochRecord,
    MemberRecord,
    RegexRecord,
    TargetEpochRecord,
    TargetRecord,
    TopicMetadataRecord,
)
from kbroker.coordinator.group.memory import of_consumer_member, of_partitions, of_regex, of_topics
from kbroker.coordinator.group.offsets.committed import GroupOffsets
from kbroker.coordinator.group.recorded_state import RecordedState, live_current, live_metadata
from kbroker.coordinator.group.topic_partitions import NO_PARTITIONS, Partitions, TopicInfo, difference


class ConsumerGroupState(Enum):
    """States of a consumer group, by the names that describe calls show."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"  # the target is older than the group epoch
    RECONCILING = "Reconciling"  # some member has not reached the target
    STABLE = "Stable"
    DEAD = "Dead"


class ConsumerEpochs(ConsumerMembers, RecordedState[ConsumerGroupRecord, ConsumerMember]):
    """Bookkeeping: it sets no timers and writes no records."""

    def __init__(self, group_id: str, offsets: GroupOffsets | None = None) -> None:
        super().__init__(group_id)
        self.offsets = GroupOffsets() if offsets is None else offsets
        self.epoch: int | None = None  # None: no record of the group itself yet
        self.assignment_epoch: int | None = None
        self.assigned_ms: int | None = None  # when the target was computed; None: before the last load
        self.topics: Mapping[str, TopicInfo] | None = None  # subscribed ones that exist
        self.target: dict[str, Partitions] = {}

    @property
    def group_epoch(self) -> int:
        """The group epoch, 0 before the first."""
        return self.epoch or 0

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

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """True if some of the member's target still belongs to others."""
        missing = difference(self.target.get(member.member_id, NO_PARTITIONS), member.current.assigned)
        return self.free_for(member.member_id)(missing) != missing

    # -- replay --------------------------------------------------------------------------------------------------

    @staticmethod
    def weight_in(state: Any, kind: type, name: str) -> int:
        if kind in (MemberRecord, CurrentRecord):
            return of_consumer_member(state.members.get(name))
        if kind is TargetRecord:
            return of_partitions(state.target.get(name))
        if kind is RegexRecord:
            return of_regex(name, state.resolved.get(name))
        return of_topics(state.topics) if kind is TopicMetadataRecord else 0

    def _apply_epoch(self, record: GroupEpochRecord) -> None:
        self.epoch = record.epoch

    def _apply_topics(self, record: TopicMetadataRecord) -> None:
        self.topics = record.topics

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

    GROUP_RECORD = GroupEpochRecord
    MEMBER_RECORD = MemberRecord
    CURRENT_RECORD = CurrentRecord
    TARGET_RECORD = TargetRecord
    TARGET_EPOCH_RECORD = TargetEpochRecord
    NAMED = frozenset({MemberRecord, TargetRecord, CurrentRecord, RegexRecord})
    APPLY = {
        GroupEpochRecord: _apply_epoch,
        TopicMetadataRecord: _apply_topics,
        MemberRecord: ConsumerMembers._apply_member,
        TargetEpochRecord: RecordedState.apply_target_epoch,
        TargetRecord: RecordedState.apply_target,
        CurrentRecord: ConsumerMembers._apply_current,
        RegexRecord: ConsumerMembers._apply_regex,
    }
    LIVE = {
        GroupEpochRecord: lambda group, _: group.epoch,
        TopicMetadataRecord: lambda group, _: group.topics,
        MemberRecord: live_metadata,
        TargetEpochRecord: lambda group, _: group.assignment_epoch,
        TargetRecord: lambda group, member_id: group.target.get(member_id),
        CurrentRecord: live_current,
        RegexRecord: lambda group, regex: group.resolved.get(regex),
    }
