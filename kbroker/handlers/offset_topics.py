"""Topics in the offset APIs: by name, and by id from version 10 on (KIP-848); and which offsets may be committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kbroker.coordinator.group.requests import CommittedOffset
from kbroker.errors import ErrorCode
from kbroker.handlers.base import Context
from kbroker.protocol.fields import ZERO_UUID

TOPIC_IDS_MIN_VERSION = 10  # of OffsetCommit and OffsetFetch


class Partition(Protocol):
    """A partition whose offset is to be committed."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    committed_metadata: str | None


class Topic(Protocol):
    """A topic whose offsets are to be committed."""

    name: str
    topic_id: bytes

    @property
    def partitions(self) -> Sequence[Partition]: ...


def resolve_names(context: Context, topics: Sequence[Topic]) -> None:
    """Fills in the names of topics given by their ids; unknown ids get an empty one, which no topic has."""
    for topic in topics:
        known = context.logs.by_id.get(topic.topic_id)
        topic.name = "" if known is None else known.name


def split_commit(
    context: Context, topics: Sequence[Topic]
) -> tuple[list[CommittedOffset], dict[tuple[str, int], ErrorCode]]:
    """The offsets that may be committed, and why the others may not: by name and partition."""
    offsets: list[CommittedOffset] = []
    refused: dict[tuple[str, int], ErrorCode] = {}
    for topic in topics:
        for partition in topic.partitions:
            index = partition.partition_index
            error = _check(context, topic, partition)
            if error:
                refused[topic.name, index] = error
            else:
                metadata = partition.committed_metadata or ""
                offsets.append(
                    (topic.name, index, partition.committed_offset, partition.committed_leader_epoch, metadata)
                )
    return offsets, refused


def _check(context: Context, topic: Topic, partition: Partition) -> ErrorCode:
    if not context.groups.topic_exists(topic.name, partition.partition_index):
        by_id = not topic.name and topic.topic_id != ZERO_UUID
        return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    metadata = partition.committed_metadata
    # Kafka counts Java chars: UTF-16 code units.
    if metadata and len(metadata.encode("utf-16-le")) // 2 > context.groups.config.offset_metadata_length_max:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE
