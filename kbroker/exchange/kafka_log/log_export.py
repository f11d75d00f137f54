"""Writes topics of a cluster as an Apache Kafka log folder (docs/formats/kafka-log.md).

It writes what the manifest names: of a running broker, the flushed part. With `ids` only the partitions' folders are
written, to be moved into the log folder of a Kafka that has the topics already.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kbroker.cluster.image import MetadataImage, TopicImage
from kbroker.errors import CorruptionError
from kbroker.exchange.kafka_log.bootstrap_metadata import BootstrapTopic, encode_bootstrap
from kbroker.exchange.kafka_log.checkpoint_file import (
    CLEAN_SHUTDOWN,
    CLEAN_SHUTDOWN_CONTENT,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_STARTS,
    RECOVERY_POINTS,
    TopicPartition,
    encode_leader_epochs,
    encode_partition_offsets,
)
from kbroker.exchange.kafka_log.cluster_metadata import BOOTSTRAP_CHECKPOINT
from kbroker.exchange.kafka_log.log_segment import SNAPSHOT_SUFFIX, segment_name
from kbroker.exchange.kafka_log.partition_metadata import (
    META_PROPERTIES,
    PARTITION_METADATA,
    encode_meta_properties,
    encode_partition_metadata,
)
from kbroker.exchange.kafka_log.producer_snapshot import SnapshotProducer, encode_producer_snapshot
from kbroker.exchange.kafka_log.segment_writer import SEGMENT_BYTES, SegmentWriter, write_synced
from kbroker.exchange.partition_source import ExportedPartition, ExportError, PartitionSource
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.partition_state import PartitionState
from kbroker.storage.stores.local_files import sync_directory
from kbroker.storage.stores.object_store import ObjectStore

OWN_CONFIGS = "kbroker."  # keys that only kbroker knows


@dataclass(frozen=True, slots=True)
class KafkaNode:
    """The Kafka that is to start on the folder."""

    cluster_id: str
    node_id: int = 1
    directory_id: bytes = field(default_factory=lambda: _directory_id())


def _directory_id() -> bytes:
    while True:
        value = secrets.token_bytes(16)
        if any(value[:15]) and value[0] < 0xF8:  # not reserved, and its text form does not begin with a dash
            return value


class KafkaLogExport:
    """One export into `folder`, which must be empty or missing.

    Raises ExportError, CorruptionError, StoreError, OSError.

    Args:
        store, manifest, metadata: the cluster's bucket and the state of its logs.
        ids: topic ids of the target by name; None: a whole log folder is written, with kbroker's ids.
        reload: returns the current manifest, in case the broker has replaced an object.
        clean: marks a clean stop, so that Kafka does not read every batch when it starts.
    """

    def __init__(
        self,
        store: ObjectStore,
        manifest: ManifestImage,
        metadata: MetadataImage,
        folder: Path,
        *,
        ids: Mapping[str, bytes] | None = None,
        clean: bool = True,
        on_partition: Callable[[ExportedPartition], None] = lambda partition: None,
        reload: Callable[[], ManifestImage] | None = None,
    ) -> None:
        self._store = store
        self._manifest = manifest
        self._metadata = metadata
        self._folder = folder
        self._ids = ids
        self._clean = clean
        self._on_partition = on_partition
        self._reload = reload
        self._written: list[ExportedPartition] = []

    def run(self, names: Sequence[str], node: KafkaNode, now_ms: int) -> None:
        """Writes the topics; the folder's own files come last."""
        topics = [self._topic(name) for name in names]
        self._folder.mkdir(parents=True, exist_ok=True)
        if any(self._folder.iterdir()):
            raise ExportError(f"{self._folder} is not empty")
        for topic in topics:
            for partition in range(topic.partitions):
                self._write_partition(topic, partition)
        if self._ids is None:
            self._write_root(topics, node, now_ms)
        sync_directory(self._folder)

    def _topic(self, name: str) -> TopicImage:
        topic = self._metadata.by_name.get(name)
        if topic is None:
            raise ExportError(f"no topic {name} in this cluster")
        if self._ids is not None and name not in self._ids:
            raise ExportError(f"the target has no topic {name}: create it there first")
        return topic

    def _write_partition(self, topic: TopicImage, partition: int) -> None:
        state = self._manifest.partition(topic.topic_id, partition) or PartitionState(topic.topic_id, partition)
        source = PartitionSource(topic, state, self._store, self._manifest, self._reload)
        folder = self._folder / partition_folder(topic.name, partition)
        topic_id = topic.topic_id if self._ids is None else self._ids[topic.name]
        written = write_partition_folder(source, folder, topic_id)
        self._written.append(written)
        self._on_partition(written)

    def _write_root(self, topics: Sequence[TopicImage], node: KafkaNode, now_ms: int) -> None:
        states = [
            [self._manifest.partition(topic.topic_id, partition) for partition in range(topic.partitions)]
            for topic in topics
        ]
        described = [
            (topic, last_epoch([state for state in found if state is not None]))
            for topic, found in zip(topics, states, strict=True)
        ]
        write_log_root(
            self._folder,
            described,
            self._written,
            node,
            next_producer_id=self._metadata.next_producer_id,
            now_ms=now_ms,
            clean=self._clean,
        )


