"""The consumer's messages that JoinGroup and SyncGroup carry as opaque bytes.

    subscription  ConsumerProtocolSubscription: topics by name, and from version 1 the partitions that it owns
    assignment    ConsumerProtocolAssignment: partitions by topic name
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kbroker.coordinator.group.environment import TopicCatalog
from kbroker.coordinator.group.topic_partitions import NO_PARTITIONS, Partitions, TopicInfo
from kbroker.protocol import records
from kbroker.protocol.records import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    decode_consumer_protocol,
)


@dataclass(frozen=True, slots=True)
class ConsumerSubscription:
    """A subscription."""

    topic_names: frozenset[str]
    owned: Partitions
    rack_id: str | None


def read_subscription(data: bytes, catalog: TopicCatalog) -> ConsumerSubscription:
    """The subscription in a protocol's metadata. Raises ProtocolError."""
    message = decode_consumer_protocol(ConsumerProtocolSubscription, data)
    return ConsumerSubscription(
        frozenset(message.topics), _by_id(message.owned_partitions, catalog), message.rack_id
    )


def read_assignment(data: bytes, catalog: TopicCatalog) -> Partitions:
    """The partitions in an assignment, those of existing topics. Raises ProtocolError."""
    if not data:
        return NO_PARTITIONS
    return _by_id(decode_consumer_protocol(ConsumerProtocolAssignment, data).assigned_partitions, catalog)


def write_assignment(partitions: Partitions, topics: Mapping[str, TopicInfo], subscription: bytes) -> bytes:
    """An assignment, in the version of the member's subscription; partitions of unknown topics are left out."""
    names = {info.topic_id: name for name, info in topics.items()}
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            TopicPartition(topic=names[topic_id], partitions=sorted(indexes))
            for topic_id, indexes in partitions.items()
            if topic_id in names
        ],
        user_data=None,
    )
    version = min(records.record_version(subscription), ConsumerProtocolAssignment.VERSIONS.last)
    return records.encode_record(message, version)


def _by_id(entries: list[TopicPartition], catalog: TopicCatalog) -> Partitions:
    result: dict[bytes, frozenset[int]] = {}
    for entry in entries:
        info = catalog.info(entry.topic)
        if info is not None and entry.partitions:
            result[info.topic_id] = result.get(info.topic_id, frozenset()).union(entry.partitions)
    return result
