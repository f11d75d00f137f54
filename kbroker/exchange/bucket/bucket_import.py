"""Imports topics of a klite or KafScale bucket, with unchanged offsets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np

from kbroker._fast.records.gather import BatchScan
from kbroker.cluster.image import INTERNAL_TOPICS, TopicImage
from kbroker.coordinator.group.offsets.state import OffsetAndMetadata
from kbroker.errors import CorruptionError, KafkaError
from kbroker.exchange.batch_block import Block
from kbroker.exchange.bucket.bucket_source import SourcePart, SourceTopic
from kbroker.exchange.committed_offsets import OffsetKey, write_offsets
from kbroker.exchange.import_target import ImportTarget
from kbroker.exchange.partition_upload import ImportedPartition, PartitionUpload, block_end, scan_block
from kbroker.exchange.server_copy import ServerCopy
from kbroker.exchange.source_error import SourceError
from kbroker.exchange.topic_import import ImportReport, TopicImport
from kbroker.storage.manifest.partition_state import PartitionState
from kbroker.topic_config import parse_topic_config


class BucketImport:
    """One import; the target is open.

    Args:
        names: topics to import; None: all.
        check_source: called after all reads and before the commit; raises SourceError when the source has
            changed.
        copies: server-side copies from the source, if possible; objects that are too small are joined and sent.
    """

    def __init__(
        self,
        topics: Sequence[SourceTopic],
        target: ImportTarget,
        *,
        names: Collection[str] | None = None,
        check_source: Callable[[], None] = lambda: None,
        on_partition: Callable[[ImportedPartition], None] = lambda partition: None,
        copies: ServerCopy | None = None,
    ) -> None:
        self._copies = copies
        self._source = {topic.name: topic for topic in topics if topic.name not in INTERNAL_TOPICS}
        self._target = target
        self._names = names
        self._check_source = check_source
        self._last = ""  # name of the topic being stored
        self._import = TopicImport(target, on_partition)
        self.report: ImportReport = self._import.report

    def run(
        self, next_producer_id: int = 0, offsets: Mapping[OffsetKey, tuple[int, str]] | None = None
    ) -> ImportReport:
        """Imports. Raises SourceError, CorruptionError, StartError, StoreError; then no topic was created."""
        unknown = sorted(set(self._names or ()) - set(self._source))
        if unknown:
            raise SourceError(f"no topic {', '.join(unknown)} in the bucket")
        wanted = [topic for name, topic in self._source.items() if self._names is None or name in self._names]
        self._import.check_names([topic.name for topic in wanted])
        images = [
            self._import.topic(topic.name, topic.topic_id, topic.partitions, self._configs(topic)) for topic in wanted
        ]
        self._last = images[-1].name if images else ""
        self._import.run(
            images, self._store_topic, next_producer_id, lambda: self._store_offsets(offsets or {}, images)
        )
        return self.report

    def _store_offsets(self, offsets: Mapping[OffsetKey, tuple[int, str]], topics: Sequence[TopicImage]) -> None:
        now_ms, names = self._target.now_ms(), {topic.name for topic in topics}
        committed = {
            key: OffsetAndMetadata(offset, -1, text, now_ms)
            for key, (offset, text) in offsets.items()
            if key[1] in names and offset >= 0
        }
        self.report.committed_offsets = write_offsets(committed, self._target)

    def _configs(self, topic: SourceTopic) -> dict[str, str]:
        taken: dict[str, str] = {}
        defaults = self._target.cluster.topics.broker_configs.topic_defaults
        for key, value in topic.configs.items():
            try:
                parse_topic_config({**taken, key: value}, defaults)
            except KafkaError as error:
                self.report.notes.append(f"{topic.name}: config {key} left out: {error}")
                continue
            taken[key] = value
        return taken

    def _store_topic(self, image: TopicImage) -> list[ImportedPartition]:
        topic = self._source[image.name]
        # An empty partition continues at its log start.
        begun = {partition for partition, start in topic.log_starts.items() if start and partition < topic.partitions}
        stored = [self._store_partition(image, topic, partition) for partition in sorted(begun.union(topic.parts))]
        if image.name == self._last:
            self._check_source()
        return stored

    def _store_partition(self, image: TopicImage, topic: SourceTopic, partition: int) -> ImportedPartition:
        parts = sorted(topic.parts.get(partition, ()), key=lambda part: part.base_offset)
        log_start = max(topic.log_starts.get(partition, 0), *(part.base_offset for part in parts[:1]), 0)
        state = PartitionState(image.topic_id, partition, log_start)
        notes: list[str] = []
        with PartitionUpload(
            self._target.objects, self._target.cluster.keys, image.name, state, self._import.on_key
        ) as upload:
            self._upload_parts(parts, upload, notes)
            imported = upload.finish(upload.end_offset)
        imported.notes += notes
        return imported

    def _upload_parts(self, parts: list[SourcePart], upload: PartitionUpload, notes: list[str]) -> None:
        expected = parts[0].base_offset if parts else 0
        for part in parts:
            if part.base_offset < expected:
                raise CorruptionError(
                    f"{part.name}: begins at {part.base_offset}, the object before ends at {expected}"
                )
            if part.base_offset > expected:
                notes.append(f"{part.name}: no object has offsets {expected} to {part.base_offset - 1}")
            read: list[int] = []
            if not self._copy(part, upload, read):
                for block, scan in self._scanned(part, read):
                    upload.add(block, scan)
            expected = max(expected, *read)

    def _copy(self, part: SourcePart, upload: PartitionUpload, read: list[int]) -> bool:
        """Whether the store copied all batches of the object; otherwise nothing was added."""
        if self._copies is None:
            return False
        stored = part.stored()
        return stored is not None and upload.copy(self._scanned(part, read), stored, self._copies)

    def _scanned(self, part: SourcePart, ends: list[int]) -> Iterator[tuple[Block, BatchScan]]:
        """Its blocks, checked; `ends` gets the offset after each."""
        for block in part.blocks(0):
            ends.append(block_end(block))
            yield block, self._scan(block, part.name)

    def _scan(self, block: Block, name: str) -> BatchScan:
        scan, good, problem = scan_block(block)
        if problem:
            raise CorruptionError(f"{name}: byte {int(block.entries[good]['lsn'])}: {problem}")
        if (np.diff(block.entries["base_offset"]) <= 0).any():
            raise CorruptionError(f"{name}: its offsets do not ascend")
        return scan
