"""Commits imported topics in order: objects, manifest records, and the topics' metadata last."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kbroker.cluster.image import TopicImage
from kbroker.cluster.topic_rules import check_name, check_partition_count
from kbroker.errors import KafkaError
from kbroker.exchange.import_target import ImportTarget
from kbroker.exchange.partition_upload import ImportedPartition
from kbroker.exchange.source_error import EpochPassed, SourceError
from kbroker.storage.manifest.checked_columns import check_columns
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.record import FileEntry, ManifestRecord, PartitionDelta, PartitionId
from kbroker.storage.manifest.record_encode import encode_record
from kbroker.storage.stores.object_store import StoreError

T = TypeVar("T")


@dataclass(slots=True)
class ImportReport:
    """The result of an import, with notes for its owner."""

    partitions: list[ImportedPartition] = field(default_factory=list)
    committed_offsets: int = 0
    whole_topics: list[str] = field(default_factory=list)  # internal topics that were imported whole
    notes: list[str] = field(default_factory=list)


class TopicImport:
    """Imports topics into an open target, all or none of them."""

    def __init__(
        self, target: ImportTarget, on_partition: Callable[[ImportedPartition], None] = lambda partition: None
    ) -> None:
        self.target = target
        self.report = ImportReport()
        self._on_partition = on_partition
        self._stored: list[str] = []  # keys of objects that no record names yet
        self._ids: set[bytes] = set()  # of topics of this import

    def on_key(self, key: str) -> None:
        """Remembers a key before anything is stored under it."""
        self._stored.append(key)

    def check_names(self, names: Sequence[str]) -> None:
        """SourceError for topics that the cluster has, and for illegal names."""
        for name in names:
            _checked(check_name, name)
        taken = [name for name in names if name in self.target.cluster.topics.image.by_name]
        if taken:
            raise SourceError(
                f"the cluster already has {', '.join(taken)}: delete there first, or name others with --topic"
            )

    def topic(self, name: str, topic_id: bytes | None, partitions: int, configs: Mapping[str, str]) -> TopicImage:
        """A topic to create. Its id is the source's, or a new one if there is none or the cluster has or had that id.
        SourceError."""
        self.check_partitions(name, partitions)
        image, manifest = self.target.cluster.topics.image, self.target.cluster.manifest.image
        while (
            topic_id is None
            or not any(topic_id)
            or topic_id in self._ids
            or topic_id in image.by_id
            or topic_id in image.deleted
            or topic_id in manifest.partitions
            or topic_id in manifest.dropped
        ):
            topic_id = secrets.token_bytes(16)
        self._ids.add(topic_id)
        return TopicImage(name, topic_id, partitions, dict(configs))

    def check_partitions(self, name: str, partitions: int) -> None:
        """SourceError for more partitions than a topic may have."""
        _checked(check_partition_count, partitions, name)

    def run(
        self,
        topics: Sequence[TopicImage],
        store_topic: Callable[[TopicImage], Sequence[ImportedPartition]],
        next_producer_id: int = 0,
        before_commit: Callable[[], None] = lambda: None,
    ) -> None:
        """Stores and commits; `before_commit` is called when all but the topics' metadata is stored.

        Raises SourceError, CorruptionError, StartError, StoreError; then no topic exists.
        """
        try:
            stored = [self._store(topic, store_topic) for topic in topics]
            records = [record for topic, parts in zip(topics, stored, strict=True) for record in _records(topic, parts)]
            self._check(stored, records)
        except BaseException:
            self._drop_stored()
            raise
        producer_id_max = max((part.producer_id_max for parts in stored for part in parts), default=-1)
        # A metadata record first: a manifest with objects beside an empty metadata log counts as a loss.
        self.target.adopt([], max(producer_id_max + 1, next_producer_id, 1))
        self.target.commit(records)
        before_commit()
        self.target.adopt(topics)

    def _store(
        self, topic: TopicImage, store_topic: Callable[[TopicImage], Sequence[ImportedPartition]]
    ) -> Sequence[ImportedPartition]:
        parts = store_topic(topic)
        for part in parts:
            self.report.notes += part.notes
            self.report.partitions.append(part)
            self._on_partition(part)
        return parts

    def _check(self, stored: Sequence[Sequence[ImportedPartition]], records: Sequence[ManifestRecord]) -> None:
        """Finds before the first record what would be refused after it. The manifest has none of these topics."""
        highest = max((part.leader_epoch for parts in stored for part in parts), default=-1)
        if highest >= self.target.epoch:
            raise EpochPassed(highest)
        for record in records:
            if record.files:
                check_columns(ManifestImage(), encode_record(record), "import")

    def _drop_stored(self) -> None:
        keys = self.target.cluster.keys
        try:
            self.target.objects.delete([keys.full(key) for key in self._stored])
        except StoreError as error:
            self.report.notes.append(f"objects of the failed import stay in the bucket as orphans: {error}")


def _checked(check: Callable[[T], None], value: T, name: str = "") -> None:
    try:
        check(value)
    except KafkaError as error:
        raise SourceError(f"{name}: {error}" if name else str(error)) from None


def _records(topic: TopicImage, parts: Sequence[ImportedPartition]) -> list[ManifestRecord]:
    """Manifest records of a topic. A log start inside a batch takes a second one, after the objects."""
    files: list[FileEntry] = []
    deltas: dict[PartitionId, PartitionDelta] = {}
    moved: dict[PartitionId, PartitionDelta] = {}
    for part in parts:
        place = topic.topic_id, part.partition
        deltas[place] = part.delta._replace(
            log_start_offset=part.base_offset or None,
            added=tuple(written.row(len(files) + n) for n, written in enumerate(part.objects)),
        )
        files += [written.file() for written in part.objects]
        if part.log_start_offset > part.base_offset:
            moved[place] = PartitionDelta(log_start_offset=part.log_start_offset)
    records = [ManifestRecord(files=tuple(files), partitions=deltas)]
    if moved:
        records.append(ManifestRecord(partitions=moved))
    return records
