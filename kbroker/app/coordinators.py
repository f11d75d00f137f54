"""The coordinators of one broker, built from its settings and its logs: groups, transactions, states of share groups.

They are loaded after the listener has opened (kbroker.app.broker), so nothing else may import this module. What only
share groups need is loaded with --share-groups only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbroker._fast.partition.partition import Partition
from kbroker.app.config import BrokerConfig
from kbroker.app.internal_topics import LoggedTopic
from kbroker.app.open_cluster import Cluster
from kbroker.clock import Clock
from kbroker.cluster.image import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE
from kbroker.cluster.known_topics import KnownTopics
from kbroker.cluster.producer_ids import ProducerIds
from kbroker.coordinator.group.config import GroupConfig
from kbroker.coordinator.group.coordinator import GroupCoordinator
from kbroker.coordinator.group.environment import GroupEnvironment, LoggedTopics, TopicChanges
from kbroker.coordinator.runtime.shard_set import ShardSet
from kbroker.coordinator.transaction.config import TransactionConfig
from kbroker.coordinator.transaction.coordinator import TransactionCoordinator
from kbroker.coordinator.transaction.marker_sink import MarkerSink
from kbroker.limits import GROUP_SIZE_MAX, SHARE_GROUP_SIZE_MAX
from kbroker.log.cold_read import ColdReader
from kbroker.log.log_table import LogTable

if TYPE_CHECKING:
    from kbroker.coordinator.share_state.states import ShareStates
    from kbroker.share.share_partitions import SharePartitions


@dataclass(slots=True)
class Coordinators:
    """What the handlers ask about groups, transactions and producers."""

    groups: GroupCoordinator
    producer_ids: ProducerIds
    transactions: TransactionCoordinator
    share_states: ShareStates | None = None  # with --share-groups
    share_partitions: SharePartitions | None = None  # likewise

    def start(self) -> None:
        """Loads what their topics hold, and begins to answer."""
        if self.share_states is not None:
            self.share_states.start()  # before the groups, which ask it as soon as they are loaded
        self.groups.start()
        self.transactions.start()
        if self.share_partitions is not None:
            self.share_partitions.start()

    def led(self, partition: Partition) -> None:
        """This broker leads a partition now (LogTable.on_led)."""
        shards = self._shards(partition.topic)
        if shards is not None:
            shards.elected(partition.index, partition.leader_epoch)

    def resigned(self, partition: Partition, leader_epoch: int) -> None:
        """This broker leads a partition no longer (LogTable.on_resigned)."""
        shards = self._shards(partition.topic)
        if shards is not None:
            shards.resigned(partition.index, leader_epoch)
        if self.share_partitions is not None:
            self.share_partitions.partition_resigned(partition.topic_id, partition.index)

    def _shards(self, topic: str) -> ShardSet[Any] | None:
        """Those of an internal topic."""
        if topic == CONSUMER_OFFSETS:
            return self.groups.shards
        if topic == TRANSACTION_STATE:
            return self.transactions.shards
        if topic == SHARE_GROUP_STATE and self.share_states is not None:
            return self.share_states.shards
        return None


def build_coordinators(
    config: BrokerConfig, clock: Clock, cluster: Cluster, logs: LogTable, cold_reader: ColdReader
) -> Coordinators:
    """Builds them; changes of topics reach them from now on."""
    share_states = _share_states(config, clock, cluster, logs, cold_reader) if config.share_groups else None
    groups = _groups(config, clock, cluster, logs, cold_reader, share_states)
    cluster.topics.add_listener(TopicChanges(groups.on_topic_changed))
    producer_ids = ProducerIds(cluster.topics)
    transactions = TransactionCoordinator(
        transaction_config(config),
        clock,
        topic=LoggedTopic(TRANSACTION_STATE, cluster.topics, logs, cold_reader),
        markers=MarkerSink(
            logs.partition,
            groups.write_marker,
            is_deleted=KnownTopics(cluster.topics).is_deleted,
            now_ms=clock.now_ms,
        ),
        producer_ids=producer_ids,
        newest_leader_epoch=lambda: logs.leader_epoch,
    )
    share_partitions = None
    if share_states is not None:
        share_partitions = _share_partitions(config, clock, cluster, logs, cold_reader, share_states)
        groups.on_share_member_left = share_partitions.member_left
    return Coordinators(groups, producer_ids, transactions, share_states, share_partitions)


def _share_partitions(
    config: BrokerConfig,
    clock: Clock,
    cluster: Cluster,
    logs: LogTable,
    cold_reader: ColdReader,
    share_states: ShareStates,
) -> SharePartitions:
    from kbroker.log.timestamp_lookup import offset_for_timestamp
    from kbroker.share.settings import group_settings
    from kbroker.share.share_partitions import SharePartitions

    topics = cluster.topics
    built = SharePartitions(
        clock,
        share_states,
        find_log=logs.partition_by_id,
        settings_of=lambda group_id: group_settings(
            topics.image.group_configs.get(group_id, {}), topics.broker_configs
        ),
        read_cold=cold_reader.request,
        offset_for_time=lambda partition, timestamp: offset_for_timestamp(cold_reader, partition, timestamp),
        sessions_max=config.kafka["group.share.max.share.sessions"],
        answer_bytes=config.pools.share_answers,
    )
    share_states.before_reset = built.before_state_reset
    share_states.on_reset = built.state_reset
    return built


def _share_states(
    config: BrokerConfig, clock: Clock, cluster: Cluster, logs: LogTable, cold_reader: ColdReader
) -> ShareStates:
    from kbroker.coordinator.share_state.config import ShareStateConfig
    from kbroker.coordinator.share_state.states import ShareStates

    return ShareStates(
        ShareStateConfig(
            state_topic_partitions=config.kafka["share.coordinator.state.topic.num.partitions"],
            updates_per_snapshot=config.kafka["share.coordinator.snapshot.update.records.per.snapshot"],
        ),
        clock,
        topic=LoggedTopic(SHARE_GROUP_STATE, cluster.topics, logs, cold_reader),
    )


def _groups(
    config: BrokerConfig,
    clock: Clock,
    cluster: Cluster,
    logs: LogTable,
    cold_reader: ColdReader,
    share_states: ShareStates | None,
) -> GroupCoordinator:
    known = KnownTopics(cluster.topics)
    return GroupCoordinator(
        group_config(config),
        clock,
        topic=LoggedTopic(CONSUMER_OFFSETS, cluster.topics, logs, cold_reader),
        topic_exists=known.exists,
        deleted_topics=known.deleted_names,
        environment=GroupEnvironment(
            LoggedTopics(logs, known.deleted_ids), lambda group_id: cluster.topics.image.group_configs.get(group_id, {})
        ),
        share_states=share_states,
    )


def group_config(config: BrokerConfig) -> GroupConfig:
    """The settings of groups."""
    kafka = config.kafka
    return GroupConfig(
        offsets_topic_partitions=kafka["offsets.topic.num.partitions"],
        initial_rebalance_delay_ms=kafka["group.initial.rebalance.delay.ms"],
        session_timeout_min_ms=kafka["group.min.session.timeout.ms"],
        session_timeout_max_ms=kafka["group.max.session.timeout.ms"],
        group_size_max=min(kafka["group.max.size"], GROUP_SIZE_MAX),
        group_bytes_max=config.pools.groups,
        offset_metadata_length_max=kafka["offset.metadata.max.bytes"],
        offsets_retention_ms=kafka["offsets.retention.minutes"] * 60_000,
        offsets_retention_check_interval_ms=kafka["offsets.retention.check.interval.ms"],
        consumer_session_timeout_ms=kafka["group.consumer.session.timeout.ms"],
        consumer_session_timeout_min_ms=kafka["group.consumer.min.session.timeout.ms"],
        consumer_session_timeout_max_ms=kafka["group.consumer.max.session.timeout.ms"],
        consumer_heartbeat_interval_ms=kafka["group.consumer.heartbeat.interval.ms"],
        consumer_heartbeat_interval_min_ms=kafka["group.consumer.min.heartbeat.interval.ms"],
        consumer_heartbeat_interval_max_ms=kafka["group.consumer.max.heartbeat.interval.ms"],
        consumer_group_size_max=min(kafka["group.consumer.max.size"], GROUP_SIZE_MAX),
        share_session_timeout_ms=kafka["group.share.session.timeout.ms"],
        share_session_timeout_min_ms=kafka["group.share.min.session.timeout.ms"],
        share_session_timeout_max_ms=kafka["group.share.max.session.timeout.ms"],
        share_heartbeat_interval_ms=kafka["group.share.heartbeat.interval.ms"],
        share_heartbeat_interval_min_ms=kafka["group.share.min.heartbeat.interval.ms"],
        share_heartbeat_interval_max_ms=kafka["group.share.max.heartbeat.interval.ms"],
        share_group_size_max=min(kafka["group.share.max.size"], SHARE_GROUP_SIZE_MAX),
        migration_policy=kafka["group.consumer.migration.policy"],
    )


def transaction_config(config: BrokerConfig) -> TransactionConfig:
    """The settings of transactions."""
    kafka = config.kafka
    return TransactionConfig(
        bytes_max=config.pools.transactions,
        state_log_partitions=kafka["transaction.state.log.num.partitions"],
        timeout_max_ms=kafka["transaction.max.timeout.ms"],
        abort_timed_out_interval_ms=kafka["transaction.abort.timed.out.transaction.cleanup.interval.ms"],
        id_expiration_ms=kafka["transactional.id.expiration.ms"],
        remove_expired_interval_ms=kafka["transaction.remove.expired.transaction.cleanup.interval.ms"],
    )
