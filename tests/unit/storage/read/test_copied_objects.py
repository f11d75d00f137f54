"""Reads of objects whose ETag in the store is not the manifest's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker._fast.base.crc32c import crc32c
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.read.copied_objects import CopiedObjects, has_bytes
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import NotFound, ObjectMeta, PreconditionFailed
from kbroker.storage.stores.store_wrappers import RetryingStore, StoreWrapper

KEY = "kbroker-c/topic/0.obj"
BODY = bytes(range(256)) * 40
NAMED = "etag-of-another-store"


class Manifest:
    """Names one object, as an image does."""

    def __init__(self) -> None:
        self.etag = NAMED

    def described(self, key: str, etag: str) -> tuple[int, int] | None:
        return (len(BODY), crc32c(BODY)) if (key, etag) == (KEY, self.etag) else None

    def adopt_etag(self, key: str, etag: str, present: str) -> None:
        assert (key, etag) == (KEY, self.etag)
        self.etag = present


class TellsNoCrc(StoreWrapper):
    """As a store that keeps no checksum of whole objects; counts what is read."""

    reads = 0

    def get(self, key: str, start: int | None = None, length: int | None = None, if_match: str | None = None) -> bytes:
        self.reads += 1
        return super().get(key, start, length, if_match)

    def head(self, key: str) -> ObjectMeta:
        return super().head(key)._replace(crc32c=None)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectMeta]:
        return (meta._replace(crc32c=None) for meta in super().list(prefix, start_after))


@pytest.fixture(params=["tells the CRC", "tells no CRC"])
def inner(request: pytest.FixtureRequest) -> StoreWrapper:
    memory = MemoryStore()
    return StoreWrapper(memory) if request.param == "tells the CRC" else TellsNoCrc(memory)


def test_a_copy_is_read_and_its_etag_adopted(inner: StoreWrapper) -> None:
    present = inner.put(KEY, BODY).etag
    manifest, store = Manifest(), CopiedObjects(inner)
    RetryingStore(store, RetryPolicy(0.0)).learn(manifest)
    assert store.get(KEY, 10, 5, if_match=NAMED) == BODY[10:15]
    assert manifest.etag == present
    out = memoryview(bytearray(100))
    assert store.get_into(KEY, 256, out, if_match=NAMED) == 100, "those that hold the old reference read on"
    assert out == BODY[256:356]
    upload = store.create_multipart("copy")
    part = store.upload_part_copy("copy", upload, 1, KEY, 0, len(BODY), if_match=NAMED)
    store.complete_multipart("copy", upload, [part])
    assert store.get("copy") == BODY


@pytest.mark.parametrize("body", [BODY[:-1], BODY[:-1] + b"\0", BODY + b"\0"])
def test_other_bytes_are_refused(inner: StoreWrapper, body: bytes) -> None:
    inner.put(KEY, body)
    manifest, store = Manifest(), CopiedObjects(inner)
    store.learn(manifest)
    for _ in range(3):
        with pytest.raises(PreconditionFailed):
            store.get(KEY, 0, 5, if_match=NAMED)
    assert manifest.etag == NAMED
    if isinstance(inner, TellsNoCrc):
        assert inner.reads <= 4, "one read of the whole object tells once and for all"


def test_without_a_manifest_or_for_another_object_nothing_is_adopted(inner: StoreWrapper) -> None:
    inner.put(KEY, BODY)
    store = CopiedObjects(inner)
    with pytest.raises(PreconditionFailed):
        store.get(KEY, if_match=NAMED)
    store.learn(Manifest())
    with pytest.raises(PreconditionFailed):
        store.get(KEY, if_match="replaced meanwhile")
    with pytest.raises(NotFound):
        store.get("missing", if_match=NAMED)
    assert store.get(KEY) == BODY


def test_has_bytes_compares_size_and_checksum(inner: StoreWrapper) -> None:
    meta = inner.put(KEY, BODY)._replace(crc32c=None)
    assert has_bytes(inner, meta, len(BODY), crc32c(BODY))
    assert not has_bytes(inner, meta, len(BODY), crc32c(BODY) ^ 1)
    assert not has_bytes(inner, meta, len(BODY) + 1, crc32c(BODY))
