"""Members, epochs and target of a share group (KIP-932), and the partitions that have share state.

As in a consumer group three epochs follow each other: the group's grows with every change of members, subscriptions or
topics; the target assignment's is the group epoch that it was computed for; each member's own is that of the target
which it has got last. Members may share partitions, so no member has to give one up before another gets it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from enum import Enum
from typing import Any

from kbroker.coordinator.group.memory import (
    GroupMemory,
    of_names,
    of_partitions,
    of_share_member,
    of_state_partitions,
)
from kbroker.coordinator.group.offsets.committed import GroupOffsets
from kbroker.coordinator.group.recorded_state import RecordedState, live_current, live_metadata
from kbroker.coordinator.group.share.state import (
    ShareAssignment,
    ShareCurrentRecord,
    ShareEpoch,
    ShareEpochRecord,
    ShareGroupRecord,
    ShareMember,
    ShareMemberRecord,
    ShareMetadata,
    ShareTargetEpochRecord,
    ShareTargetRecord,
    StatePartitions,
    StatePartitionsRecord,
)
from kbroker.coordinator.group.topic_partitions import Partitions
from kbroker.errors import ErrorCode, KafkaError

PROTOCOL_TYPE = "share"
NO_EPOCH = ShareEpoch(0, 0)
NO_STATE = StatePartitions()


class ShareGroupState(Enum):
    """States of a share group, by the names that describe calls show."""

    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


class ShareEpochs(RecordedState[ShareGroupRecord, ShareMember]):
    """Bookkeeping: it sets no timers and writes no records."""

    protocol_type: str | None = PROTOCOL_TYPE

    def __init__(self, group_id: str, offsets: GroupOffsets | None = None) -> None:
        self.group_id = group_id
        self.offsets = GroupOffsets() if offsets is None else offsets  # empty, unless taken over
        self.memory = GroupMemory(group_id)
        self.epoch: ShareEpoch | None = None  # None: no record of the group itself yet
        self.assignment_epoch: int | None = None
        self.members: dict[str, ShareMember] = {}
        self.target: dict[str, Partitions] = {}
        self.stored_partitions: StatePartitions | None = None  # None: no record of them
        self.subscriptions: Counter[frozenset[str]] = Counter()

    @property
    def group_epoch(self) -> int:
        """The group epoch, 0 before the first."""
        return (self.epoch or NO_EPOCH).epoch

    @property
    def metadata_hash(self) -> int:
        """The hash of the subscribed topics in this epoch."""
        return (self.epoch or NO_EPOCH).metadata_hash

    @property
    def partitions(self) -> StatePartitions:
        """The partitions that have share state."""
        return self.stored_partitions or NO_STATE

    @property
    def state(self) -> ShareGroupState:
        """The state, derived from the members."""
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    def is_about(self, topics: Collection[str]) -> bool:
        """True if a member subscribes to one of the topics, or one has share state."""
        subscribed = (topic in names for names in self.subscriptions for topic in topics)
        return any(subscribed) or any(name in topics for name in self.partitions.names)

    def member(self, member_id: str) -> ShareMember:
        """The member that a request names; raises UNKNOWN_MEMBER_ID."""
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    # -- replay --------------------------------------------------------------------------------------------------

    @staticmethod
    def weight_in(state: Any, kind: type, name: str) -> int:
        if kind in (ShareMemberRecord, ShareCurrentRecord):
            return of_share_member(state.members.get(name))
        if kind is ShareTargetRecord:
            return of_partitions(state.target.get(name))
        return of_state_partitions(state.partitions) if kind is StatePartitionsRecord else 0

    def _apply_member(self, record: ShareMemberRecord) -> None:
        before = self.members.get(record.member_id)
        if before is not None:
            self._unsubscribe(before.metadata)
        if record.metadata is None:
            self.members.pop(record.member_id, None)
            return
        metadata = self._shared(record.metadata)
        member = replace(before, metadata=metadata) if before else ShareMember(record.member_id, metadata)
        self.members[record.member_id] = member
        self._subscribe(metadata)

    def _apply_epoch(self, record: ShareEpochRecord) -> None:
        self.epoch = record.epoch

    def _apply_current(self, record: ShareCurrentRecord) -> None:
        before = self.members.get(record.member_id)
        if before is not None:
            self.members[record.member_id] = replace(before, current=record.current or ShareAssignment())
        elif record.current is not None:
            # A snapshot may have written the member after its assignment.
            self.members[record.member_id] = ShareMember(record.member_id, current=record.current)
            self._subscribe(ShareMetadata())

    def _apply_partitions(self, record: StatePartitionsRecord) -> None:
        self.stored_partitions = record.partitions

    def _shared(self, metadata: ShareMetadata) -> ShareMetadata:
        """The metadata with a set of topics that members share, so that a thousand topics are kept once."""
        for names in self.subscriptions:
            if names == metadata.topic_names:
                return replace(metadata, topic_names=names)
        return metadata

    def cost_of(self, metadata: ShareMetadata) -> int:
        """The bytes that a member's subscription would add: 0 if another has the same."""
        return 0 if metadata.topic_names in self.subscriptions else of_names(metadata.topic_names)

    def _subscribe(self, metadata: ShareMetadata) -> None:
        self.memory.add(self.cost_of(metadata))
        self.subscriptions[metadata.topic_names] += 1

    def _unsubscribe(self, metadata: ShareMetadata) -> None:
        self.subscriptions[metadata.topic_names] -= 1
        if not self.subscriptions[metadata.topic_names]:
            del self.subscriptions[metadata.topic_names]
            self.memory.add(-self.cost_of(metadata))

    def live_keys(self) -> Iterator[tuple[type, str]]:
        if self.epoch is not None:
            yield ShareEpochRecord, ""
        if self.stored_partitions is not None:
            yield StatePartitionsRecord, ""
        for member_id in self.members:
            yield ShareMemberRecord, member_id
        for member_id in self.target:
            yield ShareTargetRecord, member_id
        if self.assignment_epoch is not None:
            yield ShareTargetEpochRecord, ""
        for member_id in self.members:
            yield ShareCurrentRecord, member_id

    GROUP_RECORD = ShareEpochRecord
    MEMBER_RECORD = ShareMemberRecord
    CURRENT_RECORD = ShareCurrentRecord
    TARGET_RECORD = ShareTargetRecord
    TARGET_EPOCH_RECORD = ShareTargetEpochRecord
    NAMED = frozenset({ShareMemberRecord, ShareTargetRecord, ShareCurrentRecord})
    APPLY = {
        ShareMemberRecord: _apply_member,
        ShareEpochRecord: _apply_epoch,
        ShareTargetEpochRecord: RecordedState.apply_target_epoch,
        ShareTargetRecord: RecordedState.apply_target,
        ShareCurrentRecord: _apply_current,
        StatePartitionsRecord: _apply_partitions,
    }
    LIVE = {
        ShareMemberRecord: live_metadata,
        ShareEpochRecord: lambda group, _: group.epoch,
        ShareTargetEpochRecord: lambda group, _: group.assignment_epoch,
        ShareTargetRecord: lambda group, member_id: group.target.get(member_id),
        ShareCurrentRecord: live_current,
        StatePartitionsRecord: lambda group, _: group.stored_partitions,
    }


def not_share(group_id: str) -> KafkaError:
    """The error for a group of another type."""
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")


def not_found(group_id: str) -> KafkaError:
    """The error for a group that does not exist."""
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {group_id} not found.")