def partition_folder(topic: str, partition: int) -> str:
    """The name of a partition's folder."""
    return f"{topic}-{partition}"


def write_partition_folder(source: PartitionSource, folder: Path, topic_id: bytes) -> ExportedPartition:
    """Writes one partition into the new folder `folder`, with this topic id, durably.

    Raises CorruptionError, StoreError, OSError; then the folder is incomplete.
    """
    topic, state = source.topic, source.state
    folder.mkdir()
    write_synced(folder / PARTITION_METADATA, encode_partition_metadata(topic_id))
    end_offset = max(state.end_offset, state.log_start_offset)
    writer = SegmentWriter(
        folder,
        state.log_start_offset,
        sorted(state.aborted, key=lambda entry: entry[2]),
        segment_bytes=_segment_bytes(topic),
    )
    written = ExportedPartition(topic.name, state.partition, state.log_start_offset, end_offset, 0)
    for block in source.blocks():
        if int(block.entries[0]["base_offset"]) < writer.end_offset and writer.segments:
            raise CorruptionError(
                f"{topic.name}-{state.partition}: offset {int(block.entries[0]['base_offset'])} comes twice"
            )
        writer.add(block)
        written.bytes += len(block.data)
    writer.finish(end_offset)
    written.segments, written.first_segment = len(writer.segments), writer.segments[0]
    epochs = [(epoch, max(start, writer.segments[0])) for epoch, start in state.leader_epochs]
    write_synced(folder / LEADER_EPOCHS, encode_leader_epochs(epochs))
    snapshot = encode_producer_snapshot(_producers(state))
    write_synced(folder / segment_name(end_offset, SNAPSHOT_SUFFIX), snapshot)
    sync_directory(folder)
    return written


def last_epoch(states: Sequence[PartitionState]) -> int:
    """The highest leader epoch of a topic's partitions; 0 when nothing has one."""
    return max((state.leader_epochs[-1][0] for state in states if state.leader_epochs), default=0)


def write_log_root(
    folder: Path,
    topics: Sequence[tuple[TopicImage, int]],
    partitions: Sequence[ExportedPartition],
    node: KafkaNode,
    *,
    next_producer_id: int,
    now_ms: int,
    clean: bool = True,
) -> None:
    """Writes the files that turn partitions' folders into a log folder of Kafka; `topics` with their last leader epoch.

    `clean` marks a clean stop. Raises OSError.
    """
    bootstrap = encode_bootstrap(
        [
            BootstrapTopic(
                topic.name,
                topic.topic_id,
                topic.partitions,
                {name: value for name, value in topic.configs.items() if not name.startswith(OWN_CONFIGS)},
                epoch,
            )
            for topic, epoch in topics
        ],
        node_id=node.node_id,
        directory_id=node.directory_id,
        next_producer_id=next_producer_id,
        timestamp_ms=now_ms,
    )
    ends: dict[TopicPartition, int] = {(part.topic, part.partition): part.end_offset for part in partitions}
    starts: dict[TopicPartition, int] = {
        (part.topic, part.partition): part.log_start_offset
        for part in partitions
        if part.log_start_offset > part.first_segment
    }
    write_synced(folder / BOOTSTRAP_CHECKPOINT, bootstrap)
    write_synced(folder / HIGH_WATERMARKS, encode_partition_offsets(ends))
    write_synced(folder / LOG_STARTS, encode_partition_offsets(starts))
    if clean:
        write_synced(folder / RECOVERY_POINTS, encode_partition_offsets(ends))
        write_synced(folder / CLEAN_SHUTDOWN, CLEAN_SHUTDOWN_CONTENT)
    write_synced(folder / META_PROPERTIES, encode_meta_properties(node.cluster_id, node.node_id, node.directory_id))


def _segment_bytes(topic: TopicImage) -> int:
    value = topic.configs.get("segment.bytes", "")
    return int(value) if value.isdigit() else SEGMENT_BYTES


def _producers(state: PartitionState) -> list[SnapshotProducer]:
    rows = []
    for producer_id, epoch, coordinator_epoch, timestamp, first_offset, batches in state.producers.values():
        sequence, offset, delta, batch_ms = batches[-1] if batches else (-1, -1, 0, timestamp)
        newest_ms = max(timestamp, batch_ms)
        rows.append(
            SnapshotProducer(producer_id, epoch, sequence, offset, delta, newest_ms, coordinator_epoch, first_offset)
        )
    return sorted(rows)
