"""A read-only view of a cluster's bucket for the object commands: nothing is claimed, sealed or written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import click

from kbroker._fast.records.records import BatchHeader, iter_batches
from kbroker.cluster.image import MetadataImage
from kbroker.cluster.read_only import ClusterUnclear, find_cluster, load_manifest, load_topics
from kbroker.errors import CorruptionError
from kbroker.limits import MIB
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.formats.klix import TAIL_BYTES, KlixFooter
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.read.copied_objects import CopiedObjects
from kbroker.storage.read.kfs_read import LoadedSegment, load_segment
from kbroker.storage.stores.object_store import ObjectMeta, ObjectStore, PendingUpload, StoreError
from kbroker.storage.stores.store_url import open_store
from kbroker.storage.stores.store_wrappers import RetryingStore

RETRY_SECONDS = 10.0
READ_BYTES = 8 * MIB


@dataclass(frozen=True, slots=True)
class Place:
    """Where the objects are, as given on the command line."""

    url: str
    endpoint: str | None
    region: str | None
    cluster_id: str | None


class Bucket:
    """One cluster in an open store. Raises StoreError, CorruptionError; click.UsageError for a wrong `place`."""

    def __init__(self, place: Place) -> None:
        try:
            raw = open_store(place.url, place.endpoint, place.region, create=False)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        self.store: ObjectStore = RetryingStore(CopiedObjects(raw), RetryPolicy(RETRY_SECONDS))
        self.keys = self._find_cluster(place)

    def _find_cluster(self, place: Place) -> ObjectKeys:
        try:
            return find_cluster(self.store, place.url, place.cluster_id)
        except ClusterUnclear as error:
            if place.cluster_id is None:
                raise click.UsageError(f"{error}; name one with --cluster-id") from None
            try:
                ObjectKeys(place.cluster_id)
            except ValueError as wrong:
                raise click.UsageError(f"--cluster-id: {wrong}") from None
            raise StoreError(str(error)) from None

    def full_key(self, key: str) -> str:
        """The store key of a key given as ``object ls`` prints it, or in full."""
        return key if key.startswith(self.keys.root) else self.keys.full(key)

    def head(self, key: str) -> ObjectMeta:
        """Size and ETag of an object. ValueError for what cannot be a key."""
        try:
            return self.store.head(self.full_key(key))
        except ValueError as error:
            raise click.UsageError(str(error)) from None

    def load_manifest(self) -> ManifestImage:
        """The manifest as it is now."""
        return load_manifest(self.store, self.keys)

    def load_topics(self) -> MetadataImage:
        """Topics and their ids as they are now."""
        return load_topics(self.store, self.keys)

    def unfinished_uploads(self) -> list[PendingUpload]:
        """Multipart uploads of the cluster's keys; none where the store cannot list them."""
        try:
            return list(self.store.list_multipart(self.keys.root))
        except StoreError:
            return []

    def topic_names(self) -> dict[bytes, str]:
        """Name of every topic by its id."""
        return {topic_id: topic.name for topic_id, topic in self.load_topics().by_id.items()}

    def segment(self, meta: ObjectMeta) -> LoadedSegment:
        """A whole KafScale segment; its checksum holds."""
        return load_segment(self.store, meta.key, meta.size, meta.etag)

    def footer(self, meta: ObjectMeta, start: int, length: int) -> KlixFooter:
        """The index of the KLIX image in [start, start + length) of an object."""
        tail_bytes = min(TAIL_BYTES, length)
        while True:
            tail = self.store.get(meta.key, start + length - tail_bytes, tail_bytes, if_match=meta.etag)
            footer = KlixFooter.parse(tail, length, meta.key)
            if isinstance(footer, KlixFooter):
                return footer
            tail_bytes = footer.tail_bytes

    def batches(
        self, meta: ObjectMeta, footer: KlixFooter, start: int
    ) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        """(position in the image, header, batch) of every batch of an image; each CRC is checked."""
        index = 0
        while index < len(footer):
            position, length = footer.read_range(index, READ_BYTES)
            data = self.store.get(meta.key, start + position, length, if_match=meta.etag)
            before = position
            try:
                for header, batch in iter_batches(data, check_crc=True):
                    yield position, header, batch
                    position += len(batch)
                    index += 1
            except ValueError as error:
                reason = str(error).partition(" (at byte")[0]  # that byte counts from the start of the read
                raise CorruptionError(f"{meta.key}: batch {index} at byte {start + position}: {reason}") from None
            if position != before + length:
                raise CorruptionError(f"{meta.key}: the index does not match the batches at byte {start + before}")
