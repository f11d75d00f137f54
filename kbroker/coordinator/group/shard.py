"""The groups of one partition of `__consumer_offsets`: the state machine.

It knows no thread and no log. Handlers (the modules of this package) decide on the current state and return records;
`replay` alone changes durable state, at append for live traffic and in offset order for a load.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from kbroker.coordinator.group.classic.group import ClassicGroup
from kbroker.coordinator.group.classic.state import GroupRecord
from kbroker.coordinator.group.consumer.group import ConsumerGroup
from kbroker.coordinator.group.offsets import expiry
from kbroker.coordinator.group.offsets.committed import GroupOffsets
from kbroker.coordinator.group.offsets.state import OffsetAndMetadata, OffsetRecord
from kbroker.coordinator.group.recorded_group import RecordedGroup
from kbroker.coordinator.group.recorded_state import M, R
from kbroker.coordinator.group.records import Record, decode_record, encode_record
from kbroker.coordinator.group.share.group import ShareGroup
from kbroker.coordinator.group.share.state import SHARE_GROUP_RECORDS
from kbroker.coordinator.group.table import Group, GroupTable
from kbroker.coordinator.runtime.result import Marker, ProducerStamp, Result
from kbroker.coordinator.runtime.shard import UNSETTLED, Unsettled
from kbroker.errors import ErrorCode

LiveKey = tuple[str, str | tuple[type, str], int | None]


class GroupShard(GroupTable):
    """The groups of one shard, as the runtime sees them. Loop thread only (in a load: its worker thread only)."""

    def new_group(self, group_id: str, offsets: GroupOffsets | None = None) -> ClassicGroup:
        """A classic group without members, which is not in the table yet."""
        return ClassicGroup(group_id, self.now_ms(), offsets)

    def activate(self) -> Result:
        """Turns replayed state into live groups.

        Members keep ids and generation and get a full session timeout, so a restart moves no partition. Offsets of
        topics that were deleted while nothing held this shard go, lest a new topic of the name inherit them. Those of
        topics that the metadata does not know stay: it may not have got so far.
        """
        result = expiry.drop_topics(self, self.deleted_topics().__contains__)
        for group in self.groups.values():
            result.records += group.activate(self)
        result.on_complete = self._follow_when_durable(list(self.groups))
        return result

    def topics_changed(self, topics: Collection[str]) -> Result:
        """Topics were created or deleted, or have more partitions: groups that read them begin a new epoch at once."""
        records: list[Record] = []
        concerned: list[str] = []
        for group in self.groups.values():
            refreshed = group.refresh(self, topics)
            if refreshed is not None:
                records += refreshed
                concerned.append(group.group_id)
        return Result(records, on_complete=self._follow_when_durable(concerned))

    def _follow_when_durable(self, group_ids: Collection[str]) -> Callable[[ErrorCode], None]:
        def durable(error: ErrorCode) -> None:
            for group_id in () if error else group_ids:
                group = self.groups.get(group_id)
                if group is not None:
                    group.follow(self)

        return durable

    def deactivate(self, error: ErrorCode) -> None:
        """Answers everything that is parked in the groups."""
        if self.share_states is not None:
            self.share_states.deactivate(error)
        for group in self.groups.values():
            group.answer_parked(error)

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
            self.drop_if_abandoned(group_id)
        self.counts.bytes += self.pending_offsets.bytes - pending_bytes

    def replay(self, record: Record, stamp: ProducerStamp | None = None) -> None:
        """Applies one record. The only place where durable state changes."""
        if isinstance(record, OffsetRecord):
            self._replay_offset(record, stamp)
        elif isinstance(record, GroupRecord):
            self._replay_group(record)
        elif isinstance(record, SHARE_GROUP_RECORDS):
            self._replay_recorded(ShareGroup, record)
        else:
            self._replay_recorded(ConsumerGroup, record)

    def _replay_offset(self, record: OffsetRecord, stamp: ProducerStamp | None) -> None:
        group_id, topic, partition, value = record
        pending_bytes = self.pending_offsets.bytes
        if value is None:
            self.pending_offsets.remove(group_id, topic, partition)
            group = self.groups.get(group_id)
            if group is not None:
                self._set_offset(group, topic, partition, None)
                self.drop_if_abandoned(group_id)
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
            self.activity.committed_offsets += self.is_live
        self.counts.offsets += offsets.count - count
        self.counts.bytes += offsets.bytes - size

    def _replay_group(self, record: GroupRecord) -> None:
        group = self.find(ClassicGroup, record.group_id)
        if record.value is not None:
            if group is None:
                group = self.new_group(record.group_id, self._offsets_of(record.group_id))
                self.put(group)
            is_new = group.stored is None
            group.store(record.value)
            if self.is_live and is_new and not group.members:
                # Not the end of a rebalance but of a conversion: the members are those of the record from now on.
                group.restore()
                self.counts.members += len(group.members)
        elif group is not None:
            group.store(None)
            if group.offsets or self.pending_offsets.has_group(record.group_id):
                # A tombstone of the group alone leaves its offsets, which from now on are a simple consumer's.
                group.protocol_type = None
                group.generation = 0
            else:
                self.drop(group)

    def _replay_recorded(self, group_type: type[RecordedGroup[R, M]], record: R) -> None:
        group_id = record[0]
        group = self.find(group_type, group_id)
        if group is None:
            if record[-1] is None:
                return  # removes what is already gone
            group = group_type(group_id, self._offsets_of(group_id))
            self.put(group)
        member_count = len(group.members)
        group.replay(self, record)
        self.counts.members += len(group.members) - member_count
        if record[-1] is not None or not isinstance(record, group.GROUP_RECORD):
            return
        if group.offsets or self.pending_offsets.has_group(group_id):
            self.put(self.new_group(group_id, group.offsets))
        else:
            self.drop(group)

    def _offsets_of(self, group_id: str) -> GroupOffsets | None:
        group = self.groups.get(group_id)
        return None if group is None else group.offsets

    # -- snapshot ------------------------------------------------------------------------------------------------

    def live_keys(self) -> Iterator[LiveKey]:
        """Keys of all live records: (group id, topic, partition) of an offset, or (group id, (type, name), None)."""
        for group in self.groups.values():
            for key in group.live_keys():
                yield group.group_id, key, None
            for topic, partition, _ in group.offsets:
                yield group.group_id, topic, partition
            for topic, partition in self.pending_offsets.of_group(group.group_id):
                if group.offsets.get(topic, partition) is None:
                    yield group.group_id, topic, partition

    def live_record(self, key: LiveKey) -> Record | Unsettled | None:
        """The record with the current state of `key`; None if there is none any more.

        UNSETTLED while an open transaction has committed the partition: a plain record written now would follow the
        transaction's in the log and win.
        """
        group_id, what, partition = key
        group = self.groups.get(group_id)
        if group is None:
            return None
        if isinstance(what, tuple):
            return group.record(*what)
        assert partition is not None
        if self.pending_offsets.is_pending(group_id, what, partition):
            return UNSETTLED
        value = group.offsets.get(what, partition)
        return None if value is None else OffsetRecord(group_id, what, partition, value)
