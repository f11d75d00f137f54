"""Segments and indexes of KafScale in a bucket: how pairs are stored, and what one without the other means.

The segment is stored first, then the index, and both before anything names them. So a segment without an index is data
whose index can be rebuilt, and an index without a segment is an orphan that was never committed or has been deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kbroker._fast.base.crc32c import crc32c
from kbroker.errors import CorruptionError
from kbroker.storage.formats.kfs import KfsSegment, encode_segment, parse_segment
from kbroker.storage.formats.kfs_index import rebuild_index
from kbroker.storage.formats.kfs_keys import INDEX_SUFFIX, KfsKey, kfs_key, parse_kfs_key
from kbroker.storage.read.kfs_read import segment_bytes
from kbroker.storage.stores.object_store import ObjectMeta, ObjectStore, PreconditionFailed


@dataclass(frozen=True, slots=True)
class KfsPair:
    """One segment in the bucket; `index` is None when only the segment is there."""

    key: KfsKey
    segment: ObjectMeta
    index: ObjectMeta | None


@dataclass(frozen=True, slots=True)
class StoredPair:
    """A pair that was stored."""

    segment: ObjectMeta
    index: ObjectMeta
    base_offset: int
    end_offset: int


def list_pairs(store: ObjectStore, prefix: str) -> tuple[list[KfsPair], list[str]]:
    """(pairs in order of topic, partition and offset; keys of indexes without a segment). Raises StoreError."""
    segments: dict[KfsKey, ObjectMeta] = {}
    indexes: dict[KfsKey, ObjectMeta] = {}
    for meta in store.list(prefix):
        parsed = parse_kfs_key(meta.key)
        if parsed is not None:
            (indexes if parsed.is_index else segments)[parsed._replace(is_index=False)] = meta
    pairs = [KfsPair(key, meta, indexes.get(key)) for key, meta in sorted(segments.items())]
    return pairs, sorted(meta.key for key, meta in indexes.items() if key not in segments)


def store_pair(
    store: ObjectStore, namespace: str, topic: str, partition: int, batches: bytes, created_ms: int
) -> StoredPair:
    """Stores batches as a new segment, then its index. An object with the same bytes counts as an earlier attempt.

    Raises PreconditionFailed when other bytes are there, StoreError, ValueError for batches that make no segment.
    """
    data = encode_segment(batches, created_ms)
    segment = parse_segment(data)
    base = segment.header.base_offset
    # The segment of an earlier attempt differs only in its creation time; the index is the same.
    stored = _create(store, kfs_key(namespace, topic, partition, base), data, _without_time)
    index = _create(store, kfs_key(namespace, topic, partition, base, INDEX_SUFFIX), rebuild_index(segment), bytes)
    return StoredPair(stored, index, base, segment.end_offset)


def read_segment(store: ObjectStore, pair: KfsPair) -> KfsSegment:
    """The whole segment, checked, also against its key. Raises CorruptionError, StoreError."""
    meta = pair.segment
    segment = parse_segment(segment_bytes(store, meta.key, meta.size, meta.etag), meta.key)
    if segment.header.base_offset != pair.key.base_offset:
        raise CorruptionError(f"{pair.segment.key}: the segment begins at offset {segment.header.base_offset}")
    return segment


def _create(store: ObjectStore, key: str, data: bytes, content: Callable[[bytes], bytes]) -> ObjectMeta:
    try:
        return store.put(key, data, if_none_match=True, crc32c=crc32c(data))
    except PreconditionFailed:
        meta = store.head(key)
        present = store.get(key, if_match=meta.etag) if meta.size == len(data) else b""
        if content(present) != content(data):
            raise
        return meta


def _without_time(data: bytes) -> bytes:
    """A segment without its creation time, which differs between attempts."""
    return data[:20] + data[28:]
