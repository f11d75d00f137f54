"""Offsets and groups that expire, and the offsets of deleted topics (KIP-211)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kbroker.coordinator.group.offsets.committed import is_expired
from kbroker.coordinator.group.offsets.state import OffsetRecord
from kbroker.coordinator.group.records import Record
from kbroker.coordinator.group.table import Group, GroupTable
from kbroker.coordinator.runtime.result import Result


def expire(shard: GroupTable) -> Result:
    """Tombstones for expired offsets, and for Empty groups that have none left.

    A group that commits no offsets stays until it is deleted.
    """
    records: list[Record] = []
    for group in list(shard.groups.values()):
        if not group.COMMITS_OFFSETS:
            continue
        expired = list(_expired_offsets(shard, group))
        records += expired
        none_left = len(expired) == len(group.offsets) and not shard.pending_offsets.has_group(group.group_id)
        if none_left and group.is_empty:
            tombstones = group.tombstones()
            records += tombstones
            if not tombstones:
                shard.drop_if_abandoned(group.group_id)
    return Result(records=records)


def _expired_offsets(shard: GroupTable, group: Group) -> Iterator[OffsetRecord]:
    base = group.retention_base()
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


def drop_topics(shard: GroupTable, is_gone: Callable[[str], bool]) -> Result:
    """Tombstones for the offsets of deleted topics, also pending ones."""
    records: list[Record] = []
    for group in shard.groups.values():
        for topic, partitions in group.offsets.topics().items():
            if is_gone(topic):
                records += [OffsetRecord(group.group_id, topic, partition, None) for partition in partitions]
        for topic, partition in shard.pending_offsets.of_group(group.group_id):
            if is_gone(topic) and group.offsets.get(topic, partition) is None:
                records.append(OffsetRecord(group.group_id, topic, partition, None))
    return Result(records=records)
