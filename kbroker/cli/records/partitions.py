"""The partitions of a topic that a command names."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.cli.existing_topics import topic_names
from kbroker.cli.failure import check, unknown
from kbroker.cli.output import show_count
from kbroker.client.cluster_client import ClusterClient
from kbroker.errors import ErrorCode
from kbroker.protocol.apis.cluster.k03_metadata import MetadataRequest, MetadataRequestTopic
from kbroker.retry_policy import RetryPolicy

CREATION = RetryPolicy(3.0, wait_max_s=0.5)  # Apache Kafka answers before an automatic creation is done


def partitions_of(client: ClusterClient, topic: str) -> list[int]:
    """In order. CommandFailed when there is no such topic."""
    found = _known_partitions(client, topic)
    if found is None:
        raise unknown("topic", topic, topic_names(client))
    return found


def created_partitions_of(
    client: ClusterClient, topic: str, note: Callable[[str], None], retries: RetryPolicy = CREATION
) -> list[int]:
    """As `partitions_of`; a topic that does not exist is created if the broker does that, and `note` is told."""
    known = _known_partitions(client, topic)
    if known is not None:
        return known
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True)
    for _ in retries.attempts():
        (found,) = client.any_broker(request).topics
        if found.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            break
    created = partitions_of(client, topic)
    note(f"topic {topic} did not exist: created with {show_count(len(created), 'partition')}")
    return created


def _known_partitions(client: ClusterClient, topic: str) -> list[int] | None:
    """In order; None when there is no such topic. Raises CommandFailed."""
    (found,) = client.topics([topic])
    if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return None
    check(found.error_code, topic)
    return sorted(partition.partition_index for partition in found.partitions)


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
