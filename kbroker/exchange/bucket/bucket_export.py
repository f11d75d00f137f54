"""Writes topics of a cluster into a bucket, in the layout of klite or KafScale.

klite's objects are the cluster's KLIX images, byte for byte, with a `metadata.log` of topics, configs, log starts and
committed offsets, which a klite with an empty disk loads. KafScale's segments hold the same batches; it keeps topics in
etcd, so they must be created there, with as many partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kbroker._fast.base.crc32c import crc32c
from kbroker.cluster.image import CONSUMER_OFFSETS, INTERNAL_TOPICS, MetadataImage, TopicImage
from kbroker.exchange.batch_block import Block
from kbroker.exchange.bucket.kfs_pairs import store_pair
from kbroker.exchange.bucket.klite_metadata import METADATA_LOG, KliteTopic, encode_metadata_log
from kbroker.exchange.bucket_log import image_footer, read_object, read_partition
from kbroker.exchange.committed_offsets import OffsetFold
from kbroker.exchange.creating_store import CreatingStore, StoredRange
from kbroker.exchange.partition_source import ExportedPartition, ExportError, PartitionSource
from kbroker.exchange.partition_upload import block_end
from kbroker.exchange.server_copy import ServerCopy, fits
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.formats.kfs_keys import topic_prefix
from kbroker.storage.formats.klix import encode_object
from kbroker.storage.formats.object_keys import klix_key
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.partition_state import KFS, ObjectRef, PartitionState
from kbroker.storage.stores.object_store import NotFound, ObjectStore, PreconditionFailed

OWN_CONFIGS = "kbroker."


class BucketExport:
    """One export of topics from the bucket of a cluster into another one. Raises ExportError, StoreError,
    CorruptionError."""

    def __init__(
        self,
        store: ObjectStore,
        manifest: ManifestImage,
        metadata: MetadataImage,
        destination: ObjectStore,
        on_partition: Callable[[ExportedPartition], None] = lambda partition: None,
        reload: Callable[[], ManifestImage] | None = None,
        copies: ServerCopy | None = None,
    ) -> None:
        self._copies = copies
        self._store = store
        self._manifest = manifest
        self._metadata = metadata
        self._destination = CreatingStore(destination, RetryPolicy())
        self._on_partition = on_partition
        self._reload = reload

    def to_klite(self, names: Sequence[str], cluster_id: str) -> None:
        """Writes objects first and the metadata last; the cluster's root must be empty."""
        topics = [exportable(self._metadata, name) for name in names]
        root = klite_root(cluster_id)
        check_empty(self._destination, root)
        written: list[ExportedPartition] = []
        for topic in topics:
            for state in self._states(topic):
                part = put_klite_partition(self._source(topic, state), self._destination, root, self._copies)
                written.append(part)
                self._on_partition(part)
        offsets = self.committed_offsets(names)
        put_klite_metadata(self._destination, root, topics, written, offsets, self._metadata.next_producer_id)

    def to_kafscale(self, names: Sequence[str], namespace: str, now_ms: int) -> None:
        """Writes segments and indexes; the topics' prefixes must be empty."""
        topics = [exportable(self._metadata, name) for name in names]
        for topic in topics:
            check_empty(self._destination, topic_prefix(namespace, topic.name))
        for topic in topics:
            for state in self._states(topic):
                source = self._source(topic, state)
                self._on_partition(put_kafscale_partition(source, self._destination, namespace, now_ms))

    def _source(self, topic: TopicImage, state: PartitionState) -> PartitionSource:
        return PartitionSource(topic, state, self._store, self._manifest, self._reload)

    def _states(self, topic: TopicImage) -> list[PartitionState]:
        found = (self._manifest.partition(topic.topic_id, partition) for partition in range(topic.partitions))
        return [state for state in found if state is not None]

    def committed_offsets(self, names: Sequence[str]) -> dict[tuple[str, str, int], tuple[int, str]]:
        """The committed offsets of these topics."""
        topic = self._metadata.by_name.get(CONSUMER_OFFSETS)
        if topic is None:
            return {}
        fold = OffsetFold(set(names))
        for state in self._states(topic):
            for block in read_partition(self._store, self._manifest, state, self._reload):
                fold.add(block.data)
        return {key: (value.offset, value.metadata) for key, value in fold.offsets.items()}


def exportable(metadata: MetadataImage, name: str) -> TopicImage:
    """The topic of this name. ExportError when there is none or it is internal."""
    topic = metadata.by_name.get(name)
    if topic is None:
        raise ExportError(f"no topic {name} in this cluster")
    if name in INTERNAL_TOPICS:
        raise ExportError(f"{name} is kept elsewhere by that product")
    return topic


