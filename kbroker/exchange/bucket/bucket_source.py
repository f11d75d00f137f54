"""Topics in a bucket of klite or KafScale: partitions and their batches in order, for an import."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from kbroker._fast.records.records import parse_batch_header
from kbroker.errors import CorruptionError
from kbroker.exchange.batch_block import ENTRY_DTYPE, Block
from kbroker.exchange.bucket.kfs_pairs import KfsPair, list_pairs, read_segment
from kbroker.exchange.bucket.klite_metadata import (
    FRAME_HEADER_BYTES,
    LEASE,
    METADATA_LOG,
    KliteMetadata,
    parse_metadata_log,
)
from kbroker.exchange.bucket_log import image_footer, read_image
from kbroker.exchange.partition_upload import StoredBatches
from kbroker.exchange.server_copy import fits
from kbroker.exchange.source_error import SourceError
from kbroker.storage.formats.kfs import FOOTER_BYTES, HEADER_BYTES, batches_of
from kbroker.storage.formats.object_keys import KlixKey, parse_key
from kbroker.storage.stores.conditional_write import read_back
from kbroker.storage.stores.object_store import NotFound, ObjectMeta, ObjectStore, read_whole

LEASE_QUIET_MS = 60_000  # a lease that was not renewed for so long has no owner
LEASE_WAIT_SECONDS = 20.0  # longer than klite's own term
METADATA_BYTES_MAX = 1 << 30
_CLUSTER = re.compile(r"(?:.*/)?klite-(?P<id>[^/]+)/", re.ASCII)


class SourcePart(Protocol):
    """One object of a partition."""

    @property
    def name(self) -> str: ...

    @property
    def base_offset(self) -> int: ...

    def blocks(self, log_start: int) -> Iterator[Block]:
        """Its batches from the one that holds `log_start` on, checked."""
        ...

    def stored(self) -> StoredBatches | None:
        """The place of all its batches, if they are large enough for a copy within the store."""
        ...

    def last_leader_epoch(self) -> int:
        """The leader epoch of its last batch."""
        ...


@dataclass(slots=True)
class SourceTopic:
    """A topic of the bucket."""

    name: str
    topic_id: bytes | None
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)
    parts: dict[int, list[SourcePart]] = field(default_factory=dict)  # by partition, in order of offset
    log_starts: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _KliteObject:
    store: ObjectStore
    meta: ObjectMeta
    base_offset: int

    @property
    def name(self) -> str:
        return self.meta.key

    def blocks(self, log_start: int) -> Iterator[Block]:
        meta = self.meta
        footer = image_footer(self.store, meta.key, 0, meta.size, meta.etag)
        if footer.base_offset != self.base_offset:
            raise CorruptionError(f"{meta.key}: begins at offset {footer.base_offset}")
        yield from read_image(self.store, meta.key, 0, meta.etag, footer, log_start)

    def stored(self) -> StoredBatches | None:
        meta = self.meta
        if not fits(meta.size):
            return None
        length = image_footer(self.store, meta.key, 0, meta.size, meta.etag).data_length
        return StoredBatches(meta.key, meta.etag, 0, length) if fits(length) else None

    def last_leader_epoch(self) -> int:
        footer = image_footer(self.store, self.meta.key, 0, self.meta.size, self.meta.etag)
        batch = self.store.get(self.meta.key, *footer.batch_range(len(footer) - 1), if_match=self.meta.etag)
        return _leader_epoch(batch, self.meta.key)


@dataclass(frozen=True, slots=True)
class _KafscaleSegment:
    store: ObjectStore
    pair: KfsPair

    @property
    def name(self) -> str:
        return self.pair.segment.key

    @property
    def base_offset(self) -> int:
        return self.pair.key.base_offset

    def blocks(self, log_start: int) -> Iterator[Block]:
        segment = read_segment(self.store, self.pair)
        rows = [
            (header.base_offset, position, header.max_timestamp, header.size, header.last_offset_delta)
            for position, header in batches_of(segment.body, self.name)
        ]
        yield Block(bytes(segment.body), np.array(rows, ENTRY_DTYPE))

    def stored(self) -> StoredBatches | None:
        meta = self.pair.segment
        length = meta.size - HEADER_BYTES - FOOTER_BYTES
        return StoredBatches(meta.key, meta.etag, HEADER_BYTES, length) if fits(length) else None

    def last_leader_epoch(self) -> int:
        body = read_segment(self.store, self.pair).body
        *_, (position, _) = batches_of(body, self.name)
        return _leader_epoch(bytes(body[position - HEADER_BYTES :]), self.name)


class KliteBucket:
    """A klite cluster's objects. `metadata` is None if its `metadata.log` was never uploaded.

    Raises SourceError: no such cluster, or several and no name; StoreError, CorruptionError.
    """

    def __init__(self, store: ObjectStore, cluster_id: str | None = None) -> None:
        self._store = store
        self._root = _klite_root(store, cluster_id)
        self._lease = self._lease_etag()
        self.metadata = self._read_metadata()
        self.notes: list[str] = []

    def topics(self) -> list[SourceTopic]:
        """Topics by name, from the metadata or else from the keys."""
        found: dict[tuple[str, bytes], SourceTopic] = {}
        for meta in self._store.list(self._root):
            key = parse_key(meta.key[len(self._root) :])
            if not isinstance(key, KlixKey) or key.generation:
                continue
            topic = found.setdefault((key.topic, key.topic_id), SourceTopic(key.topic, key.topic_id, 1))
            topic.partitions = max(topic.partitions, key.partition + 1)
            topic.parts.setdefault(key.partition, []).append(_KliteObject(self._store, meta, key.base_offset))
        if self.metadata is not None:
            return self._named(found, self.metadata)
        names = [name for name, _ in found]
        double = sorted({name for name in names if names.count(name) > 1})
        if double:
            raise SourceError(
                f"no {METADATA_LOG}, and several topics are called {', '.join(double)}: delete one's objects"
            )
        return [topic for _, topic in sorted(found.items())]

    def check_idle(self, now_ms: int, wait: Callable[[float], object]) -> None:
        """SourceError while a klite renews its lease; waits for a term if it was renewed recently."""
        if self._lease is None:
            return
        meta = self._store.head(self._root + LEASE)
        if now_ms - meta.modified_ms < LEASE_QUIET_MS:
            wait(LEASE_WAIT_SECONDS)
        self.check_unchanged()

    def check_unchanged(self) -> None:
        """SourceError when the lease has changed since the bucket was opened."""
        if self._lease_etag() != self._lease:
            raise SourceError(f"{self._root}{LEASE} changes: a klite runs on the cluster; stop it first")

    def _named(self, found: dict[tuple[str, bytes], SourceTopic], metadata: KliteMetadata) -> list[SourceTopic]:
        topics = []
        for name, known in sorted(metadata.topics.items()):
            topic = found.pop((name, known.topic_id), None) or SourceTopic(name, known.topic_id, known.partitions)
            topic.partitions = max(topic.partitions, known.partitions)
            topic.configs, topic.log_starts = known.configs, known.log_starts
            topics.append(topic)
        self.notes += [f"objects of {name}-{topic_id.hex()} are of a deleted topic" for name, topic_id in sorted(found)]
        return topics

    def _lease_etag(self) -> str | None:
        try:
            return self._store.head(self._root + LEASE).etag
        except NotFound:
            return None

    def _read_metadata(self) -> KliteMetadata | None:
        key = self._root + METADATA_LOG
        start = read_back(self._store, key, FRAME_HEADER_BYTES)
        if start is None:
            return None
        parse_metadata_log(start, key)  # check its beginning before reading it whole
        return parse_metadata_log(read_whole(self._store, key, METADATA_BYTES_MAX), key)


def _klite_root(store: ObjectStore, cluster_id: str | None) -> str:
    """The root of the cluster, "[prefix/]klite-<id>/"; without the prefix in the store's URL."""
    start = "klite-" if cluster_id is None else f"klite-{cluster_id}/"
    roots: list[str] = []
    after: str | None = None
    while (meta := next(store.list(start, after), None)) is not None:
        match = _CLUSTER.match(meta.key)
        if match is None:
            after = meta.key
            continue
        roots.append(match[0])
        after = match[0].rstrip("/") + chr(ord("/") + 1)
    if not roots:
        raise SourceError(f"no objects under {start}")
    if len(roots) > 1:
        raise SourceError(f"{len(roots)} clusters of klite: {', '.join(roots)}; name one with --cluster-id")
    return roots[0]


