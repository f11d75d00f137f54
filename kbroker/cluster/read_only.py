"""Read-only views of a cluster's topics and manifest: nothing is claimed, sealed or written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from kbroker.cluster.image import MetadataImage
from kbroker.cluster.metadata_state import metadata_copy
from kbroker.errors import CorruptionError
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.ledger.log_copy import LogCopy
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.ledger.numbered_log_format import NONCE_BYTES
from kbroker.storage.ledger.ownership import discover_clusters
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.manifest_copy import ManifestCopy
from kbroker.storage.stores.object_store import ObjectStore, StoreError, StoreUnavailable
from kbroker.storage.stores.store_wrappers import StoreWrapper

LOAD_TRIES = 5  # a running broker may delete what a checkpoint covers while it is read
READER_EPOCH = 0

T = TypeVar("T")


class ClusterUnclear(ValueError):
    """The store holds several clusters, or not the named one; the message lists them."""


def find_cluster(store: ObjectStore, place: str, cluster_id: str | None) -> ObjectKeys:
    """The keys of the cluster in a store, which must be the only one if no id is given; `place` is for messages.

    Raises ClusterUnclear; StoreError, also where there is no cluster at all.
    """
    found = discover_clusters(store)
    if cluster_id is not None:
        if cluster_id not in found:
            raise ClusterUnclear(f"no cluster {cluster_id} in {place}")
        return ObjectKeys(cluster_id)
    if not found:
        raise StoreError(f"no cluster in {place}")
    if len(found) > 1:
        raise ClusterUnclear(f"{place} holds {len(found)} clusters: {', '.join(found)}")
    return ObjectKeys(found[0])


class TopicsReader:
    """The topics, as of the last ``refresh``. Not thread-safe."""

    def __init__(self, store: ObjectStore, keys: ObjectKeys) -> None:
        self.topics = MetadataImage()
        self._copy = metadata_copy(NumberedLog(store, keys.metadata_dir, READER_EPOCH, bytes(NONCE_BYTES)))

    def refresh(self) -> None:
        """Reads what has been written since. Raises StoreError, CorruptionError, and then changes nothing."""
        _refresh(self._copy)
        self.topics = self._copy.state.image


class ManifestReader:
    """The manifest, as of the last ``refresh``, which may change the image or replace it. Not thread-safe."""

    def __init__(self, store: ObjectStore, keys: ObjectKeys) -> None:
        log = NumberedLog(store, keys.manifest_dir, READER_EPOCH, bytes(NONCE_BYTES))
        self._copy = ManifestCopy(log, keys.root)
        if isinstance(store, StoreWrapper):
            self._copy.on_reloaded = lambda: store.learn(self.image)

    @property
    def image(self) -> ManifestImage:
        """What the bucket had."""
        return self._copy.state.image

    def refresh(self) -> None:
        """Reads what has been written since. Raises StoreError, CorruptionError."""
        _refresh(self._copy)


def _refresh(copy: LogCopy[Any]) -> None:
    """Reads the log to its end: follows it if that is possible, else loads it."""
    if copy.is_loaded:
        try:
            copy.follow()
            return
        except (StoreUnavailable, CorruptionError):
            pass  # a checkpoint replaced records, or one could not be applied
    retried(copy.load)


def retried(load: Callable[[], T]) -> T:
    """`load` of a log that a running broker may be trimming: retried on StoreUnavailable."""
    for tried in range(LOAD_TRIES):
        try:
            return load()
        except StoreUnavailable:
            if tried + 1 == LOAD_TRIES:
                raise
    raise AssertionError


def load_manifest(store: ObjectStore, keys: ObjectKeys) -> ManifestImage:
    """The manifest as it is now. Raises StoreError, CorruptionError."""
    reader = ManifestReader(store, keys)
    reader.refresh()
    return reader.image


def load_topics(store: ObjectStore, keys: ObjectKeys) -> MetadataImage:
    """Topics and their ids as they are now. Raises StoreError, CorruptionError."""
    reader = TopicsReader(store, keys)
    reader.refresh()
    return reader.topics
