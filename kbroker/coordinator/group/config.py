"""The coordinator's settings, named after Kafka's broker configs."""

from __future__ import annotations

from dataclasses import dataclass

from kbroker import limits
from kbroker.coordinator.runtime.config import ShardConfig


@dataclass(frozen=True, slots=True)
class GroupConfig(ShardConfig):
    """Times are milliseconds."""

    offsets_topic_partitions: int = 50  # offsets.topic.num.partitions
    initial_rebalance_delay_ms: int = 3_000  # group.initial.rebalance.delay.ms
    session_timeout_min_ms: int = 6_000  # group.min.session.timeout.ms
    session_timeout_max_ms: int = 1_800_000  # group.max.session.timeout.ms
    group_size_max: int = limits.GROUP_SIZE_MAX  # group.max.size
    groups_max: int = limits.GROUPS_MAX
    group_bytes_max: int = limits.GROUP_BYTES_MIN  # of memory, of all groups with their members and offsets
    new_member_join_timeout_ms: int = 300_000  # a parked JoinGroup of a new member; Kafka's constant
    offset_metadata_length_max: int = limits.OFFSET_METADATA_LENGTH_MAX  # offset.metadata.max.bytes
    offsets_retention_ms: int = 10_080 * 60_000  # offsets.retention.minutes
    offsets_retention_check_interval_ms: int = 600_000  # offsets.retention.check.interval.ms
    consumer_session_timeout_ms: int = 45_000  # group.consumer.session.timeout.ms
    consumer_session_timeout_min_ms: int = 45_000  # group.consumer.min.session.timeout.ms
    consumer_session_timeout_max_ms: int = 60_000  # group.consumer.max.session.timeout.ms
    consumer_heartbeat_interval_ms: int = 5_000  # group.consumer.heartbeat.interval.ms
    consumer_heartbeat_interval_min_ms: int = 5_000  # group.consumer.min.heartbeat.interval.ms
    consumer_heartbeat_interval_max_ms: int = 15_000  # group.consumer.max.heartbeat.interval.ms
    consumer_assignment_interval_min_ms: int = 0  # group.consumer.min.assignment.interval.ms
    consumer_assignment_interval_max_ms: int = 15_000  # group.consumer.max.assignment.interval.ms
    consumer_group_size_max: int = limits.GROUP_SIZE_MAX  # group.consumer.max.size
    share_session_timeout_ms: int = 45_000  # group.share.session.timeout.ms
    share_session_timeout_min_ms: int = 45_000  # group.share.min.session.timeout.ms
    share_session_timeout_max_ms: int = 60_000  # group.share.max.session.timeout.ms
    share_heartbeat_interval_ms: int = 5_000  # group.share.heartbeat.interval.ms
    share_heartbeat_interval_min_ms: int = 5_000  # group.share.min.heartbeat.interval.ms
    share_heartbeat_interval_max_ms: int = 15_000  # group.share.max.heartbeat.interval.ms
    share_group_size_max: int = 200  # group.share.max.size
    migration_policy: str = "bidirectional"  # group.consumer.migration.policy

    @property
    def upgrade_enabled(self) -> bool:
        """A classic group becomes a consumer group when a member of the new protocol joins it."""
        return self.migration_policy in ("upgrade", "bidirectional")

    @property
    def downgrade_enabled(self) -> bool:
        """A consumer group becomes a classic one when only members of the classic protocol are left."""
        return self.migration_policy in ("downgrade", "bidirectional")
