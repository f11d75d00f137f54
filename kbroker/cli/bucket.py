"""A cluster's bucket as the object commands see it: opened to be read, never claimed, sealed or written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from kbroker._fast.records import BatchHeader, iter_batches
from kbroker.clock import SystemClock
from kbroker.errors import CorruptionError
from kbroker.limits import MIB
from kbroker.metadata.image import ImageBuilder, MetadataImage, image_from_json
from kbroker.metadata.records import parse_payload
from kbroker.storage.kfs_read import LoadedSegment, load_segment
from kbroker.storage.klix import TAIL_BYTES, KlixFooter
from kbroker.storage.manifest import Manifest
from kbroker.storage.manifest_image import ManifestImage
from kbroker.storage.numbered_log import NumberedLog
from kbroker.storage.numbered_log_format import NONCE_BYTES
from kbroker.storage.object_keys import ObjectKeys
from kbroker.storage.object_store import ObjectMeta, ObjectStore, PendingUpload, StoreError, StoreUnavailable
from kbroker.storage.ownership import discover_clusters
from kbroker.storage.patience import Patience
from kbroker.storage.store_url import open_store
from kbroker.storage.store_wrappers import RetryingStore

PATIENCE_SECONDS = 10.0
READ_BYTES = 8 * MIB
LOAD_TRIES = 5  # a running broker may delete what a checkpoint covers while it is read
READER_EPOCH = 0

T = TypeVar("T")


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
        self.store: ObjectStore = RetryingStore(raw, Patience(PATIENCE_SECONDS))
        self.keys = self._find_cluster(place)

    def _find_cluster(self, place: Place) -> ObjectKeys:
        found = discover_clusters(self.store)
        if place.cluster_id is None:
            if not found:
                raise StoreError(f"no cluster in {place.url}")
            if len(found) > 1:
                raise click.UsageError(
                    f"{place.url} holds {len(found)} clusters: {', '.join(found)}; name one with --cluster-id"
                )
            return ObjectKeys(found[0])
        try:
            keys = ObjectKeys(place.cluster_id)
        except ValueError as error:
            raise click.UsageError(f"--cluster-id: {error}") from None
        if place.cluster_id not in found:
            raise StoreError(f"no cluster {place.cluster_id} in {place.url}")
        return keys

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

        def load() -> ManifestImage:
            log = NumberedLog(self.store, self.keys.manifest_dir, READER_EPOCH, bytes(NONCE_BYTES))
            return Manifest(log, SystemClock(), root=self.keys.root).load()

        return _retried(load)

    def load_topics(self) -> MetadataImage:
        """Topics and their ids as they are now."""
        return _retried(self._load_topics)

    def _load_topics(self) -> MetadataImage:
        builder = ImageBuilder(MetadataImage())

        def on_checkpoint(number: int, value: Any) -> None:
            nonlocal builder
            builder = ImageBuilder(image_from_json(number, value, f"metadata checkpoint {number}"))

        def on_record(number: int, kind: str, value: Any) -> None:
            where = f"metadata record {number}"
            builder.apply(number, parse_payload(value, where), where)

        NumberedLog(self.store, self.keys.metadata_dir, READER_EPOCH, bytes(NONCE_BYTES)).load(on_checkpoint, on_record)
        return builder.build()

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
                reason = str(error).partition(" (at byte")[0]  # that byte counts from where the read began
                raise CorruptionError(f"{meta.key}: batch {index} at byte {start + position}: {reason}") from None
            if position != before + length:
                raise CorruptionError(f"{meta.key}: the index does not match the batches at byte {start + before}")


def _retried(load: Callable[[], T]) -> T:
    for tried in range(LOAD_TRIES):
        try:
            return load()
        except StoreUnavailable:
            if tried + 1 == LOAD_TRIES:
                raise
    raise AssertionError