def check_empty(store: ObjectStore, prefix: str) -> None:
    """ExportError when any key has this prefix."""
    meta = next(iter(store.list(prefix)), None)
    if meta is not None:
        raise ExportError(f"{meta.key} is there already: name an empty place")


# -- klite -----------------------------------------------------------------------------------------------------


def klite_root(cluster_id: str) -> str:
    """The prefix of every key of a klite cluster."""
    return f"klite-{cluster_id}/"


def put_klite_partition(
    source: PartitionSource, destination: CreatingStore, root: str, copies: ServerCopy | None = None
) -> ExportedPartition:
    """Stores one partition's objects. A second run stores nothing; PreconditionFailed when objects differ.

    If a running broker has replaced objects, it continues with the new ones. Raises StoreError, CorruptionError.
    """
    state, image = source.state, source.objects
    written = ExportedPartition(source.topic.name, state.partition, state.log_start_offset, state.end_offset, 0)
    writer = _KliteWriter(source, destination, root, copies, written)
    offset = state.log_start_offset
    copied = False  # an object that ends at `offset`
    while (ref := image.find(state.topic_id, state.partition, offset)) is not None:
        if ref.base_offset >= state.end_offset:
            break
        try:
            if (copied and ref.base_offset < offset) or ref.end_offset > state.end_offset or ref.kind == KFS:
                for block in read_object(source.store, ref, offset, state.end_offset):
                    offset = writer.put_block(block)
                    copied = True
            else:
                writer.copy_image(ref)
                copied = True
        except (NotFound, PreconditionFailed):
            image = source.reload() if source.reload is not None else image
            if image.find(state.topic_id, state.partition, offset) == ref:
                raise
            continue
        offset = max(offset, ref.end_offset)
    return written


@dataclass(frozen=True, slots=True)
class _KliteWriter:
    source: PartitionSource
    destination: CreatingStore
    root: str
    copies: ServerCopy | None
    written: ExportedPartition

    def _key(self, base_offset: int) -> str:
        topic = self.source.topic
        return self.root + klix_key(topic.name, topic.topic_id, self.source.state.partition, base_offset)

    def put_block(self, block: Block) -> int:
        """Stores batches as an object; returns the offset after them."""
        body = encode_object(block.data)
        key = self._key(int(block.entries["base_offset"][0]))
        self.destination.put(key, body, if_none_match=True, crc32c=crc32c(body))
        self.written.bytes += len(body)
        self.written.segments += 1
        return block_end(block)

    def copy_image(self, ref: ObjectRef) -> None:
        """Stores the KLIX image that a reference names as an object."""
        store = self.source.store
        # Compaction may have removed its first batches.
        key = self._key(image_footer(store, ref.key, ref.start, ref.length, ref.etag).base_offset)
        if self.copies is not None and fits(ref.length):
            self.copies.copy(ref.key, ref.etag, ref.start, ref.length, ref.crc32c, key)
        else:
            body = StoredRange(store, ref.key, ref.etag, ref.start, ref.length)
            self.destination.put(key, body, if_none_match=True, crc32c=ref.crc32c)
        self.written.bytes += ref.length
        self.written.segments += 1


def put_klite_metadata(
    destination: CreatingStore,
    root: str,
    topics: Sequence[TopicImage],
    written: Sequence[ExportedPartition],
    offsets: dict[tuple[str, str, int], tuple[int, str]],
    next_producer_id: int,
) -> None:
    """Stores the metadata that klite starts from, as the last step. Raises StoreError."""
    made = []
    for topic in topics:
        configs = {key: value for key, value in topic.configs.items() if not key.startswith(OWN_CONFIGS)}
        starts = {part.partition: part.log_start_offset for part in written if part.topic == topic.name}
        starts = {partition: start for partition, start in starts.items() if start}
        made.append(KliteTopic(topic.name, topic.topic_id, topic.partitions, configs, starts))
    data = encode_metadata_log(made, offsets, next_producer_id)
    destination.put(root + METADATA_LOG, data, if_none_match=True, crc32c=crc32c(data))


# -- KafScale --------------------------------------------------------------------------------------------------


def put_kafscale_partition(
    source: PartitionSource, destination: CreatingStore, namespace: str, now_ms: int
) -> ExportedPartition:
    """Stores one partition's segments and indexes; a second run: as `put_klite_partition`."""
    topic, state = source.topic, source.state
    written = ExportedPartition(topic.name, state.partition, state.log_start_offset, state.end_offset, 0)
    for block in source.blocks():
        store_pair(destination, namespace, topic.name, state.partition, block.data, now_ms)
        written.segments += 1
        written.bytes += len(block.data)
    return written
