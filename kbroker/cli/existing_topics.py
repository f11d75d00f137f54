"""Topics that a command names, and what it says of those that do not exist, with the nearest name."""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.cli.failure import CommandFailed, reason, unknown
from kbroker.client.cluster_client import NO_NODE, ClusterClient, TopicPartition
from kbroker.errors import ErrorCode
from kbroker.protocol.apis.cluster.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponseTopic


def existing_topics(client: ClusterClient, names: Sequence[str] | None = None) -> list[MetadataResponseTopic]:
    """The topics with these names, or all; in order of name. Raises CommandFailed for one that does not exist.

    Partitions without a leader are among them: this does not wait until they have one.
    """
    if names is None:
        return _asked_topics(client, None)
    topics, failures = found_topics(client, names)
    if failures:
        raise CommandFailed(failures[0])
    return topics


def found_topics(client: ClusterClient, names: Sequence[str]) -> tuple[list[MetadataResponseTopic], list[str]]:
    """Those of the topics that exist, in order of name, and why not for each of the others."""
    topics = _asked_topics(client, [MetadataRequestTopic(name=name) for name in dict.fromkeys(names)])
    missing = any(topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for topic in topics)
    known = topic_names(client) if missing else []
    failures = [_failure(topic, known) for topic in topics if topic.error_code]
    return [topic for topic in topics if not topic.error_code], failures


def topic_names(client: ClusterClient) -> list[str]:
    """The names of all topics."""
    return [topic.name or "" for topic in existing_topics(client)]


def _asked_topics(client: ClusterClient, asked: list[MetadataRequestTopic] | None) -> list[MetadataResponseTopic]:
    response = client.any_broker(MetadataRequest(topics=asked, allow_auto_topic_creation=False))
    topics: list[MetadataResponseTopic] = sorted(response.topics, key=lambda topic: topic.name or "")
    for topic in topics:
        topic.partitions.sort(key=lambda partition: partition.partition_index)
    return topics


def _failure(topic: MetadataResponseTopic, known: Sequence[str]) -> str:
    name = topic.name or ""
    if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return unknown("topic", name, known).message
    return f"{name!r}: {reason(topic.error_code)}"


def chosen_partitions(topic: MetadataResponseTopic, indexes: Sequence[int] | None) -> list[TopicPartition]:
    """The partitions of a topic with these indexes, or all. Raises CommandFailed for one that it does not have."""
    name = topic.name or ""
    known = [partition.partition_index for partition in topic.partitions]
    for index in indexes or ():
        check_partition(name, index, known)
    return [(name, index) for index in (known if indexes is None else indexes)]


def check_partition(topic: str, partition: int, known: Sequence[int]) -> None:
    """Raises CommandFailed for one that is not among those known, which are in order."""
    if partition not in known:
        raise CommandFailed(f"{topic} has no partition {partition}: they are {known[0]} to {known[-1]}")


def led_partitions(topics: Sequence[MetadataResponseTopic]) -> dict[TopicPartition, int]:
    """The leader of each partition that has one, so that a request for it is answered."""
    return {
        (topic.name or "", partition.partition_index): partition.leader_id
        for topic in topics
        for partition in topic.partitions
        if partition.leader_id != NO_NODE
    }
