"""Stores the objects of a flush: retried until stored, never over an existing object, never by a superseded owner.

The key of a KafScale segment has neither topic id nor generation, so there is no other key when it is taken: an object
that no manifest record names, the orphan of an unfinished flush, is replaced, and only if it is still the version that
was read before the claim was checked.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from kbroker._fast.base.crc32c import crc32c
from kbroker.errors import CorruptionError
from kbroker.limits import MIB
from kbroker.storage.flush.body import BuiltImage, BuiltObject
from kbroker.storage.flush.pacing import PacedBody, Pacer
from kbroker.storage.formats.kfs_keys import pair_keys
from kbroker.storage.formats.object_keys import ObjectKeys, klix_key, pack_key
from kbroker.storage.manifest.partition_state import PACK
from kbroker.storage.stores.object_store import (
    BodySource,
    BytesBody,
    ChecksumMismatch,
    NotFound,
    ObjectMeta,
    ObjectStore,
    PreconditionFailed,
    StoreError,
    StoreFull,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

BACKOFF_SECONDS_FIRST = 0.2
BACKOFF_SECONDS_MAX = 20.0
FULL_SECONDS_MAX = 1.0  # for a store without room: it fails fast, and has room as soon as something is deleted
REFUSED_BODIES_MAX = 3
GENERATIONS_MAX = 1_000  # orphans at one offset; more are no accident


class FlushStopped(Exception):
    """The flusher is stopping; objects that were stored already are harmless orphans."""


class ClaimLost(Exception):
    """Another broker owns the cluster now: nothing more may be written. The cause is the claim's error."""


class Claim(Protocol):
    """What StoreGuard uses of storage.ledger.ownership.Claim."""

    def check(self) -> object:
        """Reads the claim back. Raises StoreError when it cannot be read, any other exception when it is not ours."""
        ...


class StoreGuard:
    """Retries store requests without end, and re-reads the claim after every outage. Thread-safe.

    `wait(seconds)` returns True when the flusher should stop; `on_failure` is called after a failed request;
    `batches_are_trusted`: bodies are not read before they are sent, so one that the store keeps refusing for its CRC
    may be damaged here.
    """

    def __init__(
        self,
        claim: Claim,
        wait: Callable[[float], bool],
        stopping: Callable[[], bool],
        on_failure: Callable[[], None] | None = None,
    ) -> None:
        self._claim = claim
        self._wait = wait
        self._stopping = stopping
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._outages = 0  # times that the claim may have been lost; `_checked`: how many a check has looked at since
        self._checked = 0
        self.batches_are_trusted = False
        self.retries = 0
        self.last_error: str | None = None

    def run_as_owner(self, what: str, request: Callable[[], T]) -> T:
        """As `run`, but always re-reads the claim first."""
        with self._lock:
            self._outages += 1
        return self.run(what, request)

    def run(self, what: str, request: Callable[[], T]) -> T:
        """The result of `request`, retried after every StoreError but PreconditionFailed and NotFound.

        Raises FlushStopped, ClaimLost, other exceptions of `request`; ChecksumMismatch after REFUSED_BODIES_MAX.
        """
        failures = refused = 0
        while True:
            if self._stopping():
                raise FlushStopped(what)
            try:
                self._check_claim()
                return request()
            except (PreconditionFailed, NotFound):
                raise
            except StoreError as error:
                self._note_failure(what, error, failures)
                most = FULL_SECONDS_MAX if isinstance(error, StoreFull) else BACKOFF_SECONDS_MAX
                refused += isinstance(error, ChecksumMismatch)
                if self.batches_are_trusted and refused >= REFUSED_BODIES_MAX:
                    raise
            # Half of the delay is random, so that threads and brokers that failed together do not retry together.
            delay = min(most, BACKOFF_SECONDS_FIRST * 2 ** min(failures, 16))
            failures += 1
            if self._wait(delay * random.uniform(0.5, 1.0)):
                raise FlushStopped(what)

    def _check_claim(self) -> None:
        """Without the lock, as it asks the store: another thread checks for itself."""
        with self._lock:
            outages = self._outages
            if self._checked == outages:
                return
        try:
            self._claim.check()
        except StoreError:
            raise
        except Exception as error:
            raise ClaimLost(str(error)) from error
        with self._lock:
            self._checked = max(self._checked, outages)

    def _note_failure(self, what: str, error: StoreError, failures: int) -> None:
        with self._lock:
            self._outages += 1
            self.retries += 1
            self.last_error = str(error)
        level = logging.WARNING if failures == 0 or failures % 10 == 9 else logging.DEBUG
        logger.log(level, "%s failed (%d times), trying again: %s", what, failures + 1, error)
        if self._on_failure is not None:
            self._on_failure()


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A stored object; the key is below the root. `sent_bytes`: with a segment's index."""

    kind: str
    key: str
    size: int
    etag: str
    crc32c: int
    images: list[BuiltImage]
    sent_bytes: int


