"""What every object store guarantees; one suite for all of them."""

from __future__ import annotations

import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import crc32c as oracle
import numpy as np
import pytest

from kbroker.limits import KIB, MIB
from kbroker.storage.stores.object_store import (
    BODY_PIECE_BYTES,
    PART_BYTES_MIN,
    BodySource,
    BytesBody,
    ChecksumMismatch,
    InvalidRange,
    NotFound,
    ObjectStore,
    PreconditionFailed,
    StoreError,
)


class PatternBody:
    """A large body that exists nowhere: every 4 bytes are their own position."""

    def __init__(self, length: int) -> None:
        assert length % 4 == 0
        self.length = length
        self.largest_read = 0

    def read_into(self, position: int, out: memoryview) -> int:
        assert position % 4 == 0
        self.largest_read = max(self.largest_read, len(out))
        count = min(len(out), self.length - position, 64 * KIB)  # shorter than asked for: callers must loop
        numbers = np.arange(position, position + count + 3, 4, dtype=">u4")
        out[:count] = numbers.view(np.uint8)[:count].tobytes()
        return count


def keys_of(store: ObjectStore, prefix: str, start_after: str | None = None) -> list[str]:
    return [meta.key for meta in store.list(prefix, start_after)]


# -- put, get, head, delete ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 4096, 300_000])
def test_put_then_get_returns_the_same_bytes(store: ObjectStore, size: int) -> None:
    data = bytes(i * 7 & 255 for i in range(size))
    meta = store.put("folder/key", data, crc32c=oracle.crc32c(data))
    assert (meta.key, meta.size, meta.crc32c) == ("folder/key", size, oracle.crc32c(data))
    assert store.get("folder/key") == data
    head = store.head("folder/key")
    assert (head.size, head.etag) == (size, meta.etag)
    assert head.crc32c in (None, oracle.crc32c(data))
    assert abs(head.modified_ms - time.time() * 1000) < 600_000
    assert [(m.key, m.size, m.etag) for m in store.list("folder/")] == [("folder/key", size, meta.etag)]


def test_put_replaces_and_changes_the_etag(store: ObjectStore) -> None:
    first = store.put("key", b"one")
    second = store.put("key", b"two")
    assert first.etag != second.etag
    assert store.head("key").etag == second.etag == store.head("key").etag
    assert store.get("key") == b"two"


def test_missing_objects_are_not_found(store: ObjectStore) -> None:
    for call in (store.get, store.head):
        with pytest.raises(NotFound):
            call("no/such/key")
    with pytest.raises(NotFound):
        store.get("no/such/key", 3, 4)
    store.delete(["no/such/key"])
    store.delete([])


def test_a_key_below_or_above_an_object_does_not_exist(store: ObjectStore) -> None:
    store.put("a/b", b"x")
    for key in ("a", "a/b/c"):
        with pytest.raises(NotFound):
            store.get(key)


def test_delete_many_deletes_all_that_exist(store: ObjectStore) -> None:
    keys = [f"many/{i:04d}" for i in range(1, 1206 if not _slow(store) else 12)]
    for key in keys:
        store.put(key, b"")
    store.put("many-other", b"")
    store.delete(keys[1:])
    assert keys_of(store, "") == ["many-other", keys[0]]
    store.delete([keys[0], "many-other", "never-was"])
    assert keys_of(store, "") == []
    store.put(keys[0], b"again")  # although its folder became empty
    assert store.get(keys[0]) == b"again"


def _slow(store: ObjectStore) -> bool:
    return type(getattr(store, "_inner", store)).__name__ == "S3Store"


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/../b", "a/./b", "x" * 1025, "a\0b"])
def test_invalid_keys_are_refused(store: ObjectStore, key: str) -> None:
    if _slow(store) and key in ("", "/a"):
        pytest.skip("a prefix stands before the key")
    with pytest.raises(ValueError, match="object key"):
        store.put(key, b"")


# -- ranges ----------------------------------------------------------------------------------------------------------


