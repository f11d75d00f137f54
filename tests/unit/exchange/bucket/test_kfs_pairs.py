"""KafScale's segments and their indexes in a bucket: storing, finding and reading pairs."""

from __future__ import annotations

import pytest

from kbroker._fast.records.records import build_batch
from kbroker.errors import CorruptionError
from kbroker.exchange.bucket.kfs_pairs import KfsPair, list_pairs, read_segment, store_pair
from kbroker.storage.formats.kfs import encode_segment
from kbroker.storage.formats.kfs_index import KfsIndex, parse_index
from kbroker.storage.formats.kfs_keys import kfs_key
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import PreconditionFailed


def batches(*counts: int, base: int = 0) -> bytes:
    pieces = []
    for count in counts:
        pieces.append(build_batch([(None, b"v" * 10, 5, None)] * count, base_offset=base))
        base += count
    return b"".join(pieces)


def index_of(store: MemoryStore, pair: KfsPair) -> KfsIndex:
    assert pair.index is not None
    return parse_index(store.get(pair.index.key), pair.key.base_offset, pair.segment.size)


def test_pairs_are_stored_found_and_read() -> None:
    store = MemoryStore()
    first = store_pair(store, "default", "t", 0, batches(3, 4), 5)
    assert (first.base_offset, first.end_offset) == (0, 7)
    assert store_pair(store, "default", "t", 0, batches(3, 4), 6).segment.etag == first.segment.etag  # tried again
    store_pair(store, "default", "t", 0, batches(2, base=7), 5)
    store_pair(store, "default", "t", 1, batches(1), 5)
    with pytest.raises(PreconditionFailed):
        store_pair(store, "default", "t", 0, batches(8), 5)
    pairs, lone = list_pairs(store, "default/")
    assert lone == []
    assert [(pair.key.partition, pair.key.base_offset) for pair in pairs] == [(0, 0), (0, 7), (1, 0)]
    assert bytes(read_segment(store, pairs[0]).body) == batches(3, 4)
    assert index_of(store, pairs[0]).offsets == (0,)


def test_half_a_pair_is_found_and_completed() -> None:
    store = MemoryStore()
    store_pair(store, "default", "t", 0, batches(3, 4), 5)
    store_pair(store, "default", "t", 0, batches(200, 2, base=7), 5)
    (first, second), _ = list_pairs(store, "default/")
    store.delete([second.index.key, first.segment.key])
    (left,), lone = list_pairs(store, "default/")
    assert lone == [first.index.key]
    assert left.index is None
    # What an interrupted store_pair left is made whole by another one.
    assert store_pair(store, "default", "t", 0, batches(200, 2, base=7), 9).segment == left.segment
    (whole,), _ = list_pairs(store, "default/")
    assert index_of(store, whole).offsets == (7, 207)
    store.put(whole.index.key, b"damaged")
    with pytest.raises(PreconditionFailed):
        store_pair(store, "default", "t", 0, batches(200, 2, base=7), 9)


def test_a_segment_under_the_key_of_another_offset_is_refused() -> None:
    store = MemoryStore()
    store.put(kfs_key("n", "t", 0, 5), encode_segment(batches(1), 0))
    (pair,), _ = list_pairs(store, "n/")
    with pytest.raises(CorruptionError, match="begins at offset 0"):
        read_segment(store, pair)
