"""Offsets of groups without members, set and deleted. Raises CommandFailed where a whole request is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kbroker.cli.failure import check, reason
from kbroker.cli.group.scope import by_topic
from kbroker.client.cluster_client import ClusterClient, CoordinatorKind, TopicPartition
from kbroker.protocol.apis.groups.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kbroker.protocol.apis.groups.k47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kbroker.protocol.apis.share_groups.k91_alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from kbroker.protocol.apis.share_groups.k92_delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)

OFFSET_COMMIT_NEWEST = 9  # the last with topics by name

Refused = dict[TopicPartition, str]  # why, for each partition that was refused


def commit_offsets(client: ClusterClient, group_id: str, offsets: Mapping[TopicPartition, int]) -> Refused:
    """Commits for a group without members; one that does not exist is created."""
    topics = [
        OffsetCommitRequestTopic(
            name=topic,
            partitions=[
                OffsetCommitRequestPartition(
                    partition_index=index, committed_offset=offsets[topic, index], committed_metadata=""
                )
                for index in indexes
            ],
        )
        for topic, indexes in by_topic(offsets).items()
    ]
    request = OffsetCommitRequest(group_id=group_id, topics=topics)

    def codes(response: Any) -> list[int]:
        return [part.error_code for topic in response.topics for part in topic.partitions]

    response = client.coordinator(CoordinatorKind.GROUP, group_id, request, codes, OFFSET_COMMIT_NEWEST)
    return _refused((topic.name, part) for topic in response.topics for part in topic.partitions)


def alter_share_offsets(client: ClusterClient, group_id: str, offsets: Mapping[TopicPartition, int]) -> Refused:
    """Sets the start offsets of a share group without members."""
    topics = [
        AlterShareGroupOffsetsRequestTopic(
            topic_name=topic,
            partitions=[
                AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offsets[topic, index])
                for index in indexes
            ],
        )
        for topic, indexes in by_topic(offsets).items()
    ]
    request = AlterShareGroupOffsetsRequest(group_id=group_id, topics=topics)
    response = client.coordinator(CoordinatorKind.GROUP, group_id, request, lambda response: [response.error_code])
    check(response.error_code, group_id, response.error_message)
    return _refused((topic.topic_name, part) for topic in response.responses for part in topic.partitions)


def delete_offsets(client: ClusterClient, group_id: str, partitions: Iterable[TopicPartition]) -> Refused:
    """Deletes committed offsets of partitions that no member is subscribed to."""
    topics = [
        OffsetDeleteRequestTopic(
            name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
        )
        for topic, indexes in by_topic(partitions).items()
    ]
    request = OffsetDeleteRequest(group_id=group_id, topics=topics)
    response = client.coordinator(CoordinatorKind.GROUP, group_id, request, lambda response: [response.error_code])
    check(response.error_code, group_id)
    return _refused((topic.name, part) for topic in response.topics for part in topic.partitions)


def delete_share_offsets(client: ClusterClient, group_id: str, topics: Sequence[str]) -> dict[str, str]:
    """Makes a share group without members forget topics; why not, for each topic that was refused."""
    request = DeleteShareGroupOffsetsRequest(
        group_id=group_id, topics=[DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in topics]
    )
    response = client.coordinator(CoordinatorKind.GROUP, group_id, request, lambda response: [response.error_code])
    check(response.error_code, group_id, response.error_message)
    return {
        topic.topic_name: reason(topic.error_code, topic.error_message)
        for topic in response.responses
        if topic.error_code
    }


def _refused(parts: Iterable[tuple[str, Any]]) -> Refused:
    return {
        (topic, part.partition_index): reason(part.error_code, getattr(part, "error_message", None))
        for topic, part in parts
        if part.error_code
    }
