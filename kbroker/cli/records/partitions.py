"""The partitions of a topic that a command names."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.cli.failure import check, unknown
from kbroker.client.cluster_client import ClusterClient
from kbroker.errors import ErrorCode
from kbroker.protocol.apis.k03_metadata import MetadataRequest, MetadataRequestTopic
from kbroker.storage.stores.retry_policy import RetryPolicy

CREATION = RetryPolicy(3.0, wait_max_s=0.5)  # Apache Kafka answers before an automatic creation is done


def partitions_of(client: ClusterClient, topic: str) -> list[int]:
    """In order. CommandFailed when there is no such topic."""
    (found,) = client.topics([topic])
    if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise unknown("topic", topic, [each.name for each in client.topics() if each.name])
    check(found.error_code, topic)
    return sorted(partition.partition_index for partition in found.partitions)


def created_partitions_of(client: ClusterClient, topic: str, retries: RetryPolicy = CREATION) -> list[int]:
    """As `partitions_of`; the topic is created if the broker does that."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True)
    for _ in retries.attempts():
        (found,) = client.any_broker(request).topics
        if found.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            break
    return partitions_of(client, topic)


class Topics:
    """The partitions of topics, asked once per topic. Not thread-safe."""

    def __init__(self, client: ClusterClient, find: Callable[[ClusterClient, str], list[int]]) -> None:
        self._client = client
        self._find = find
        self._known: dict[str, list[int]] = {}

    def partitions(self, topic: str) -> list[int]:
        """In order. Raises CommandFailed."""
        if topic not in self._known:
            self._known[topic] = self._find(self._client, topic)
        return self._known[topic]
