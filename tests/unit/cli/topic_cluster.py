"""A cluster of one broker whose partitions, configs and transactions a test describes, for commands about topics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kbroker.errors import ErrorCode
from kbroker.protocol.api_keys import SERVED, ApiKey
from kbroker.protocol.apis.cluster import k03_metadata, k35_describe_log_dirs
from kbroker.protocol.apis.configs import k32_describe_configs, k44_incremental_alter_configs
from kbroker.protocol.apis.groups import k10_find_coordinator
from kbroker.protocol.apis.records import k02_list_offsets, k21_delete_records
from kbroker.protocol.apis.topics import k19_create_topics
from kbroker.protocol.apis.transactions import (
    k27_write_txn_markers,
    k61_describe_producers,
    k65_describe_transactions,
    k66_list_transactions,
)
from kbroker.protocol.fields import Message
from tests.unit.client.fake_broker import FakeBroker

NODE_ID = 1
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
READ_COMMITTED, DEBUGGING = 1, -2


@dataclass
class Log:
    """A partition; `by_time` is the offset for any timestamp. `error` and `trim_error` are what ListOffsets and
    DeleteRecords answer."""

    start: int = 0
    high: int = 0
    stable: int | None = None
    end: int | None = None
    by_time: int = -1
    newest: int = -1
    size: int = 0
    unflushed: int = -1
    leader: int = NODE_ID
    replicas: tuple[int, ...] = (NODE_ID,)
    isr: tuple[int, ...] = (NODE_ID,)
    error: int = 0
    trim_error: int = 0
    producers: list[k61_describe_producers.ProducerState] = field(default_factory=list)

    def offset(self, timestamp: int, read_committed: bool, debugging: bool) -> int:
        if timestamp == EARLIEST:
            return self.start
        if timestamp != LATEST:
            return self.by_time
        if debugging:
            return self.high if self.end is None else self.end
        return self.stable if read_committed and self.stable is not None else self.high


class TopicCluster:
    """Change the fields at any time. `altered` and `markers` have what was sent to be changed, `duration_filter` what
    the last list of transactions asked for."""

    def __init__(self) -> None:
        self.topics: dict[str, list[Log]] = {}
        self.configs: dict[tuple[int, str], list[k32_describe_configs.DescribeConfigsResourceResult]] = {}
        self.transactions: dict[str, k65_describe_transactions.TransactionState] = {}
        self.altered: list[tuple[int, str, dict[str, tuple[int, str | None]]]] = []
        self.replication_factor = 1  # of topics that are created
        self.duration_filter: int | None = None
        self.markers: list[k27_write_txn_markers.WritableTxnMarker] = []
        handlers = {
            ApiKey.METADATA: self._metadata,
            ApiKey.LIST_OFFSETS: self._list_offsets,
            ApiKey.DESCRIBE_LOG_DIRS: self._describe_log_dirs,
            ApiKey.DESCRIBE_CONFIGS: self._describe_configs,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: self._alter_configs,
            ApiKey.CREATE_TOPICS: self._create_topics,
            ApiKey.DELETE_RECORDS: self._delete_records,
            ApiKey.FIND_COORDINATOR: self._find_coordinator,
            ApiKey.DESCRIBE_PRODUCERS: self._describe_producers,
            ApiKey.LIST_TRANSACTIONS: self._list_transactions,
            ApiKey.DESCRIBE_TRANSACTIONS: self._describe_transactions,
            ApiKey.WRITE_TXN_MARKERS: self._write_txn_markers,
        }
        self.broker = FakeBroker(handlers, {key: SERVED[key] for key in (*handlers, ApiKey.API_VERSIONS)})

    def _logs(self, request: Any, indexes: str = "partitions") -> Iterator[tuple[str, list[tuple[Any, Log]]]]:
        """Each topic of a request with its partitions, as the request has them, and their logs."""
        for topic in request.topics:
            parts = getattr(topic, indexes)
            yield (
                topic.name,
                [(part, self.topics[topic.name][getattr(part, "partition_index", part)]) for part in parts],
            )

    def _metadata(self, request: Any) -> Message:
        names = list(self.topics) if request.topics is None else [topic.name for topic in request.topics]
        broker = k03_metadata.MetadataResponseBroker(
            node_id=NODE_ID, host=self.broker.host, port=self.broker.port, rack="a"
        )
        topics = [
            k03_metadata.MetadataResponseTopic(
                name=name,
                is_internal=name.startswith("__"),
                error_code=0 if name in self.topics else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                partitions=[
                    k03_metadata.MetadataResponsePartition(
                        partition_index=index,
                        leader_id=log.leader,
                        error_code=ErrorCode.LEADER_NOT_AVAILABLE if log.leader < 0 else 0,
                        replica_nodes=list(log.replicas),
                        isr_nodes=list(log.isr),
                    )
                    for index, log in enumerate(self.topics.get(name, []))
                ],
            )
            for name in names
        ]
        return k03_metadata.MetadataResponse(
            cluster_id="a-cluster", controller_id=NODE_ID, brokers=[broker], topics=topics
        )

    def _list_offsets(self, request: Any) -> Message:
        read_committed, debugging = request.isolation_level == READ_COMMITTED, request.replica_id == DEBUGGING
        return k02_list_offsets.ListOffsetsResponse(
            topics=[
                k02_list_offsets.ListOffsetsTopicResponse(
                    name=name,
                    partitions=[
                        k02_list_offsets.ListOffsetsPartitionResponse(
                            partition_index=part.partition_index,
                            error_code=log.error,
                            offset=log.offset(part.timestamp, read_committed, debugging),
                            timestamp=log.newest if part.timestamp == MAX_TIMESTAMP else -1,
                        )
                        for part, log in logs
                    ],
                )
                for name, logs in self._logs(request)
            ]
        )

    def _describe_log_dirs(self, request: Any) -> Message:
        topics = [
            k35_describe_log_dirs.DescribeLogDirsTopic(
                name=topic.topic,
                partitions=[
                    k35_describe_log_dirs.DescribeLogDirsPartition(
                        partition_index=index,
                        partition_size=self.topics[topic.topic][index].size,
                        unflushed_bytes=self.topics[topic.topic][index].unflushed,
                    )
                    for index in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return k35_describe_log_dirs.DescribeLogDirsResponse(
            results=[k35_describe_log_dirs.DescribeLogDirsResult(log_dir="/data", topics=topics)]
        )

    def _describe_configs(self, request: Any) -> Message:
        results = []
        for resource in request.resources:
            keys = resource.configuration_keys
            configs = self.configs.get((resource.resource_type, resource.resource_name), [])
            results.append(
                k32_describe_configs.DescribeConfigsResult(
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=[each for each in configs if not keys or each.name in keys],
                )
            )
        return k32_describe_configs.DescribeConfigsResponse(results=results)

    def _alter_configs(self, request: Any) -> Message:
        (resource,) = request.resources
        changes = {each.name: (each.config_operation, each.value) for each in resource.configs}
        self.altered.append((resource.resource_type, resource.resource_name, changes))
        known = {each.name for each in self.configs[resource.resource_type, resource.resource_name]}
        code = 0 if changes.keys() <= known else ErrorCode.INVALID_CONFIG
        return k44_incremental_alter_configs.IncrementalAlterConfigsResponse(
            responses=[k44_incremental_alter_configs.AlterConfigsResourceResponse(error_code=code)]
        )

    def _create_topics(self, request: Any) -> Message:
        return k19_create_topics.CreateTopicsResponse(
            topics=[
                k19_create_topics.CreatableTopicResult(
                    name=topic.name, num_partitions=1, replication_factor=self.replication_factor
                )
                for topic in request.topics
            ]
        )

    def _delete_records(self, request: Any) -> Message:
        topics = []
        for name, logs in self._logs(request):
            results = []
            for part, log in logs:
                log.start = log.start if log.trim_error else part.offset
                results.append(
                    k21_delete_records.DeleteRecordsPartitionResult(
                        partition_index=part.partition_index, low_watermark=log.start, error_code=log.trim_error
                    )
                )
            topics.append(k21_delete_records.DeleteRecordsTopicResult(name=name, partitions=results))
        return k21_delete_records.DeleteRecordsResponse(topics=topics)

    def _find_coordinator(self, request: Any) -> Message:
        found = [
            k10_find_coordinator.Coordinator(key=key, node_id=NODE_ID, error_code=0, error_message=None)
            for key in request.coordinator_keys
        ]
        return k10_find_coordinator.FindCoordinatorResponse(coordinators=found)

    def _describe_producers(self, request: Any) -> Message:
        return k61_describe_producers.DescribeProducersResponse(
            topics=[
                k61_describe_producers.TopicResponse(
                    name=name,
                    partitions=[
                        k61_describe_producers.PartitionResponse(partition_index=index, active_producers=log.producers)
                        for index, log in logs
                    ],
                )
                for name, logs in self._logs(request, "partition_indexes")
            ]
        )

    def _list_transactions(self, request: Any) -> Message:
        self.duration_filter = request.duration_filter
        return k66_list_transactions.ListTransactionsResponse(
            transaction_states=[
                k66_list_transactions.TransactionState(
                    transactional_id=name, producer_id=state.producer_id, transaction_state=state.transaction_state
                )
                for name, state in self.transactions.items()
                if not request.producer_id_filters or state.producer_id in request.producer_id_filters
            ]
        )

    def _describe_transactions(self, request: Any) -> Message:
        unknown = k65_describe_transactions.TransactionState(error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return k65_describe_transactions.DescribeTransactionsResponse(
            transaction_states=[self.transactions.get(name, unknown) for name in request.transactional_ids]
        )

    def _write_txn_markers(self, request: Any) -> Message:
        self.markers += request.markers
        return k27_write_txn_markers.WriteTxnMarkersResponse(
            markers=[
                k27_write_txn_markers.WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=[
                        k27_write_txn_markers.WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                k27_write_txn_markers.WritableTxnMarkerPartitionResult(partition_index=index)
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )


@contextmanager
def topic_cluster() -> Iterator[TopicCluster]:
    """A running one."""
    made = TopicCluster()
    try:
        yield made
    finally:
        made.broker.close()
