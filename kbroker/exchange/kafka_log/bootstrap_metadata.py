"""`bootstrap.checkpoint`: the metadata that a KRaft cluster begins with (docs/formats/kafka-log.md).

    control batch   snapshot header: key int16 0, int16 3; value int16 0, int64 timestamp, uint8 0 (no tagged fields)
    batches         metadata records, framed as cluster_metadata.py says
    control batch   snapshot footer: key int16 0, int16 4; value int16 0, uint8 0

`kafka-storage format` writes one with feature levels. The first controller of a cluster appends every record in it to
its log, so its topics exist from the first start on.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kbroker._fast.records.records import build_batch
from kbroker.exchange.kafka_log.cluster_metadata import (
    TOPIC_RESOURCE,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    ProducerIdsRecord,
    TopicRecord,
    frame,
)
from kbroker.protocol.fields import Message

# 4.0-IV3: every Kafka from 4.0 on reads it, and its operator can raise it.
FEATURES = {"metadata.version": 25, "group.version": 1, "transaction.version": 2}
PARTITION_RECORD_VERSION = 1  # with the log folder of each replica
RECORDS_PER_BATCH = 1_000
NO_LEADER = -1

_HEADER_KEY = struct.pack(">hh", 0, 3)
_FOOTER_KEY = struct.pack(">hh", 0, 4)


@dataclass(frozen=True, slots=True)
class BootstrapTopic:
    """A topic to create; `leader_epoch` is the highest of its batches."""

    name: str
    topic_id: bytes
    partitions: int
    configs: Mapping[str, str]
    leader_epoch: int


def encode_bootstrap(
    topics: Sequence[BootstrapTopic], *, node_id: int, directory_id: bytes, next_producer_id: int, timestamp_ms: int
) -> bytes:
    """The file's bytes: one node with every partition in one log folder, elected when it registers."""
    records: list[tuple[Message, int]] = [(FeatureLevelRecord(name=n, feature_level=v), 0) for n, v in FEATURES.items()]
    for topic in topics:
        records.append((TopicRecord(name=topic.name, topic_id=topic.topic_id), 0))
        for partition in range(topic.partitions):
            record = PartitionRecord(
                partition_id=partition,
                topic_id=topic.topic_id,
                replicas=[node_id],
                isr=[node_id],
                leader=NO_LEADER,
                leader_epoch=max(topic.leader_epoch, 0),
                partition_epoch=0,
                directories=[directory_id],
            )
            records.append((record, PARTITION_RECORD_VERSION))
        for name, value in topic.configs.items():
            config = ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=topic.name, name=name, value=value)
            records.append((config, 0))
    if next_producer_id > 0:
        records.append((ProducerIdsRecord(broker_id=node_id, next_producer_id=next_producer_id), 0))
    header = (_HEADER_KEY, struct.pack(">hqB", 0, timestamp_ms, 0), timestamp_ms, None)
    footer = (_FOOTER_KEY, struct.pack(">hB", 0, 0), timestamp_ms, None)
    pieces = [build_batch([header], leader_epoch=0, control=True)]
    offset = 1
    for first in range(0, len(records), RECORDS_PER_BATCH):
        chosen = records[first : first + RECORDS_PER_BATCH]
        rows = [(None, frame(record, version), timestamp_ms, None) for record, version in chosen]
        pieces.append(build_batch(rows, base_offset=offset, leader_epoch=0))
        offset += len(chosen)
    pieces.append(build_batch([footer], base_offset=offset, leader_epoch=0, control=True))
    return b"".join(pieces)
