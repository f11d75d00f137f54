"""Topics that a command names: those that do not exist end it, with the nearest name."""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.cli.failure import CommandFailed, check, unknown
from kbroker.client.cluster_client import NO_NODE, ClusterClient, TopicPartition
from kbroker.errors import ErrorCode
from kbroker.protocol.apis.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponseTopic


def existing_topics(client: ClusterClient, names: Sequence[str] | None = None) -> list[MetadataResponseTopic]:
    """The topics with these names, or all; in order of name. Raises CommandFailed for one that does not exist.

    Partitions without a leader are among them: this does not wait until they have one.
    """
    asked = None if names is None else [MetadataRequestTopic(name=name) for name in dict.fromkeys(names)]
    response = client.any_broker(MetadataRequest(topics=asked, allow_auto_topic_creation=False))
    for topic in response.topics if names is not None else ():
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise unknown("topic", topic.name, topic_names(client))
        check(topic.error_code, repr(topic.name))
    for topic in response.topics:
        topic.partitions.sort(key=lambda partition: partition.partition_index)
    return sorted(response.topics, key=lambda topic: topic.name or "")


def topic_names(client: ClusterClient) -> list[str]:
    """The names of all topics."""
    return [topic.name or "" for topic in existing_topics(client)]


def chosen_partitions(topic: MetadataResponseTopic, indexes: Sequence[int] | None) -> list[TopicPartition]:
    """The partitions of a topic with these indexes, or all. Raises CommandFailed for one that it does not have."""
    name = topic.name or ""
    known = [partition.partition_index for partition in topic.partitions]
    for index in indexes or ():
        if index not in known:
            raise CommandFailed(f"{name} has no partition {index}: they are {known[0]} to {known[-1]}")
    return [(name, index) for index in (known if indexes is None else indexes)]


def led_partitions(topics: Sequence[MetadataResponseTopic]) -> dict[TopicPartition, int]:
    """The leader of each partition that has one, so that a request for it is answered."""
    return {
        (topic.name or "", partition.partition_index): partition.leader_id
        for topic in topics
        for partition in topic.partitions
        if partition.leader_id != NO_NODE
    }