def kafscale_topics(store: ObjectStore, namespace: str | None) -> tuple[list[SourceTopic], list[str]]:
    """(topics, notes) of KafScale's namespace, or of the only one there is. Raises SourceError, StoreError."""
    pairs, lone = list_pairs(store, "" if namespace is None else f"{namespace}/")
    pairs = [pair for pair in pairs if namespace in (None, pair.key.namespace)]
    namespaces = sorted({pair.key.namespace for pair in pairs})
    if not namespaces:
        raise SourceError(f"no segments{'' if namespace is None else f' in namespace {namespace}'}")
    if len(namespaces) > 1:
        raise SourceError(f"{len(namespaces)} namespaces: {', '.join(namespaces)}; name one with --namespace")
    topics: dict[str, SourceTopic] = {}
    for pair in pairs:
        topic = topics.setdefault(pair.key.topic, SourceTopic(pair.key.topic, None, 1))
        topic.partitions = max(topic.partitions, pair.key.partition + 1)
        topic.parts.setdefault(pair.key.partition, []).append(_KafscaleSegment(store, pair))
    return [topic for _, topic in sorted(topics.items())], [f"{key} has no segment: left out" for key in lone]


def last_leader_epoch(topics: list[SourceTopic]) -> int:
    """The highest leader epoch of the topics' last batches. Raises StoreError, CorruptionError."""
    return max([0, *(parts[-1].last_leader_epoch() for topic in topics for parts in topic.parts.values())])


def _leader_epoch(batch: bytes, name: str) -> int:
    try:
        return parse_batch_header(batch).leader_epoch
    except ValueError as error:
        raise CorruptionError(f"{name}: {error}") from None