class Uploader:
    """Stores built objects under unused keys, segments under their only key. Thread-safe.

    `is_known(key)`: whether the manifest names a key below the root. `awaited`: the same store for objects that
    acknowledgements wait for (hedged).
    """

    def __init__(
        self,
        store: ObjectStore,
        keys: ObjectKeys,
        guard: StoreGuard,
        pacer: Pacer,
        broker_epoch: int,
        is_known: Callable[[str], bool],
        awaited: ObjectStore | None = None,
    ) -> None:
        self._store = store
        self._awaited = awaited or store
        self._keys = keys
        self._guard = guard
        self._pacer = pacer
        self._broker_epoch = broker_epoch
        self._is_known = is_known
        self._lock = threading.Lock()
        self._next_pack = 0

    def store(self, built: BuiltObject) -> StoredFile:
        """Stores an object, a segment with its index. Raises FlushStopped, ClaimLost; StoreError when no key is free;
        CorruptionError for the key of a segment that the manifest names."""
        if built.index is not None:
            return self._store_pair(built, built.index)
        return self._store_new(built, self._store)

    def store_awaited(self, built: BuiltObject) -> StoredFile:
        """As `store`, for an object that acknowledgements wait for."""
        return self.store(built) if built.index is not None else self._store_new(built, self._awaited)

    def _store_new(self, built: BuiltObject, store: ObjectStore) -> StoredFile:
        for key in self._candidate_keys(built):
            meta = self._store_as(key, built.body, built.crc32c, store)
            if meta is not None:
                return StoredFile(built.kind, key, meta.size, meta.etag, built.crc32c, built.images, meta.size)
        raise StoreError(f"{GENERATIONS_MAX} orphans at {klix_key_of(built)}")

    def _store_pair(self, built: BuiltObject, index: bytes) -> StoredFile:
        """Segment first, then index, both before the manifest names them."""
        image = built.images[0]
        key, index_key = pair_keys(built.topic, image.partition, image.base_offset)
        if self._is_known(key):
            raise CorruptionError(f"{self._keys.full(key)}: the manifest names this key already")
        meta = self._store_over(key, built.body, built.crc32c)
        self._store_over(index_key, BytesBody(index), crc32c(index))
        sent_bytes = meta.size + len(index)
        return StoredFile(built.kind, key, meta.size, meta.etag, built.crc32c, built.images, sent_bytes)

    def _store_over(self, key: str, body: BodySource, crc: int) -> ObjectMeta:
        full_key = self._keys.full(key)
        for _ in range(GENERATIONS_MAX):
            meta = self._store_as(key, body, crc, self._store)
            if meta is None:
                meta = self._replace(full_key, body, crc)
            if meta is not None:
                return meta
        raise StoreError(f"{full_key} keeps being written by another process")

    def _replace(self, full_key: str, body: BodySource, crc: int) -> ObjectMeta | None:
        """Replaces the object that is there; None when it has been changed or deleted since."""

        def found() -> ObjectMeta:
            return self._store.head(full_key)

        def put(etag: str) -> ObjectMeta:
            return self._store.put(full_key, PacedBody(body, self._pacer), if_match=etag, crc32c=crc)

        try:
            etag = self._guard.run(f"reading {full_key}", found).etag
            # Read before the claim: a broker that takes over from now on makes another version of it.
            return self._guard.run_as_owner(f"storing {full_key}", lambda: put(etag))
        except (NotFound, PreconditionFailed):
            return None

    def _candidate_keys(self, built: BuiltObject) -> Iterator[str]:
        for generation in range(GENERATIONS_MAX):
            if built.kind == PACK:
                with self._lock:
                    number, self._next_pack = self._next_pack, self._next_pack + 1
                yield pack_key(self._broker_epoch, number)
            else:
                yield klix_key_of(built, generation)

    def _store_as(self, key: str, content: BodySource, crc: int, store: ObjectStore) -> ObjectMeta | None:
        """Stores under this key; None when another object is there."""
        full_key = self._keys.full(key)
        body = PacedBody(content, self._pacer)
        try:
            return self._guard.run(
                f"storing {full_key}",
                lambda: store.put(full_key, body, if_none_match=True, crc32c=crc),
            )
        except PreconditionFailed:
            meta = self._guard.run(f"reading back {full_key}", lambda: self._read_back(full_key, content.length, crc))
        if meta is None:
            # No manifest record names it, so no reader knows it.
            logger.info("%s is taken by an orphan of an earlier flush", full_key)
        return meta

    def _read_back(self, full_key: str, size: int, crc: int) -> ObjectMeta | None:
        """The object's metadata if it is ours (an attempt that was reported as failed), else None."""
        try:
            meta = self._store.head(full_key)
            if meta.size != size:
                return None
            value = meta.crc32c
            if value is None:
                value = self._content_crc(meta)
        except (NotFound, PreconditionFailed):
            return None
        return meta if value == crc else None

    def _content_crc(self, meta: ObjectMeta) -> int:
        value = 0
        buffer = memoryview(bytearray(min(MIB, meta.size)))
        for position in range(0, meta.size, MIB):
            piece = buffer[: min(MIB, meta.size - position)]
            self._store.get_into(meta.key, position, piece, if_match=meta.etag)
            value = crc32c(piece, value)
        return value


def klix_key_of(built: BuiltObject, generation: int = 0) -> str:
    """The key, below the root, of a built object of one image."""
    image = built.images[0]
    return klix_key(built.topic, image.topic_id, image.partition, image.base_offset, generation)
