"""A cluster's bucket as a pipeline sees it: opened to be read, never claimed, sealed or written."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from kbroker.clock import SystemClock
from kbroker.metadata.image import ImageBuilder, MetadataImage, image_from_json
from kbroker.metadata.records import parse_payload
from kbroker.pipeline.options import OptionError, Place
from kbroker.storage.manifest import Manifest
from kbroker.storage.manifest_image import ManifestImage
from kbroker.storage.numbered_log import NumberedLog
from kbroker.storage.numbered_log_format import NONCE_BYTES
from kbroker.storage.object_keys import ObjectKeys
from kbroker.storage.object_store import ObjectStore, StoreError, StoreUnavailable
from kbroker.storage.ownership import discover_clusters
from kbroker.storage.patience import Patience
from kbroker.storage.store_url import open_store
from kbroker.storage.store_wrappers import RetryingStore

PATIENCE_SECONDS = 30.0
LOAD_TRIES = 5  # a running broker may delete what a checkpoint covers while it is read
READER_EPOCH = 0

T = TypeVar("T")

_stores: dict[tuple[str, str | None, str | None], ObjectStore] = {}
_stores_lock = threading.Lock()


def store_of(place: Place) -> ObjectStore:
    """The store behind a place; one per process, as Spark's workers do many tasks. OptionError, StoreError."""
    key = (place.url, place.endpoint, place.region)
    with _stores_lock:
        if key not in _stores:
            try:
                raw = open_store(place.url, place.endpoint, place.region, create=False)
            except ValueError as error:
                raise OptionError(f"object.store: {error}") from None
            _stores[key] = RetryingStore(raw, Patience(PATIENCE_SECONDS))
        return _stores[key]


class BucketView:
    """Topics and manifest of one cluster, as of the last `refresh`. Not thread-safe.

    Raises StoreError, which names store and key; CorruptionError; OptionError when the place is wrong.
    """

    def __init__(self, place: Place, store: ObjectStore | None = None) -> None:
        self.store = store if store is not None else store_of(place)
        self.keys = _find_cluster(self.store, place)
        self.topics = MetadataImage()
        self.manifest = ManifestImage(self.keys.root)
        self._last_keys: tuple[str, str] | None = None
        self.refresh()

    @property
    def cluster_id(self) -> str:
        """The cluster's id."""
        return self.keys.cluster_id

    def refresh(self) -> None:
        """Reads what has been written since; two listings when that is nothing."""
        last = (self._last_key(self.keys.metadata_dir), self._last_key(self.keys.manifest_dir))
        if last == self._last_keys:
            return
        self.topics = _retried(self._load_topics)
        self.manifest = _retried(self._load_manifest)
        self._last_keys = last

    def _last_key(self, directory: str) -> str:
        """The newest object of a numbered log; its keys are in the order in which they were written."""
        after = None if self._last_keys is None else self._last_keys[directory == self.keys.manifest_dir]
        last = after or ""
        for meta in self.store.list(directory + "/", after or None):
            if meta.key.endswith(".rec"):
                last = max(last, meta.key)
        return last

    def _load_manifest(self) -> ManifestImage:
        log = NumberedLog(self.store, self.keys.manifest_dir, READER_EPOCH, bytes(NONCE_BYTES))
        return Manifest(log, SystemClock(), root=self.keys.root).load()

    def _load_topics(self) -> MetadataImage:
        builder = ImageBuilder(MetadataImage())

        def on_checkpoint(number: int, value: Any) -> None:
            nonlocal builder
            builder = ImageBuilder(image_from_json(number, value, f"metadata checkpoint {number}"))

        def on_record(number: int, kind: str, value: Any) -> None:
            where = f"metadata record {number}"
            builder.apply(number, parse_payload(value, where), where)

        log = NumberedLog(self.store, self.keys.metadata_dir, READER_EPOCH, bytes(NONCE_BYTES))
        log.load(on_checkpoint, on_record)
        return builder.build()


def _find_cluster(store: ObjectStore, place: Place) -> ObjectKeys:
    found = discover_clusters(store)
    if place.cluster_id is None:
        if not found:
            raise StoreError(f"no cluster in {place.url}")
        if len(found) > 1:
            raise OptionError(f"{place.url} holds {len(found)} clusters: {', '.join(found)}; set option 'cluster.id'")
        return ObjectKeys(found[0])
    if place.cluster_id not in found:
        raise OptionError(f"cluster.id: no cluster {place.cluster_id} in {place.url}")
    return ObjectKeys(place.cluster_id)


def _retried(load: Callable[[], T]) -> T:
    for tried in range(LOAD_TRIES):
        try:
            return load()
        except StoreUnavailable:
            if tried + 1 == LOAD_TRIES:
                raise
    raise AssertionError