def test_ranges_are_read_exactly(store: ObjectStore) -> None:
    data = bytes(range(256)) * 40
    store.put("ranges", data)
    assert store.get("ranges", 10, 5) == data[10:15]
    assert store.get("ranges", 0, 1) == data[:1]
    assert store.get("ranges", 10_000) == data[10_000:]
    assert store.get("ranges", len(data) - 3, 100) == data[-3:]
    assert store.get("ranges", None, 7) == data[:7]
    assert store.get("ranges", 5, 0) == b""
    for start in (len(data), len(data) + 10):
        with pytest.raises(InvalidRange):
            store.get("ranges", start, 4)
    for start, length in ((-1, 2), (0, -1)):
        with pytest.raises(ValueError, match="bad range"):
            store.get("ranges", start, length)


def test_get_into_fills_the_buffer_or_raises(store: ObjectStore) -> None:
    data = bytes(range(256)) * 4000
    store.put("into", data)
    out = memoryview(bytearray(700_000))
    assert store.get_into("into", 1234, out) == 700_000
    assert bytes(out) == data[1234 : 1234 + 700_000]
    with pytest.raises(InvalidRange):
        store.get_into("into", len(data) - 10, memoryview(bytearray(11)))
    with pytest.raises(NotFound):
        store.get_into("gone", 0, memoryview(bytearray(11)))


def test_a_read_of_another_version_is_refused(store: ObjectStore) -> None:
    old = store.put("version", b"old bytes")
    new = store.put("version", b"new bytes")
    assert store.get("version", 0, 3, if_match=new.etag) == b"new"
    for call in (
        lambda: store.get("version", 0, 3, if_match=old.etag),
        lambda: store.get("version", if_match=old.etag),
        lambda: store.get_into("version", 0, memoryview(bytearray(3)), if_match=old.etag),
    ):
        with pytest.raises(PreconditionFailed):
            call()


# -- listing ---------------------------------------------------------------------------------------------------------

ODD_NAMES = [
    "a!b", "a b", "a#b", "a%2Fb", "a%b", "a'b", "a(b)", "a*b", "a+b", "a,b", "a-b", "a.b", "a/b", "a/c.d", "a/c/d",
    "a0", "a:b", "a=b", "a?b", "a@b", "a[b]", "a_b", "aé", "a~b", "b", "b.x/y", "b-x/y", "z/\u00ff", "z/\uffee",
    "z/\U0001f600", "..a", "...", ".hidden", ".tmp/x", ".lock", "a&b", "a<b>", 'a"b', "a\\b", "a|b",
]  # fmt: skip


def test_listing_is_in_byte_order_with_odd_names(store: ObjectStore) -> None:
    # "a" and "a/b" at once are an object and a folder of one name, which not every store can hold.
    for name in ODD_NAMES:
        store.put("odd/" + name, name.encode())
    wanted = sorted(("odd/" + name for name in ODD_NAMES), key=lambda key: key.encode("utf-8"))
    assert keys_of(store, "odd/") == wanted
    for name in ODD_NAMES:
        assert store.get("odd/" + name) == name.encode()
    for after in (wanted[0], wanted[7], wanted[20], "odd/a/", "odd/a0x", "odd/zzz"):
        assert keys_of(store, "odd/", after) == [key for key in wanted if key.encode() > after.encode()]
    store.delete(["odd/" + name for name in ODD_NAMES])
    assert keys_of(store, "") == []


def test_a_prefix_need_not_end_at_a_folder(store: ObjectStore) -> None:
    for key in ("p/ab/1", "p/ab/2", "p/abc/1", "p/abd", "p/b"):
        store.put(key, b"")
    assert keys_of(store, "p/ab") == ["p/ab/1", "p/ab/2", "p/abc/1", "p/abd"]
    assert keys_of(store, "p/ab/") == ["p/ab/1", "p/ab/2"]
    assert keys_of(store, "p/ab", "p/ab/1") == ["p/ab/2", "p/abc/1", "p/abd"]
    assert keys_of(store, "nothing") == []


