"""The log folders of a stopped Apache Kafka: partitions, their segments and checkpoints.

A partition's folder is `<topic>-<partition>`; `<topic>-<partition>.<32 hex>-delete`, `-future` and `-stray` are not
the partition (docs/formats/kafka-log.md). The path of a log folder may be a link; its files may not.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from kbroker.errors import CorruptionError
from kbroker.exchange.kafka_log.checkpoint_file import (
    CLEAN_SHUTDOWN,
    LEADER_EPOCHS,
    LOG_STARTS,
    TopicPartition,
    parse_leader_epochs,
    parse_partition_offsets,
)
from kbroker.exchange.kafka_log.cluster_metadata import FOLDER as METADATA_FOLDER
from kbroker.exchange.kafka_log.cluster_metadata import ClusterMetadata, read_bootstrap_metadata, read_cluster_metadata
from kbroker.exchange.kafka_log.log_segment import SNAPSHOT_SUFFIX, segment_bases
from kbroker.exchange.kafka_log.partition_metadata import PARTITION_METADATA, parse_partition_metadata
from kbroker.exchange.source_error import SourceError
from kbroker.limits import PARTITIONS_PER_TOPIC_MAX
from kbroker.storage.stores.regular_file import is_folder, open_regular, read_regular

LOCK_FILE = ".lock"
SWAPPED_LOG_SUFFIX = ".log.swap"
SMALL_FILE_BYTES_MAX = 64 << 20  # of a file that is read whole
_PARTITION = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]{0,9})", re.ASCII)
_RENAMED = re.compile(r".*\.[0-9a-f]{32}-(?:delete|future|stray)", re.ASCII)
T = TypeVar("T", bound=Collection[object])
_SNAPSHOT = re.compile(r"([0-9]{20})\.snapshot", re.ASCII)


@dataclass(frozen=True, slots=True)
class PartitionFolder:
    """One partition on disk."""

    topic: str
    partition: int
    path: Path
    topic_id: bytes | None
    log_start_offset: int  # from the checkpoint; 0 or less: the first segment's base offset
    clean: bool  # its broker stopped cleanly

    def segment_bases(self) -> list[int]:
        """Base offsets of its segments, in order. SourceError if compaction was replacing some of them."""
        for name in sorted(os.listdir(self.path)):
            if name.endswith(SWAPPED_LOG_SUFFIX):
                raise SourceError(
                    f"{self.path} has {name}: Kafka was killed while it replaced segments by a compacted one; some "
                    "may be gone already. Start that Kafka and stop it again to complete that"
                )
        return segment_bases(self.path)

    def snapshots(self) -> dict[int, Path]:
        """Producer snapshots by offset."""
        found = (_SNAPSHOT.fullmatch(name) for name in os.listdir(self.path))
        return {int(match[1]): self.path / f"{match[1]}{SNAPSHOT_SUFFIX}" for match in found if match}


@dataclass(slots=True)
class KafkaLogFolders:
    """Log folders of one Kafka cluster, opened: no Kafka can start on them until `close`."""

    partitions: dict[TopicPartition, PartitionFolder] = field(default_factory=dict)
    metadata: ClusterMetadata | None = None
    renamed: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # about unused files
    _locks: list[int] = field(default_factory=list)

    def topics(self) -> list[str]:
        """Names of all topics, in order."""
        return sorted({topic for topic, _ in self.partitions})

    def of_topic(self, topic: str) -> dict[int, PartitionFolder]:
        """A topic's partitions by number."""
        return {folder.partition: folder for (name, _), folder in self.partitions.items() if name == topic}

    def leader_epochs(self, folder: PartitionFolder) -> list[tuple[int, int]]:
        """A partition's checkpoint of (epoch, start offset); empty without one that Kafka accepts."""
        rebuilt = "the leader epochs are those of the batches"
        return self.checkpoint(folder.path / LEADER_EPOCHS, parse_leader_epochs, rebuilt) or []

    def checkpoint(self, path: Path, parse: Callable[[bytes, str], T], instead: str) -> T | None:
        """The content of a text checkpoint; None if there is none, or, with a note, if it does not parse.

        Kafka fails the whole disk for one that does not parse; here the import continues.
        """
        try:
            return parse(read_regular(path, SMALL_FILE_BYTES_MAX), str(path))
        except FileNotFoundError:
            return None
        except (CorruptionError, OSError) as error:
            self.notes.append(f"{error}: not used; {instead}")
            return None

    def close(self) -> None:
        """Releases the locks."""
        while self._locks:
            os.close(self._locks.pop())


def open_kafka_logs(paths: Sequence[Path]) -> KafkaLogFolders:
    """Opens log folders (several: of one broker's disks, or of brokers that share the partitions).

    Raises SourceError: a Kafka runs on one, or a partition is in two; CorruptionError, OSError.
    """
    folders = KafkaLogFolders()
    try:
        for path in paths:
            _lock(path, folders)
            _read_folder(path, folders)
    except BaseException:
        folders.close()
        raise
    return folders


def _lock(path: Path, folders: KafkaLogFolders) -> None:
    try:
        descriptor = open_regular(path / LOCK_FILE, os.O_RDWR)
    except FileNotFoundError:
        return
    folders._locks.append(descriptor)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SourceError(f"a Kafka runs on {path}: stop it first") from None


def _read_folder(path: Path, folders: KafkaLogFolders) -> None:
    metadata = read_cluster_metadata(path)
    if metadata is None and folders.metadata is None:
        metadata = read_bootstrap_metadata(path)
    if metadata is not None:
        folders.metadata = metadata
    clean = _is_there(path / CLEAN_SHUTDOWN)
    lost = "every log begins with its first segment, so records that DeleteRecords removed from it may be back"
    log_starts = folders.checkpoint(path / LOG_STARTS, parse_partition_offsets, lost) or {}
    for child in sorted(path.iterdir()):
        match = _PARTITION.fullmatch(child.name)
        if match is None:
            if _RENAMED.fullmatch(child.name):
                folders.renamed.append(child)
            continue
        if child.name == METADATA_FOLDER or not is_folder(child):
            continue
        key = (match[1], int(match[2]))
        if key[1] >= PARTITIONS_PER_TOPIC_MAX:
            raise CorruptionError(f"{child}: partition {key[1]}; there can be {PARTITIONS_PER_TOPIC_MAX}")
        if key in folders.partitions:
            raise SourceError(f"{child.name} is in {folders.partitions[key].path.parent} and in {path}: name one")
        folders.partitions[key] = PartitionFolder(*key, child, _topic_id(child), log_starts.get(key, 0), clean)


def _topic_id(folder: Path) -> bytes | None:
    path = folder / PARTITION_METADATA
    try:
        return parse_partition_metadata(read_regular(path, SMALL_FILE_BYTES_MAX), str(path))
    except FileNotFoundError:
        return None


def _is_there(path: Path) -> bool:
    """Whether there is such a file. NotRegularFile."""
    try:
        os.close(open_regular(path))
    except FileNotFoundError:
        return False
    return True
