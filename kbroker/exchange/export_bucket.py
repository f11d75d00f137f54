"""Writes topics of a cluster into a bucket, in the layout of klite or KafScale.

klite's objects are the KLIX images that the cluster has, byte for byte, with a `metadata.log` that names topics,
configs, log starts and committed offsets: a klite that finds nothing on its disk begins with that. KafScale's segments
hold the same batches; what topics there are it keeps in etcd, so they are created there, with as many partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kbroker._fast.crc32c import crc32c
from kbroker.exchange.bucket_log import image_footer, read_partition
from kbroker.exchange.committed_offsets import OffsetFold
from kbroker.exchange.export_kafka_log import ExportedPartition, ExportError
from kbroker.exchange.klite_metadata import METADATA_LOG, KliteTopic, encode_metadata_log
from kbroker.metadata.image import CONSUMER_OFFSETS, INTERNAL_TOPICS, MetadataImage, TopicImage
from kbroker.storage.kfs_keys import topic_prefix
from kbroker.storage.kfs_pairs import store_pair
from kbroker.storage.kfs_read import load_ref
from kbroker.storage.klix import encode_object
from kbroker.storage.manifest_image import ManifestImage
from kbroker.storage.object_keys import klix_key
from kbroker.storage.object_store import BodySource, BytesBody, ObjectStore
from kbroker.storage.partition_state import KFS, ObjectRef, PartitionState

OWN_CONFIGS = "kbroker."


class _StoredImage:
    """A range of an object as a body: the bytes come while they are sent."""

    def __init__(self, store: ObjectStore, ref: ObjectRef) -> None:
        self.length = ref.length
        self._store = store
        self._ref = ref

    def read_into(self, position: int, out: memoryview) -> int:
        count = min(len(out), self.length - position)
        if count:
            self._store.get_into(self._ref.key, self._ref.start + position, out[:count], if_match=self._ref.etag)
        return count


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
    ) -> None:
        self._store = store
        self._manifest = manifest
        self._metadata = metadata
        self._destination = destination
        self._on_partition = on_partition
        self._reload = reload

    def to_klite(self, names: Sequence[str], cluster_id: str) -> None:
        """Writes objects first and the metadata last; there must be nothing under the cluster's root."""
        topics = [self._topic(name) for name in names]
        root = f"klite-{cluster_id}/"
        self._check_empty(root)
        made: list[KliteTopic] = []
        for topic in topics:
            configs = {key: value for key, value in topic.configs.items() if not key.startswith(OWN_CONFIGS)}
            klite = KliteTopic(topic.name, topic.topic_id, topic.partitions, configs)
            for state in self._states(topic):
                written = ExportedPartition(topic.name, state.partition, state.log_start_offset, state.end_offset, 0)
                for ref in self._manifest.objects_from(topic.topic_id, state.partition, state.log_start_offset):
                    written.bytes += self._copy_image(root, topic, state, ref)
                    written.segments += 1
                if state.log_start_offset:
                    klite.log_starts[state.partition] = state.log_start_offset
                self._on_partition(written)
            made.append(klite)
        data = encode_metadata_log(made, self._offsets(set(names)), self._metadata.next_producer_id)
        self._destination.put(root + METADATA_LOG, data, if_none_match=True, crc32c=crc32c(data))

    def _copy_image(self, root: str, topic: TopicImage, state: PartitionState, ref: ObjectRef) -> int:
        """Stores what a reference names as an object in KLIX; returns its size."""
        body: BodySource = _StoredImage(self._store, ref)
        base_offset, crc = ref.base_offset, ref.crc32c
        if ref.kind == KFS:
            image = encode_object(bytes(load_ref(self._store, ref).segment.body))
            body, crc = BytesBody(image), crc32c(image)
        else:  # compaction may have taken what it began with
            base_offset = image_footer(self._store, ref.key, ref.start, ref.length, ref.etag).base_offset
        key = root + klix_key(topic.name, topic.topic_id, state.partition, base_offset)
        self._destination.put(key, body, if_none_match=True, crc32c=crc)
        return body.length

    def to_kafscale(self, names: Sequence[str], namespace: str, now_ms: int) -> None:
        """Writes segments and indexes; nothing may be there under a topic's name."""
        topics = [self._topic(name) for name in names]
        for topic in topics:
            self._check_empty(topic_prefix(namespace, topic.name))
        for topic in topics:
            for state in self._states(topic):
                written = ExportedPartition(topic.name, state.partition, state.log_start_offset, state.end_offset, 0)
                for block in read_partition(self._store, self._manifest, state, self._reload):
                    store_pair(self._destination, namespace, topic.name, state.partition, block.data, now_ms)
                    written.segments += 1
                    written.bytes += len(block.data)
                self._on_partition(written)

    def _topic(self, name: str) -> TopicImage:
        topic = self._metadata.by_name.get(name)
        if topic is None:
            raise ExportError(f"no topic {name} in this cluster")
        if name in INTERNAL_TOPICS:
            raise ExportError(f"{name} is kept elsewhere by that product")
        return topic

    def _states(self, topic: TopicImage) -> list[PartitionState]:
        found = (self._manifest.partition(topic.topic_id, partition) for partition in range(topic.partitions))
        return [state for state in found if state is not None]

    def _check_empty(self, prefix: str) -> None:
        meta = next(self._destination.list(prefix), None)
        if meta is not None:
            raise ExportError(f"{meta.key} is there already: name an empty place")

    def _offsets(self, names: set[str]) -> dict[tuple[str, str, int], tuple[int, str]]:
        """What groups have committed for these topics."""
        topic = self._metadata.by_name.get(CONSUMER_OFFSETS)
        if topic is None:
            return {}
        fold = OffsetFold(names)
        for state in self._states(topic):
            for block in read_partition(self._store, self._manifest, state, self._reload):
                fold.add(block.data)
        return {key: (value.offset, value.metadata) for key, value in fold.offsets.items()}
