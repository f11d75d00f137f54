"""The coordinator's settings, named after Kafka's broker configs."""

from __future__ import annotations

from dataclasses import dataclass

from kbroker import limits
from kbroker.coordinator.shard_config import ShardConfig


@dataclass(frozen=True, slots=True)
class GroupConfig(ShardConfig):
    """Times are milliseconds."""

    offsets_topic_partitions: int = 50  # offsets.topic.num.partitions
    initial_rebalance_delay_ms: int = 3_000  # group.initial.rebalance.delay.ms
    session_timeout_min_ms: int = 6_000  # group.min.session.timeout.ms
    session_timeout_max_ms: int = 1_800_000  # group.max.session.timeout.ms
    group_size_max: int = limits.GROUP_SIZE_MAX  # group.max.size
    groups_max: int = limits.GROUPS_MAX
    new_member_join_timeout_ms: int = 300_000  # a parked JoinGroup of a new member; Kafka's constant
    offset_metadata_length_max: int = limits.OFFSET_METADATA_LENGTH_MAX  # offset.metadata.max.bytes
    offsets_retention_ms: int = 10_080 * 60_000  # offsets.retention.minutes
    offsets_retention_check_interval_ms: int = 600_000  # offsets.retention.check.interval.ms
