"""The topics of a KRaft cluster: the records of `__cluster_metadata` (docs/formats/kafka-log.md).

The topic's log and its snapshots (`<end offset, 20>-<epoch, 10>.checkpoint`) hold batches of records whose value is

    frame version 1, unsigned varint | type, unsigned varint | version, unsigned varint | fields, flexible form

Types read: 2 topic, 3 partition, 4 config, 9 topic removed, 15 producer ids, 23 to 25 a metadata transaction begun,
ended and aborted. Other types are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kbroker._fast.records.records import iter_batches, iter_records
from kbroker.errors import CorruptionError, ProtocolError
from kbroker.exchange.kafka_log.log_segment import BadBatch, read_blocks, segment_bases, segment_name
from kbroker.protocol.compiler import decode, encode
from kbroker.protocol.fields import INT8, INT16, INT32, INT64, STRING, UUID, F, Message
from kbroker.storage.stores.regular_file import is_folder

FOLDER = "__cluster_metadata-0"
BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"  # a snapshot with the first metadata
FRAME_VERSION = 1
TOPIC_RESOURCE = 2
_SNAPSHOT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint", re.ASCII)


class FeatureLevelRecord(Message, versions="0", flexible="0+", owned=True):
    """A finalized feature."""

    name: str = F(STRING, "0+")
    feature_level: int = F(INT16, "0+")


class TopicRecord(Message, versions="0", flexible="0+", owned=True):
    """A topic exists."""

    name: str = F(STRING, "0+")
    topic_id: bytes = F(UUID, "0+")


class PartitionRecord(Message, versions="0-2", flexible="0+", owned=True):
    """A partition exists, with its replicas."""

    partition_id: int = F(INT32, "0+", default=-1)
    topic_id: bytes = F(UUID, "0+")
    replicas: list[int] = F([INT32], "0+")
    isr: list[int] = F([INT32], "0+")
    removing_replicas: list[int] = F([INT32], "0+")
    adding_replicas: list[int] = F([INT32], "0+")
    leader: int = F(INT32, "0+", default=-1)
    leader_recovery_state: int = F(INT8, "0+", tag=0)
    leader_epoch: int = F(INT32, "0+", default=-1)
    partition_epoch: int = F(INT32, "0+", default=-1)
    directories: list[bytes] = F([UUID], "1+")
    eligible_leader_replicas: list[int] | None = F([INT32], "2+", nullable="2+", default=None, tag=1)
    last_known_elr: list[int] | None = F([INT32], "2+", nullable="2+", default=None, tag=2)


class ConfigRecord(Message, versions="0", flexible="0+", owned=True):
    """A config of a topic (resource type 2) or of something else; a null value unsets it."""

    resource_type: int = F(INT8, "0+")
    resource_name: str = F(STRING, "0+")
    name: str = F(STRING, "0+")
    value: str | None = F(STRING, "0+", nullable="0+")


class RemoveTopicRecord(Message, versions="0", flexible="0+", owned=True):
    """A topic was deleted."""

    topic_id: bytes = F(UUID, "0+")


class ProducerIdsRecord(Message, versions="0", flexible="0+", owned=True):
    """Producer ids below `next_producer_id` were allocated."""

    broker_id: int = F(INT32, "0+")
    broker_epoch: int = F(INT64, "0+", default=-1)
    next_producer_id: int = F(INT64, "0+")


TYPES: dict[int, type[Message]] = {
    2: TopicRecord,
    3: PartitionRecord,
    4: ConfigRecord,
    9: RemoveTopicRecord,
    12: FeatureLevelRecord,
    15: ProducerIdsRecord,
}
BEGIN, END, ABORT = 23, 24, 25
_TYPE_OF = {cls: number for number, cls in TYPES.items()}


@dataclass(slots=True)
class KafkaTopic:
    """A topic of the cluster; `configs` are its own ones only."""

    name: str
    topic_id: bytes
    partitions: set[int] = field(default_factory=set)


@dataclass(slots=True)
class ClusterMetadata:
    """The state after the records that were read."""

    topics: dict[bytes, KafkaTopic] = field(default_factory=dict)
    configs: dict[str, dict[str, str]] = field(default_factory=dict)  # of topics by name
    next_producer_id: int = 0
    leader_epoch_max: int = -1

    def apply(self, record: Message) -> None:
        """Applies one record."""
        match record:
            case TopicRecord():
                self.topics[record.topic_id] = KafkaTopic(record.name, record.topic_id)
            case PartitionRecord():
                self.leader_epoch_max = max(self.leader_epoch_max, record.leader_epoch)
                if record.topic_id in self.topics:
                    self.topics[record.topic_id].partitions.add(record.partition_id)
            case ConfigRecord() if record.resource_type == TOPIC_RESOURCE:
                configs = self.configs.setdefault(record.resource_name, {})
                if record.value is None:
                    configs.pop(record.name, None)
                else:
                    configs[record.name] = record.value
            case RemoveTopicRecord():
                topic = self.topics.pop(record.topic_id, None)
                if topic is not None:
                    self.configs.pop(topic.name, None)
            case ProducerIdsRecord():
                self.next_producer_id = max(self.next_producer_id, record.next_producer_id)


def frame(record: Message, version: int = 0) -> bytes:
    """The value of a record in the metadata log."""
    return b"".join(
        (_uvarint(FRAME_VERSION), _uvarint(_TYPE_OF[type(record)]), _uvarint(version), encode(record, version))
    )


def parse_frame(value: bytes, name: str) -> tuple[int, Message | None]:
    """(type, record); the record is None for a type that is not read. CorruptionError."""
    numbers = []
    position = 0
    for what in ("frame version", "type", "version"):
        number, position = _read_uvarint(value, position, f"{name}: {what}")
        numbers.append(number)
    frame_version, kind, version = numbers
    if frame_version != FRAME_VERSION:
        raise CorruptionError(f"{name}: frame version {frame_version}; version {FRAME_VERSION} is understood")
    cls = TYPES.get(kind)
    if cls is None:
        return kind, None
    try:
        # Newer versions add tagged fields, which are skipped, and fields at the end.
        return kind, decode(cls, min(version, cls.VERSIONS.last), memoryview(value)[position:])[0]
    except ProtocolError as error:
        raise CorruptionError(f"{name}: {error}") from None


def read_cluster_metadata(log_folder: Path) -> ClusterMetadata | None:
    """The metadata in a log folder: newest snapshot, then the later records of the log; None if there is no log.

    Raises CorruptionError, OSError. A truncated tail of the log is no error: it was never committed.
    """
    folder = log_folder / FOLDER
    if not is_folder(folder):
        return None
    metadata = ClusterMetadata()
    snapshots = sorted(match[0] for match in (_SNAPSHOT.fullmatch(path.name) for path in folder.iterdir()) if match)
    end_offset = 0
    if snapshots:
        end_offset = int(snapshots[-1][:20])
        _load_snapshot(metadata, folder / snapshots[-1])
    for base in segment_bases(folder):
        path = folder / segment_name(base)
        _replay(metadata, _log_values(path, base), path, end_offset)
    return metadata


def read_bootstrap_metadata(log_folder: Path) -> ClusterMetadata | None:
    """The topics of a log folder's bootstrap checkpoint, as in an export; None if there are none.

    A controller that has started on the folder has appended them to its log, which is then newer. Raises as
    `read_cluster_metadata`.
    """
    path = log_folder / BOOTSTRAP_CHECKPOINT
    metadata = ClusterMetadata()
    try:
        _load_snapshot(metadata, path)
    except FileNotFoundError:
        return None
    return metadata if metadata.topics else None


def _load_snapshot(metadata: ClusterMetadata, path: Path) -> None:
    _replay(metadata, _snapshot_values(path), path, 0)


def _snapshot_values(path: Path) -> Iterator[tuple[int, bytes]]:
    """(0, value) of each record of a snapshot, which, unlike a log, must be whole. Holds a block in memory."""
    end = 0
    for block in read_blocks(path, 0):
        end += len(block.data)
        yield from ((0, value) for _, value in _values(block.data, path))
    if end == 0 or end != path.stat().st_size:
        raise CorruptionError(f"{path}: byte {end}: no record batch")


def _log_values(path: Path, base: int) -> Iterator[tuple[int, bytes]]:
    try:
        for block in read_blocks(path, base):
            yield from _values(block.data, path)
    except BadBatch:
        return


def _values(data: bytes, path: Path) -> Iterator[tuple[int, bytes]]:
    """(offset, value) of every record that is not a control record."""
    try:
        for header, batch in iter_batches(data, check_crc=True):
            if not header.is_control:
                for record in iter_records(batch):
                    yield record.offset, record.value or b""
    except ValueError as error:
        raise CorruptionError(f"{path}: {error}") from None


def _replay(metadata: ClusterMetadata, values: Iterable[tuple[int, bytes]], path: Path, from_offset: int) -> None:
    waiting: list[Message] | None = None  # of a metadata transaction
    for offset, value in values:
        if offset < from_offset:
            continue
        kind, record = parse_frame(value, f"{path}: offset {offset}")
        if kind == BEGIN:
            waiting = []
        elif kind in (END, ABORT):
            for held in waiting or [] if kind == END else []:
                metadata.apply(held)
            waiting = None
        elif record is not None and waiting is not None:
            waiting.append(record)
        elif record is not None:
            metadata.apply(record)


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_uvarint(data: bytes, position: int, name: str) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise CorruptionError(f"{name}: no varint of at most 5 bytes")
