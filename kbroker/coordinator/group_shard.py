"""The groups of one partition of `__consumer_offsets`: the state machine.

Knows no thread and no log. Handlers (the modules beside this one) decide on the current state and return records;
`replay` alone changes durable state, at append for live traffic and in offset order for a load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kbroker.coordinator import offset_expiry, rebalance
from kbroker.coordinator.classic_group import ClassicGroup, ClassicGroupState
from kbroker.coordinator.event_loop import Timer
from kbroker.coordinator.group_config import GroupConfig
from kbroker.coordinator.group_records import decode_record, encode_record
from kbroker.coordinator.group_state import GroupRecord, OffsetRecord, Record
from kbroker.coordinator.result import Operation, Result
from kbroker.coordinator.shard import Marker, ProducerStamp, Scheduler
from kbroker.errors import ErrorCode, KafkaError


@dataclass(slots=True)
class GroupCounts:
    """Sizes for metrics and for the bound on groups; written by the loop thread, read by any."""

    groups: int = 0
    members: int = 0
    offsets: int = 0


class GroupShard:
    """State of one shard. Touched by the loop thread only (before a load has ended: by its worker only)."""

    def __init__(
        self,
        config: GroupConfig,
        now_ms: Callable[[], int],
        topic_exists: Callable[[str, int], bool],
        total_groups: Callable[[], int] | None = None,
    ) -> None:
        self.config = config
        self.topic_exists = topic_exists
        self._total_groups = total_groups or (lambda: len(self.groups))
        self.groups: dict[str, ClassicGroup] = {}
        self.counts = GroupCounts()
        self._now_ms = now_ms
        self._runtime: Scheduler | None = None

    def attach(self, runtime: Scheduler) -> None:
        """Gives a loaded shard its runtime."""
        self._runtime = runtime

    def now_ms(self) -> int:
        """Wall clock."""
        return self._now_ms()

    def schedule(self, delay_ms: int, operation: Operation) -> Timer:
        """Runs `operation` on the loop thread after `delay_ms`."""
        assert self._runtime is not None
        return self._runtime.schedule(delay_ms, operation)

    # -- groups --------------------------------------------------------------------------------------------------

    def group(self, group_id: str) -> ClassicGroup:
        """The group, or UNKNOWN_MEMBER_ID: what members of a group that is gone are told."""
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    def admit(self, group_id: str) -> ClassicGroup:
        """The group for a join, created if the bound on groups allows; else POLICY_VIOLATION."""
        if group_id not in self.groups:
            self.check_group_bound()
        return self.get_or_create(group_id)

    def check_group_bound(self) -> None:
        """Raises POLICY_VIOLATION if the broker holds as many groups as it may."""
        if self._total_groups() >= self.config.groups_max:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "too many groups")

    def get_or_create(self, group_id: str) -> ClassicGroup:
        """The group, created Empty if there is none."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = ClassicGroup(group_id, self.now_ms())
            self.counts.groups += 1
        return group

    def drop_if_abandoned(self, group: ClassicGroup) -> None:
        """Forgets a group that nobody joined in the end; without this, probing clients would fill memory."""
        if group.is_abandoned and self.groups.get(group.group_id) is group:
            self._drop(group)

    def _drop(self, group: ClassicGroup) -> None:
        del self.groups[group.group_id]
        self.counts.groups -= 1
        self.counts.members -= len(group.members)
        self.counts.offsets -= len(group.offsets)
        group.transition_to(ClassicGroupState.DEAD, self.now_ms())
        for timer in (group.join_timer, group.sync_timer, *group.pending_members.values()):
            if timer is not None:
                timer.cancel()

    def activate(self) -> Result:
        """Turns replayed state into live groups.

        Members keep ids and generation and get a whole session timeout to show up, so a restart moves no partition.
        Offsets of topics that were deleted just before the restart go, lest a new topic of the name inherit them.
        """
        for group in self.groups.values():
            group.restore()
            self.counts.members += len(group.members)
            for member in group.members.values():
                rebalance.restart_session(self, group, member)
        return offset_expiry.drop_topics(self, lambda topic: not self.topic_exists(topic, 0))

    def deactivate(self, error: ErrorCode) -> None:
        """Answers everything that is parked in the groups."""
        for group in self.groups.values():
            for member in group.members.values():
                rebalance.answer_join(group, member, rebalance.join_error(error, member.member_id))
                rebalance.fail_sync(member, error)

    # -- replay --------------------------------------------------------------------------------------------------

    def encode(self, record: Record) -> tuple[bytes, bytes | None]:
        """Key and value of a record."""
        return encode_record(record)

    def decode(self, key: bytes, value: bytes | None) -> Record:
        """The record; raises UnknownRecordError."""
        return decode_record(key, value)

    def replay_marker(self, marker: Marker) -> None:
        """The end of a transaction; nothing was committed in one."""

    def replay(self, record: Record, stamp: ProducerStamp | None = None) -> None:
        """Applies one record. The only place where durable state changes."""
        if isinstance(record, OffsetRecord):
            self._replay_offset(record)
        else:
            self._replay_group(record)

    def _replay_offset(self, record: OffsetRecord) -> None:
        if record.value is not None:
            group = self.get_or_create(record.group_id)
            self.counts.offsets += group.offsets.put(record.topic, record.partition, record.value)
            return
        existing = self.groups.get(record.group_id)
        if existing is not None:
            self.counts.offsets -= existing.offsets.remove(record.topic, record.partition)
            self.drop_if_abandoned(existing)

    def _replay_group(self, record: GroupRecord) -> None:
        if record.value is not None:
            self.get_or_create(record.group_id).stored = record.value
            return
        existing = self.groups.get(record.group_id)
        if existing is None:
            return
        existing.stored = None
        if existing.offsets:
            # A tombstone of the group alone leaves its offsets: they are those of a simple consumer from here on.
            existing.protocol_type = None
            existing.generation = 0
        else:
            self._drop(existing)

    # -- snapshot ------------------------------------------------------------------------------------------------

    def live_keys(self) -> Iterator[tuple[str, str | None, int]]:
        """Keys of all live records: (group id, topic, partition), topic None for the group's own record."""
        for group in self.groups.values():
            if group.stored is not None:
                yield group.group_id, None, -1
            for topic, partition, _ in group.offsets:
                yield group.group_id, topic, partition

    def live_record(self, key: tuple[str, str | None, int]) -> Record | None:
        """The record that now says the state of `key`; None if there is none any more."""
        group_id, topic, partition = key
        group = self.groups.get(group_id)
        if group is None:
            return None
        if topic is None:
            return None if group.stored is None else GroupRecord(group_id, group.stored)
        value = group.offsets.get(topic, partition)
        return None if value is None else OffsetRecord(group_id, topic, partition, value)
