"""What brokers know of partitions, asked for all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kbroker.cli.existing_topics import led_partitions
from kbroker.cli.failure import reason
from kbroker.client.cluster_client import CONSUMER, ClusterClient, TopicPartition
from kbroker.protocol.apis.cluster.k03_metadata import MetadataResponseTopic
from kbroker.protocol.apis.cluster.k35_describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from kbroker.protocol.apis.records.k02_list_offsets import MAX_TIMESTAMP


class Size(NamedTuple):
    """Bytes of a partition; of those, the bytes that no object has yet, where the broker says."""

    size_bytes: int
    unflushed_bytes: int | None


class PartitionFacts:
    """Questions about the partitions of topics that have a leader. Answers leave out partitions with an error.

    `errors` has why, by partition, or by broker for what a whole broker does not answer.
    """

    def __init__(self, client: ClusterClient, topics: Sequence[MetadataResponseTopic]) -> None:
        self._client = client
        self._led = led_partitions(topics)
        self.errors: dict[str, str] = {}

    def offsets(
        self, timestamp: int, read_committed: bool = False, replica_id: int = CONSUMER
    ) -> dict[TopicPartition, int]:
        """The offset that ListOffsets has for a timestamp; -1 for none."""
        return {each: value.offset for each, value in self._found(timestamp, read_committed, replica_id).items()}

    def newest_timestamps(self) -> dict[TopicPartition, int]:
        """The highest timestamp in ms; partitions without records are left out."""
        found = self._found(MAX_TIMESTAMP, False, CONSUMER)
        return {each: value.timestamp for each, value in found.items() if value.timestamp >= 0}

    def _found(self, timestamp: int, read_committed: bool, replica_id: int) -> dict[TopicPartition, Any]:
        found = {}
        asked = dict.fromkeys(self._led.keys(), timestamp)
        for (topic, index), answer in self._client.offsets(asked, read_committed, replica_id).items():
            if answer.error_code:
                self.errors[f"{topic}-{index}"] = reason(answer.error_code)
            else:
                found[topic, index] = answer.value
        return found

    def sizes(self) -> dict[TopicPartition, Size]:
        """The size of each partition at its leader."""
        found = {}
        for node_id in sorted(set(self._led.values())):
            response = self._client.broker(node_id, self._log_dirs_request(node_id))
            if response.error_code:
                self.errors[f"sizes at broker {node_id}"] = reason(response.error_code)
            for log_dir in response.results:
                for topic in log_dir.topics:
                    for part in topic.partitions:
                        if not part.is_future_key:
                            unflushed = part.unflushed_bytes if part.unflushed_bytes >= 0 else None
                            found[topic.name, part.partition_index] = Size(part.partition_size, unflushed)
        return found

    def _log_dirs_request(self, node_id: int) -> DescribeLogDirsRequest:
        indexes: dict[str, list[int]] = {}
        for (topic, index), leader_id in self._led.items():
            if leader_id == node_id:
                indexes.setdefault(topic, []).append(index)
        return DescribeLogDirsRequest(
            topics=[DescribableLogDirTopic(topic=topic, partitions=each) for topic, each in indexes.items()]
        )