def test_key_segments_of_a_long_topic_name_are_stored(store: ObjectStore, backend: str) -> None:
    """A topic name may have 249 characters, and its folder also holds the topic id."""
    if backend == "real":
        pytest.skip("versitygw over a folder: segments of at most 255 bytes")
    long = "t" * 249
    keys = [f"r/{long}-{'0' * 32}/0/1.obj", f"r/{long}.{'1' * 32}/0/1.obj", f"r/{long[:200]}/0/1.obj"]
    keys += [f"r/{long[:200]}.x", f"r/{long[:200]}-y/z", f"r/{long[:199]}/q", f"r/{long[:201]}/q"]
    for key in keys:
        store.put(key, key.encode())
    assert keys_of(store, "r/") == sorted(keys)
    assert keys_of(store, f"r/{long}") == sorted(keys[:2])
    assert keys_of(store, "r/", keys[0]) == [key for key in sorted(keys) if key > keys[0]]
    for key in keys:
        assert store.get(key) == key.encode()
    store.delete(keys)
    assert keys_of(store, "") == []


def test_a_listing_of_many_pages_is_complete(store: ObjectStore, backend: str) -> None:
    if backend == "moto":
        pytest.skip("moto takes 15 ms for each of the puts")
    keys = [f"page/{i:05d}" for i in range(1100)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, b""), keys))
    assert keys_of(store, "page/") == keys
    assert keys_of(store, "page/", keys[1049]) == keys[1050:]


# -- conditions ------------------------------------------------------------------------------------------------------


def test_create_only_refuses_an_existing_key(store: ObjectStore) -> None:
    store.put("once", b"first", if_none_match=True)
    with pytest.raises(PreconditionFailed):
        store.put("once", b"second", if_none_match=True)
    assert store.get("once") == b"first"
    store.delete(["once"])
    store.put("once", b"third", if_none_match=True)
    assert store.get("once") == b"third"


def test_a_conditional_replace_needs_the_expected_version(store: ObjectStore) -> None:
    first = store.put("cas", b"1")
    second = store.put("cas", b"2", if_match=first.etag)
    with pytest.raises(PreconditionFailed):
        store.put("cas", b"3", if_match=first.etag)
    assert store.get("cas") == b"2"
    store.put("cas", b"4", if_match=second.etag)
    assert store.get("cas") == b"4"
    with pytest.raises(PreconditionFailed):
        store.put("missing", b"x", if_match=second.etag)
    with pytest.raises(NotFound):
        store.head("missing")
    with pytest.raises(ValueError, match="exclude"):
        store.put("cas", b"5", if_none_match=True, if_match=second.etag)


@pytest.mark.parametrize("condition", ["create", "replace"])
def test_exactly_one_of_racing_writers_wins(store: ObjectStore, backend: str, condition: str) -> None:
    if backend == "moto":
        pytest.skip("moto judges a condition and stores in two steps")
    threads, rounds = 8, 20
    barrier = threading.Barrier(threads)

    def race(me: int, key: str, etag: str | None) -> bool:
        barrier.wait()
        body = f"{key} by {me}".encode()
        try:
            store.put(key, body, if_none_match=etag is None, if_match=etag)
        except PreconditionFailed:
            return False
        return True

    with ThreadPoolExecutor(threads) as pool:
        for number in range(rounds):
            key = f"race/{condition}/{number}"
            etag = store.put(key, b"start").etag if condition == "replace" else None
            won = list(pool.map(race, range(threads), [key] * threads, [etag] * threads))
            assert sum(won) == 1, f"round {number}: {won}"
            assert store.get(key) == f"{key} by {won.index(True)}".encode()


# -- checksums, streams, parts ---------------------------------------------------------------------------------------


def test_a_wrong_checksum_is_refused(store: ObjectStore, backend: str) -> None:
    if backend == "moto":
        pytest.skip("moto accepts a wrong CRC-32C")
    with pytest.raises(ChecksumMismatch):
        store.put("damaged", b"some bytes", crc32c=oracle.crc32c(b"other bytes"))
    with pytest.raises(ChecksumMismatch):
        store.put("damaged", BytesBody(b"some bytes" * 100_000), crc32c=1)
    with pytest.raises(NotFound):
        store.head("damaged")
    upload = store.create_multipart("damaged")
    with pytest.raises(ChecksumMismatch):
        store.upload_part("damaged", upload, 1, b"some bytes", crc32c=7)
    store.abort_multipart("damaged", upload)


