"""A read-only view of a cluster's bucket for pipelines: nothing is claimed, sealed or written."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
from collections.abc import Iterator

from kbroker.cluster.image import MetadataImage
from kbroker.cluster.read_only import ClusterUnclear, ManifestReader, TopicsReader, find_cluster
from kbroker.pipeline.options import OptionError, Place
from kbroker.pipeline.s3_settings import S3Place, s3_place
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.read.copied_objects import CopiedObjects
from kbroker.storage.stores.object_store import ObjectStore, StoreError
from kbroker.storage.stores.store_url import FILE_SCHEME, S3_SCHEME, open_store
from kbroker.storage.stores.store_wrappers import RetryingStore

RETRY_SECONDS = 30.0
CONNECT_SECONDS, READ_SECONDS = 5.0, 30.0
CONTACT_CONNECT_SECONDS, CONTACT_READ_SECONDS = 2.0, 3.0

_stores: dict[tuple[str, S3Place], ObjectStore] = {}
_views: dict[Place, BucketView] = {}
_lock = threading.Lock()
VIEWS_MAX = 4  # kept in a process


def store_of(place: Place) -> ObjectStore:
    """The store of a place, one per process: a Spark worker runs many tasks. Raises OptionError, StoreError."""
    key = (place.url, s3_place(place.endpoint, place.region))
    with _lock:
        if key not in _stores:
            raw = _open(*key, CONNECT_SECONDS, READ_SECONDS)
            _stores[key] = RetryingStore(CopiedObjects(raw), RetryPolicy(RETRY_SECONDS))
        return _stores[key]


def contact(place: Place) -> None:
    """At the start of a job or query: raises StoreError within seconds if an S3 store does not answer.

    Once it has answered in this process, requests are retried for RETRY_SECONDS instead.
    """
    key = (place.url, s3_place(place.endpoint, place.region))
    with _lock:
        if key in _stores or not place.url.startswith(S3_SCHEME):
            return
    asked = _open(*key, CONTACT_CONNECT_SECONDS, CONTACT_READ_SECONDS)
    from kbroker.storage.stores.s3_client import is_answer  # loads boto3

    try:
        next(iter(asked.list("")), None)
    except StoreError as error:
        if not is_answer(error):
            raise


def _open(url: str, s3: S3Place, connect_seconds: float, read_seconds: float) -> ObjectStore:
    try:
        return open_store(
            url, s3.endpoint, s3.region, login=s3.login,
            connect_timeout_s=connect_seconds, read_timeout_s=read_seconds,
        )  # fmt: skip
    except ValueError as error:
        raise OptionError(f"object.store: {error}") from None
    except StoreError as error:
        if not url.startswith(FILE_SCHEME):
            raise
        where = "driver and executors must see it under the same path"
        raise StoreError(f"{error} on host {socket.gethostname()}: {where}") from None


class BucketView:
    """Topics and manifest of one cluster, as of the last `refresh`. Not thread-safe.

    Raises StoreError, which names store and key; CorruptionError; OptionError when the place is wrong.
    """

    def __init__(self, place: Place, store: ObjectStore | None = None, keys: ObjectKeys | None = None) -> None:
        if store is None:
            contact(place)
        self.store = store if store is not None else store_of(place)
        self.keys = keys if keys is not None else _find_cluster(self.store, place)
        self.place = dataclasses.replace(place, cluster_id=self.keys.cluster_id)
        self._topics = TopicsReader(self.store, self.keys)
        self._manifest = ManifestReader(self.store, self.keys)
        self.refresh()

    @property
    def cluster_id(self) -> str:
        """The cluster's id."""
        return self.keys.cluster_id

    @property
    def topics(self) -> MetadataImage:
        """Topics and their ids."""
        return self._topics.topics

    @property
    def manifest(self) -> ManifestImage:
        """What the bucket holds. A refresh changes it."""
        return self._manifest.image

    def refresh(self) -> None:
        """Reads what was written since the last refresh: two listings, and a GET per new record."""
        self._topics.refresh()
        self._manifest.refresh()


@contextlib.contextmanager
def current_view(place: Place) -> Iterator[BucketView]:
    """A current view, for short use. Spark reuses the process that plans queries, so views are kept: each later
    plan reads only what was written since. Raises what BucketView raises."""
    contact(place)
    store = store_of(place)
    keys = _find_cluster(store, place)
    place = dataclasses.replace(place, cluster_id=keys.cluster_id)
    with _lock:
        view = _views.pop(place, None)
    if view is None or view.store is not store:
        view = BucketView(place, store, keys)
    else:
        view.refresh()
    yield view
    # Not kept after an error: the view may be its cause.
    with _lock:
        _views[place] = view
        while len(_views) > VIEWS_MAX:
            del _views[next(iter(_views))]


def _find_cluster(store: ObjectStore, place: Place) -> ObjectKeys:
    try:
        return find_cluster(store, place.url, place.cluster_id)
    except ClusterUnclear as error:
        hint = "; set option 'cluster.id'" if place.cluster_id is None else ""
        raise OptionError(f"{'' if hint else 'cluster.id: '}{error}{hint}") from None
