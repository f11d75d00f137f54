"""Offsets and groups that go by themselves: retention, and deleted topics (KIP-211)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kbroker.coordinator.classic_group import CONSUMER_PROTOCOL_TYPE, ClassicGroup, ClassicGroupState
from kbroker.coordinator.group_offsets import RetentionBase, is_expired
from kbroker.coordinator.group_state import GroupRecord, OffsetRecord, Record
from kbroker.coordinator.result import Result

if TYPE_CHECKING:
    from kbroker.coordinator.group_shard import GroupShard


def expire(shard: GroupShard) -> Result:
    """Tombstones for expired offsets, and for Empty groups that have none left."""
    records: list[Record] = []
    for group in list(shard.groups.values()):
        expired = list(_expired_offsets(shard, group))
        records += expired
        none_left = len(expired) == len(group.offsets)
        if none_left and group.state is ClassicGroupState.EMPTY and not group.pending_members:
            if group.stored is not None:
                records.append(GroupRecord(group.group_id, None))
            else:
                shard.drop_if_abandoned(group)
    return Result(records=records)


def _expired_offsets(shard: GroupShard, group: ClassicGroup) -> Iterator[OffsetRecord]:
    base = _retention_base(group)
    if base is None:
        return
    now_ms, retention_ms = shard.now_ms(), shard.config.offsets_retention_ms
    for topic, partition, value in group.offsets:
        if is_expired(value, base, now_ms, retention_ms) and not group.subscribes_to(topic):
            yield OffsetRecord(group.group_id, topic, partition, None)


def _retention_base(group: ClassicGroup) -> RetentionBase | None:
    """What retention counts from; None: nothing expires while the group is as it is."""
    if group.protocol_type is None:  # simple consumers
        return lambda value: value.commit_timestamp_ms
    if group.state is ClassicGroupState.EMPTY:
        empty_since_ms = group.state_timestamp_ms
        return lambda value: empty_since_ms
    if group.state is ClassicGroupState.STABLE and group.protocol_type == CONSUMER_PROTOCOL_TYPE:
        return lambda value: value.commit_timestamp_ms
    return None


def drop_topics(shard: GroupShard, is_gone: Callable[[str], bool]) -> Result:
    """Tombstones for the offsets of topics that no longer exist."""
    records: list[Record] = []
    for group in shard.groups.values():
        for topic, partitions in group.offsets.topics().items():
            if is_gone(topic):
                records += [OffsetRecord(group.group_id, topic, partition, None) for partition in partitions]
    return Result(records=records)
