"""Reads of objects that were copied: the same bytes under an ETag that the manifest does not name.

An ETag belongs to one store. A bucket that was copied, restored, replicated or encrypted again holds the same objects
under other ETags. When a read fails because of that, size and CRC-32C decide: the same bytes are the same object, and
its present ETag is used from then on; other bytes are damage, and the read fails.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from kbroker._fast.base.crc32c import crc32c
from kbroker.limits import MIB
from kbroker.storage.read.single_flight import SingleFlight
from kbroker.storage.stores.object_store import ObjectMeta, ObjectStore, PreconditionFailed, UploadedPart
from kbroker.storage.stores.store_wrappers import KnownObjects, StoreWrapper

READ_BYTES = 4 * MIB
REMEMBERED_MAX = 65_536  # of each kind; a forgotten one is compared again

T = TypeVar("T")
Version = tuple[str, str]  # key, ETag


def has_bytes(store: ObjectStore, meta: ObjectMeta, size: int, crc: int) -> bool:
    """Whether a listed object has this size and CRC-32C. Reads it where the store does not return its CRC.

    Raises StoreError.
    """
    if meta.size != size:
        return False
    if meta.crc32c is None:
        meta = store.head(meta.key)
        if meta.size != size:
            return False
    if meta.crc32c is not None:
        return meta.crc32c == crc
    value = 0
    for start in range(0, size, READ_BYTES):
        value = crc32c(store.get(meta.key, start, min(READ_BYTES, size - start), if_match=meta.etag), value)
    return value == crc


def is_copy(store: ObjectStore, known: KnownObjects, meta: ObjectMeta, etag: str) -> bool:
    """Whether a listed object has the bytes that the manifest names under `etag`. Raises StoreError."""
    named = known.described(meta.key, etag)
    return named is not None and has_bytes(store, meta, *named)


class CopiedObjects(StoreWrapper):
    """Serves a read with the manifest's ETag from an object that has another one and the same bytes.

    Until `learn` is called, and for objects that the manifest does not name, reads fail as without it. Thread-safe.
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._known: KnownObjects | None = None
        self._lock = threading.Lock()  # protects the two tables
        self._present: dict[Version, str] = {}  # version in the manifest, now or earlier -> the store's ETag
        self._different: dict[Version, None] = {}  # versions in the store with other bytes
        self._look_ups: SingleFlight[Version, str | None] = SingleFlight()

    def learn(self, known: KnownObjects) -> None:
        """Sets the manifest to look objects up in."""
        self._known = known

    def get(self, key: str, start: int | None = None, length: int | None = None, if_match: str | None = None) -> bytes:
        return self._matching(key, if_match, lambda etag: self._inner.get(key, start, length, etag))

    def get_into(self, key: str, start: int, out: memoryview, if_match: str | None = None) -> int:
        return self._matching(key, if_match, lambda etag: self._inner.get_into(key, start, out, etag))

    def upload_part_copy(
        self,
        key: str,
        upload_id: str,
        number: int,
        source_key: str,
        start: int,
        length: int,
        *,
        if_match: str | None = None,
    ) -> UploadedPart:
        return self._matching(
            source_key,
            if_match,
            lambda etag: self._inner.upload_part_copy(
                key, upload_id, number, source_key, start, length, if_match=etag
            ),
        )

    def _matching(self, key: str, etag: str | None, read: Callable[[str | None], T]) -> T:
        if etag is None:
            return read(None)
        try:
            return read(self._present.get((key, etag), etag))
        except PreconditionFailed:
            present = self._look_ups.do((key, etag), lambda: self._look_up(key, etag))
            if present is None:
                raise
        return read(present)

    def _look_up(self, key: str, etag: str) -> str | None:
        """The store's ETag of the object that the manifest names; None if the bytes differ or it is not named."""
        known = self._known
        named = known.described(key, etag) if known is not None else None
        if known is None or named is None:
            return None
        meta = self._inner.head(key)
        present = key, meta.etag
        if present in self._different:
            return None
        if not has_bytes(self._inner, meta, *named):
            self._remember(self._different, present, None)
            return None
        self._remember(self._present, (key, etag), meta.etag)
        known.adopt_etag(key, etag, meta.etag)
        return meta.etag

    def _remember(self, table: dict[Version, T], version: Version, value: T) -> None:
        with self._lock:
            table[version] = value
            while len(table) > REMEMBERED_MAX:
                del table[next(iter(table))]