def test_a_streamed_body_is_never_held_in_memory(store: ObjectStore, backend: str) -> None:
    body = PatternBody(32 * MIB if backend in ("local", "real") else 4 * MIB)
    assert isinstance(body, BodySource)
    store.put("first", b"what a store learns by it is not to count")
    tracemalloc.start()
    try:
        meta = store.put("stream", body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert meta.size == body.length
    assert body.largest_read <= BODY_PIECE_BYTES
    if backend in ("local", "real"):  # the others keep the object in this process
        assert peak < 4 * MIB
    for position in (0, body.length // 2, body.length - 64 * KIB):
        wanted = memoryview(bytearray(64 * KIB))
        body.read_into(position, wanted)
        assert store.get("stream", position, 64 * KIB) == bytes(wanted)


def test_a_body_source_that_fails_stores_nothing(store: ObjectStore) -> None:
    class Failing(PatternBody):
        def read_into(self, position: int, out: memoryview) -> int:
            if position > MIB:
                raise RuntimeError("segment gone")
            return super().read_into(position, out)

    class Short(PatternBody):
        def read_into(self, position: int, out: memoryview) -> int:
            return 0 if position > MIB else super().read_into(position, out)

    with pytest.raises(RuntimeError, match="segment gone"):
        store.put("failing", Failing(2 * MIB))
    with pytest.raises(StoreError, match="body source"):
        store.put("failing", Short(2 * MIB))
    with pytest.raises(NotFound):
        store.head("failing")
    store.put("failing", b"works after it")


def test_a_multipart_upload_joins_its_parts(store: ObjectStore) -> None:
    first, last = PatternBody(PART_BYTES_MIN), b"the end"
    source = store.put("source", PatternBody(PART_BYTES_MIN + 1024))
    upload = store.create_multipart("parts")
    parts = [
        store.upload_part("parts", upload, 3, last, crc32c=oracle.crc32c(last)),
        store.upload_part("parts", upload, 1, first),
        store.upload_part_copy("parts", upload, 2, "source", 512, PART_BYTES_MIN, if_match=source.etag),
    ]
    with pytest.raises(NotFound):
        store.head("parts")  # nothing appears before it is complete
    meta = store.complete_multipart("parts", upload, sorted(parts, key=lambda part: part.number))
    assert meta.size == 2 * PART_BYTES_MIN + len(last) == store.head("parts").size
    assert store.head("parts").etag == meta.etag
    assert store.get("parts", 2 * PART_BYTES_MIN, 100) == last
    assert store.get("parts", PART_BYTES_MIN - 4, 8) == (PART_BYTES_MIN - 4).to_bytes(4, "big") + b"\0\0\2\0"
    store.abort_multipart("parts", upload)  # gone already: no error
    assert store.head("parts").size == meta.size


def test_parts_are_copied_from_a_multipart_object(store: ObjectStore) -> None:
    body = PatternBody(PART_BYTES_MIN + 1024)
    source = store.put("first", body)
    for key in ("second", "third"):
        upload = store.create_multipart(key)
        parts = [
            store.upload_part_copy(key, upload, 1, source.key, 0, PART_BYTES_MIN, if_match=source.etag),
            store.upload_part_copy(key, upload, 2, source.key, PART_BYTES_MIN, 1024, if_match=source.etag),
        ]
        source = store.complete_multipart(key, upload, parts, if_none_match=True)
    assert store.head("third").size == body.length
    assert store.get("third") == store.get("first")


def test_conditions_hold_for_multipart_uploads(store: ObjectStore, backend: str) -> None:
    old = store.put("source", b"x" * 1000)
    store.put("source", b"y" * 1000)
    upload = store.create_multipart("target")
    if backend != "moto":  # which ignores this condition
        with pytest.raises(PreconditionFailed):
            store.upload_part_copy("target", upload, 1, "source", 0, 1000, if_match=old.etag)
    with pytest.raises(NotFound):
        store.upload_part_copy("target", upload, 1, "no-source", 0, 1000)
    part = store.upload_part("target", upload, 1, b"body")
    store.put("target", b"was quicker")
    with pytest.raises(PreconditionFailed):
        store.complete_multipart("target", upload, [part], if_none_match=True)
    assert store.get("target") == b"was quicker"
    store.abort_multipart("target", upload)
    if backend != "moto":  # which answers 500
        with pytest.raises(NotFound):
            store.upload_part("target", upload, 1, b"body")


def test_unfinished_uploads_are_listed(store: ObjectStore, backend: str) -> None:
    before = time.time() * 1000 - 60_000  # the server's clock is this machine's; some tell whole seconds
    keys = ["a/1", "a/1", "a/2", "ab/3", "b/4"]
    made = [(key, store.create_multipart(key)) for key in keys]
    store.upload_part("a/2", made[2][1], 1, b"x")

    def listed(prefix: str) -> list[tuple[str, str]]:
        return [(upload.key, upload.upload_id) for upload in store.list_multipart(prefix)]

    assert sorted(listed("a/")) == sorted(made[:3])
    assert [key for key, _ in listed("a")] == sorted(keys)[:4]
    assert sorted(listed("")) == sorted(made)
    assert listed("c") == []
    for upload in store.list_multipart("") if backend != "moto" else ():  # which says 2010 of all of them
        assert before <= upload.started_ms <= time.time() * 1000 + 60_000
    store.complete_multipart("a/2", made[2][1], [store.upload_part("a/2", made[2][1], 1, b"y")])
    store.abort_multipart(*made[0])
    assert listed("") == [made[1], made[3], made[4]]
    for key, upload_id in made[1:]:
        store.abort_multipart(key, upload_id)
    assert listed("") == []


def test_uploads_of_other_prefixes_are_not_listed(prefixed: ObjectStore, store: ObjectStore) -> None:
    store.create_multipart("some/k")
    upload = prefixed.create_multipart("k")
    assert [(found.key, found.upload_id) for found in prefixed.list_multipart("")] == [("k", upload)]
    for found in [*store.list_multipart("")]:
        store.abort_multipart(found.key, found.upload_id)


@pytest.mark.parametrize("numbers", [[], [2, 1], [1, 1], [0], [10_001]])
def test_invalid_part_lists_are_refused(store: ObjectStore, numbers: list[int]) -> None:
    upload = store.create_multipart("bad")
    part = store.upload_part("bad", upload, 1, b"")
    parts = [type(part)(number, part.etag, PART_BYTES_MIN, None) for number in numbers]
    with pytest.raises(ValueError, match="part"):
        store.complete_multipart("bad", upload, parts)
    small = [type(part)(number, part.etag, 10, None) for number in (1, 2)]
    with pytest.raises(ValueError, match="all but the last"):
        store.complete_multipart("bad", upload, small)
    store.abort_multipart("bad", upload)


def test_prefix_wrapper_keeps_the_guarantees(prefixed: ObjectStore, store: ObjectStore) -> None:
    meta = prefixed.put("k", b"abc", if_none_match=True)
    assert (meta.key, prefixed.head("k").key) == ("k", "k")
    assert store.get("some/prefix/k") == b"abc"
    assert keys_of(prefixed, "") == ["k"]
    assert keys_of(prefixed, "", "k") == []
    with pytest.raises(PreconditionFailed):
        prefixed.put("k", b"abc", if_none_match=True)
    upload = prefixed.create_multipart("m")
    part = prefixed.upload_part_copy("m", upload, 1, "k", 1, 2)
    assert prefixed.complete_multipart("m", upload, [part]).key == "m"
    assert prefixed.get("m") == b"bc"
    prefixed.delete(["k", "m"])
    assert keys_of(store, "") == []
