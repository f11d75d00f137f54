"""The share coordinator's settings, named after Kafka's broker configs."""

from __future__ import annotations

from dataclasses import dataclass

from kbroker.coordinator.runtime.config import ShardConfig


@dataclass(frozen=True, slots=True)
class ShareStateConfig(ShardConfig):
    """Of the internal topic and how it is written."""

    state_topic_partitions: int = 50  # share.coordinator.state.topic.num.partitions
    updates_per_snapshot: int = 500  # share.coordinator.snapshot.update.records.per.snapshot
