"""Offsets and groups that go by themselves: retention, and deleted topics (KIP-211)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kbroker.coordinator.group.classic.group import CONSUMER_PROTOCOL_TYPE, ClassicGroup, ClassicGroupState
from kbroker.coordinator.group.consumer.group import ConsumerGroup
from kbroker.coordinator.group.offsets.committed import RetentionBase, is_expired
from kbroker.coordinator.group.share.group import ShareGroup
from kbroker.coordinator.group.state import OffsetRecord, Record
from kbroker.coordinator.runtime.result import Result

if TYPE_CHECKING:
    from kbroker.coordinator.group.shard import GroupShard


def expire(shard: GroupShard) -> Result:
    """Tombstones for expired offsets, and for Empty groups that have none left."""
    records: list[Record] = []
    for group in list(shard.groups.values()):
        if isinstance(group, ShareGroup):
            continue  # stays until it is deleted: where it is in its partitions is not kept here
        expired = list(_expired_offsets(shard, group))
        records += expired
        none_left = len(expired) == len(group.offsets) and not shard.pending_offsets.has_group(group.group_id)
        if none_left and group.is_empty:
            tombstones = group.tombstones()
            records += tombstones
            if not tombstones:
                shard.drop_if_abandoned(group)
    return Result(records=records)


def _expired_offsets(shard: GroupShard, group: ClassicGroup | ConsumerGroup) -> Iterator[OffsetRecord]:
    base = _retention_base(group)
    if base is None:
        return
    now_ms, retention_ms = shard.now_ms(), shard.config.offsets_retention_ms
    expired = [
        (topic, partition)
        for topic, partition, value in group.offsets
        if is_expired(value, base, now_ms, retention_ms)
    ]
    subscribed = group.subscribed({topic for topic, _ in expired})
    for topic, partition in expired:
        if topic not in subscribed and not shard.pending_offsets.is_pending(group.group_id, topic, partition):
            yield OffsetRecord(group.group_id, topic, partition, None)


def _retention_base(group: ClassicGroup | ConsumerGroup) -> RetentionBase | None:
    """What retention counts from; None: nothing expires while the group is as it is."""
    if isinstance(group, ConsumerGroup) or group.protocol_type is None:  # None: simple consumers
        return lambda value: value.commit_timestamp_ms
    if group.state is ClassicGroupState.EMPTY:
        empty_since_ms = group.state_timestamp_ms
        return lambda value: empty_since_ms
    if group.state is ClassicGroupState.STABLE and group.protocol_type == CONSUMER_PROTOCOL_TYPE:
        return lambda value: value.commit_timestamp_ms
    return None


def drop_topics(shard: GroupShard, is_gone: Callable[[str], bool]) -> Result:
    """Tombstones for the offsets of topics that no longer exist, pending ones too."""
    records: list[Record] = []
    for group in shard.groups.values():
        for topic, partitions in group.offsets.topics().items():
            if is_gone(topic):
                records += [OffsetRecord(group.group_id, topic, partition, None) for partition in partitions]
        for topic, partition in shard.pending_offsets.of_group(group.group_id):
            if is_gone(topic) and group.offsets.get(topic, partition) is None:
                records.append(OffsetRecord(group.group_id, topic, partition, None))
    return Result(records=records)
