"""The groups of one partition of `__consumer_offsets`: the state machine.

Knows no thread and no log. Handlers (the modules beside this one) decide on the current state and return records;
`replay` alone changes durable state, at append for live traffic and in offset order for a load.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator

from kbroker.coordinator.group.classic import rebalance
from kbroker.coordinator.group.classic.group import ClassicGroup, ClassicGroupState
from kbroker.coordinator.group.config import GroupConfig
from kbroker.coordinator.group.consumer import session as consumer_session
from kbroker.coordinator.group.consumer.group import ConsumerGroup
from kbroker.coordinator.group.consumer.state import ConsumerGroupRecord, GroupEpochRecord, MemberRecord
from kbroker.coordinator.group.consumer.update import GroupUpdate
from kbroker.coordinator.group.environment import GroupEnvironment
from kbroker.coordinator.group.memory import GroupCounts
from kbroker.coordinator.group.offsets import expiry as offset_expiry
from kbroker.coordinator.group.offsets.transaction_guards import TransactionGuards
from kbroker.coordinator.group.offsets.transactional import TransactionalOffsets
from kbroker.coordinator.group.records import decode_record, encode_record
from kbroker.coordinator.group.share import session as share_group_session
from kbroker.coordinator.group.share.group import ShareGroup
from kbroker.coordinator.group.share.partitions import PartitionStates
from kbroker.coordinator.group.share.state import (
    SHARE_GROUP_RECORDS,
    ShareEpochRecord,
    ShareGroupRecord,
    ShareMemberRecord,
)
from kbroker.coordinator.group.share.update import ShareUpdate
from kbroker.coordinator.group.state import GroupRecord, OffsetAndMetadata, OffsetRecord, Record
from kbroker.coordinator.group.timers import MemberTimers
from kbroker.coordinator.runtime.event_loop import Timer
from kbroker.coordinator.runtime.result import Operation, Result
from kbroker.coordinator.runtime.shard import UNSETTLED, Marker, ProducerStamp, Scheduler, Unsettled
from kbroker.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

_REFUSAL_LOG_MS = 60_000  # of one shard: not for each of those that a client repeats

Group = ClassicGroup | ConsumerGroup | ShareGroup
LiveKey = tuple[str, str | tuple[type, str] | type[GroupRecord], int | None]


class GroupShard:
    """State of one shard. Touched by the loop thread only (before a load has ended: by its worker only)."""

    def __init__(
        self,
        config: GroupConfig,
        now_ms: Callable[[], int],
        topic_exists: Callable[[str, int], bool],
        total: Callable[[], GroupCounts] | None = None,
        environment: GroupEnvironment | None = None,
        share_states: PartitionStates | None = None,
    ) -> None:
        """`total` is the sum of all shards' counts.

        `share_states` None: share groups are not served; what the log says of them is kept.
        """
        self.config = config
        self.topic_exists = topic_exists
        self.counts = GroupCounts()
        self._total = total or (lambda: self.counts)
        self.environment = environment or GroupEnvironment()
        self.share_states = share_states
        self.groups: dict[str, Group] = {}
        self.timers = MemberTimers(self.schedule)
        self.pending_offsets = TransactionalOffsets()
        self.guards = TransactionGuards()
        self._now_ms = now_ms
        self._runtime: Scheduler | None = None
        self._refusal_logged_ms = 0

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

    def group(self, group_id: str) -> ClassicGroup | ConsumerGroup:
        """The group, or UNKNOWN_MEMBER_ID: what members of a group that is gone, or has another type, are told."""
        group = self.groups.get(group_id)
        if group is None or isinstance(group, ShareGroup):
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    def admit(self, group_id: str) -> Group:
        """The group for a join, created if the bound on groups allows; else POLICY_VIOLATION."""
        if group_id not in self.groups:
            self.check_group_bound()
        return self.get_or_create(group_id)

    def check_group_bound(self) -> None:
        """Raises POLICY_VIOLATION if the broker holds as many groups as it may."""
        if self._total().groups >= self.config.groups_max:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "too many groups")

    def check_room(
        self, growth: int, *, newcomer: bool, error: ErrorCode = ErrorCode.GROUP_MAX_SIZE_REACHED
    ) -> None:
        """Raises `error` if groups may not take so many bytes more; what takes no more is never refused.

        A newcomer is a group or member that is not there yet: the last eighth of the bytes is for those that are.
        """
        most = self.config.group_bytes_max
        taken = self._total().bytes if growth > 0 else 0
        if growth <= 0 or taken + growth <= (most - most // 8 if newcomer else most):
            return
        now_ms = self.now_ms()
        if now_ms - self._refusal_logged_ms >= _REFUSAL_LOG_MS:
            self._refusal_logged_ms = now_ms
            logger.warning(
                "groups take %d bytes of memory, of %d that --memory-bytes gives them: who asks for %d more is refused "
                "(%s)", taken, most, growth, error.name,
            )  # fmt: skip
        raise KafkaError(error, "The groups of this broker take as many bytes of memory as they may.")

    def check_said(self, update: GroupUpdate | ShareUpdate, member_id: str) -> None:
        """Raises GROUP_MAX_SIZE_REACHED if there is no memory for what the member has said.

        Who says nothing new goes on, whatever the assignment makes of it.
        """
        known = update.group.members.get(member_id)
        if known is None or known.metadata != update.members[member_id].metadata:
            self.check_room(update.growth(), newcomer=known is None)

    def get_or_create(self, group_id: str) -> Group:
        """The group, created Empty and classic if there is none."""
        group = self.groups.get(group_id)
        if group is None:
            group = ClassicGroup(group_id, self.now_ms())
            self._put(None, group)
        return group

    def drop_if_abandoned(self, group: Group) -> None:
        """Forgets a group that nobody joined in the end; without this, probing clients would fill memory."""
        if group.is_abandoned and self.groups.get(group.group_id) is group and not self._has_pending(group):
            self._drop(group)

    def _has_pending(self, group: Group) -> bool:
        return self.pending_offsets.has_group(group.group_id)

    def _drop(self, group: Group) -> None:
        del self.groups[group.group_id]
        self.counts.groups -= 1
        self.counts.offsets -= len(group.offsets)
        self.counts.bytes -= group.offsets.bytes
        self._retire(group)

    def _retire(self, group: Group) -> None:
        """Ends what an object that is no longer the group has going on."""
        self.counts.members -= len(group.members)
        group.memory.detach()
        if isinstance(group, ClassicGroup):
            _answer_parked(group, ErrorCode.REBALANCE_IN_PROGRESS)
            group.transition_to(ClassicGroupState.DEAD, self.now_ms())
            group.cancel_timers()
            return
        for member_id in group.members:
            self.timers.cancel_member(group.group_id, member_id)

    def _replace(self, old: Group, new: Group) -> None:
        """A group changes its type; its offsets are those of the new object."""
        self._retire(old)
        self.groups[old.group_id] = new
        new.memory.attach(self.counts)

    def activate(self) -> Result:
        """Turns replayed state into live groups.

        Members keep ids and generation and get a whole session timeout to show up, so a restart moves no partition.
        Offsets of topics that were deleted just before the restart go, lest a new topic of the name inherit them.
        """
        result = offset_expiry.drop_topics(self, lambda topic: not self.topic_exists(topic, 0))
        for group in self.groups.values():
            if isinstance(group, ConsumerGroup):
                consumer_session.restore_timers(self, group)
                result.records += self._refreshed(group, self._all_topics(group))
                continue
            if isinstance(group, ShareGroup):
                share_group_session.restore_timers(self, group)
                result.records += self._refreshed_share(group)
                continue
            group.restore()
            self.counts.members += len(group.members)
            for member in group.members.values():
                rebalance.restart_session(self, group, member)
            if group.lacks_rebalance:
                rebalance.prepare(self, group)
        share_groups = [group.group_id for group in self.groups.values() if isinstance(group, ShareGroup)]
        result.on_complete = share_group_session.follow_when_durable(self, *share_groups)
        return result

    def _refreshed_share(self, group: ShareGroup) -> list[Record]:
        """What changes in a share group because topics have."""
        if not group.members:
            return []
        update = ShareUpdate(self, group)
        update.refresh(bump=False)
        return update.records

    def _all_topics(self, group: ConsumerGroup) -> Collection[str]:
        """All that expressions of the group match or matched."""
        if not group.has_regex:
            return ()
        matched = (regex.topics for regex in group.resolved.values())
        return frozenset().union(self.environment.topics.names(), *matched)

    def _refreshed(self, group: ConsumerGroup, changed: Collection[str]) -> list[Record]:
        """What changes in a group because topics have."""
        if not group.members:
            return []
        update = GroupUpdate(self, group)
        update.refresh(bump=False, changed=changed)
        return update.records

    def topics_changed(self, topics: Collection[str]) -> Result:
        """Topics were created or deleted, or have more partitions: groups that read them begin a new epoch at once."""
        records: list[Record] = []
        share_groups: list[str] = []
        for group in self.groups.values():
            if isinstance(group, ConsumerGroup) and (
                group.has_regex or any(group.subscribes_to(topic) for topic in topics)
            ):
                records += self._refreshed(group, topics)
            elif isinstance(group, ShareGroup) and group.is_about(topics):
                records += self._refreshed_share(group)
                share_groups.append(group.group_id)
        return Result(records, on_complete=share_group_session.follow_when_durable(self, *share_groups))

    def deactivate(self, error: ErrorCode) -> None:
        """Answers everything that is parked in the groups."""
        if self.share_states is not None:
            self.share_states.deactivate(error)
        for group in self.groups.values():
            if isinstance(group, ClassicGroup):
                _answer_parked(group, error)

    # -- replay --------------------------------------------------------------------------------------------------

    def encode(self, record: Record) -> tuple[bytes, bytes | None]:
        """Key and value of a record."""
        return encode_record(record)

    def decode(self, key: bytes, value: bytes | None) -> Record:
        """The record; raises UnknownRecordError."""
        return decode_record(key, value)

    def replay_marker(self, marker: Marker) -> None:
        """The end of a transaction: its offsets are published or dropped."""
        self.guards.drop(marker.producer_id)
        pending_bytes = self.pending_offsets.bytes
        for group_id, (topic, partition), value in self.pending_offsets.end(marker.producer_id, marker.commit):
            group = self.get_or_create(group_id)
            if value is not None:
                self._set_offset(group, topic, partition, value)
            self.drop_if_abandoned(group)
        self.counts.bytes += self.pending_offsets.bytes - pending_bytes

    def replay(self, record: Record, stamp: ProducerStamp | None = None) -> None:
        """Applies one record. The only place where durable state changes."""
        if isinstance(record, OffsetRecord):
            self._replay_offset(record, stamp)
        elif isinstance(record, GroupRecord):
            self._replay_group(record)
        elif isinstance(record, SHARE_GROUP_RECORDS):
            self._replay_share_group(record)
        else:
            self._replay_consumer_group(record)

    def _replay_offset(self, record: OffsetRecord, stamp: ProducerStamp | None) -> None:
        group_id, topic, partition, value = record
        pending_bytes = self.pending_offsets.bytes
        if value is None:
            self.pending_offsets.remove(group_id, topic, partition)
            group = self.groups.get(group_id)
            if group is not None:
                self._set_offset(group, topic, partition, None)
                self.drop_if_abandoned(group)
        elif stamp is not None:
            self.get_or_create(group_id)
            self.pending_offsets.put(stamp, group_id, topic, partition, value)
        else:
            self._set_offset(self.get_or_create(group_id), topic, partition, value)
            if self.pending_offsets:
                self.pending_offsets.supersede(group_id, topic, partition)
        self.counts.bytes += self.pending_offsets.bytes - pending_bytes

    def _set_offset(self, group: Group, topic: str, partition: int, value: OffsetAndMetadata | None) -> None:
        offsets = group.offsets
        count, size = offsets.count, offsets.bytes
        if value is None:
            offsets.remove(topic, partition)
        else:
            offsets.put(topic, partition, value)
        self.counts.offsets += offsets.count - count
        self.counts.bytes += offsets.bytes - size

    def _replay_group(self, record: GroupRecord) -> None:
        existing = self.groups.get(record.group_id)
        if record.value is not None:
            self._replay_classic_group(existing, record)
            return
        if not isinstance(existing, ClassicGroup):
            return
        existing.store(None)
        if existing.offsets or self._has_pending(existing):
            # A tombstone of the group alone leaves its offsets: they are those of a simple consumer from here on.
            existing.protocol_type = None
            existing.generation = 0
        else:
            self._drop(existing)

    def _replay_classic_group(self, existing: Group | None, record: GroupRecord) -> None:
        if existing is not None and not isinstance(existing, ClassicGroup):
            self._replace(existing, ClassicGroup(record.group_id, self.now_ms(), existing.offsets))
        group = self.get_or_create(record.group_id)
        assert isinstance(group, ClassicGroup)
        is_new = group.stored is None
        group.store(record.value)
        if self._runtime is not None and is_new and not group.members:
            # Not the end of a rebalance but of a conversion: the members are those of the record, here and now.
            group.restore()
            self.counts.members += len(group.members)

    def _replay_consumer_group(self, record: ConsumerGroupRecord) -> None:
        group = self.groups.get(record.group_id)
        if not isinstance(group, ConsumerGroup):
            if record[-1] is None:
                return  # removes what is gone already
            group = self._become_consumer_group(record.group_id, group)
        members, assignment_epoch = len(group.members), group.assignment_epoch
        group.apply(record)
        self.counts.members += len(group.members) - members
        if self._runtime is not None and group.assignment_epoch != assignment_epoch:
            group.assigned_ms = self.now_ms()
        if isinstance(record, MemberRecord) and record.metadata is None:
            self.timers.cancel_member(record.group_id, record.member_id)
        elif isinstance(record, GroupEpochRecord) and record.epoch is None:
            self._end_group(group)

    def _become_consumer_group(self, group_id: str, existing: Group | None) -> ConsumerGroup:
        group = ConsumerGroup(group_id, None if existing is None else existing.offsets)
        self._put(existing, group)
        return group

    def _put(self, existing: Group | None, group: Group) -> None:
        if existing is None:
            self.groups[group.group_id] = group
            self.counts.groups += 1
            group.memory.attach(self.counts)
        else:
            self._replace(existing, group)

    def _replay_share_group(self, record: ShareGroupRecord) -> None:
        group = self.groups.get(record.group_id)
        if not isinstance(group, ShareGroup):
            if record[-1] is None:
                return  # removes what is gone already
            existing, group = group, ShareGroup(record.group_id, None if group is None else group.offsets)
            self._put(existing, group)
        members = len(group.members)
        group.apply(record)
        self.counts.members += len(group.members) - members
        if isinstance(record, ShareMemberRecord) and record.metadata is None:
            self.timers.cancel_member(record.group_id, record.member_id)
            if self.share_states is not None and self._runtime is not None and len(group.members) < members:
                self.share_states.on_member_left(record.group_id, record.member_id)
        elif isinstance(record, ShareEpochRecord) and record.epoch is None:
            self._end_group(group)

    def _end_group(self, group: ConsumerGroup | ShareGroup) -> None:
        if group.offsets or self._has_pending(group):
            self._replace(group, ClassicGroup(group.group_id, self.now_ms(), group.offsets))
        else:
            self._drop(group)

    # -- snapshot ------------------------------------------------------------------------------------------------

    def live_keys(self) -> Iterator[LiveKey]:
        """Keys of all live records: (group id, topic, partition) of an offset, or (group id, what, None)."""
        for group in self.groups.values():
            if not isinstance(group, ClassicGroup):
                for key in group.live_keys():
                    yield group.group_id, key, None
            elif group.stored is not None:
                yield group.group_id, GroupRecord, None
            for topic, partition, _ in group.offsets:
                yield group.group_id, topic, partition
            for topic, partition in self.pending_offsets.of_group(group.group_id):
                if group.offsets.get(topic, partition) is None:
                    yield group.group_id, topic, partition

    def live_record(self, key: LiveKey) -> Record | Unsettled | None:
        """The record that now says the state of `key`; None if there is none any more.

        UNSETTLED while an open transaction has committed the partition: a plain record written now would come behind
        the transaction's and win.
        """
        group_id, topic, partition = key
        group = self.groups.get(group_id)
        if group is None:
            return None
        if isinstance(topic, tuple):
            return None if isinstance(group, ClassicGroup) else group.record(*topic)
        if not isinstance(topic, str) or partition is None:
            stored = group.stored if isinstance(group, ClassicGroup) else None
            return None if stored is None else GroupRecord(group_id, stored)
        if self.pending_offsets.is_pending(group_id, topic, partition):
            return UNSETTLED
        value = group.offsets.get(topic, partition)
        return None if value is None else OffsetRecord(group_id, topic, partition, value)


def _answer_parked(group: ClassicGroup, error: ErrorCode) -> None:
    """Answers everything that is parked in the group."""
    for member in group.members.values():
        rebalance.answer_join(group, member, rebalance.join_error(error, member.member_id))
        rebalance.fail_sync(member, error)
