"""Names of topics in KafScale's format: keys carry no topic id there, so a name is free only when nothing is left.

A topic's segments go at once when it is deleted, and with them what flushes that did not finish left under its name.
A topic of the same name can be made when the manifest knows no key under it, no flush may still be storing one, no
deletion of one may still take effect, and the bucket lists none.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence

from kbroker.clock import Clock
from kbroker.log.log_table import LogTable
from kbroker.storage.flush.upload import Claim
from kbroker.storage.formats.kfs_keys import SEGMENT_SUFFIX, index_key_of
from kbroker.storage.formats.object_keys import OWN_FOLDERS, ObjectKeys, segment_key
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.stores.object_store import ObjectStore, StoreUnavailable

logger = logging.getLogger(__name__)

DOUBT_SECONDS = 600.0  # a deletion of unknown outcome may still take effect


class SegmentNames:
    """What is under the names of topics with segments. Thread-safe.

    `writes(topic)` says whether a flush may be storing segments of a topic of this name, deleted or not. `store` does
    not try again what failed: a request whose answer did not come may arrive when the name is in use again.
    """

    def __init__(
        self,
        table: LogTable,
        manifest: Manifest,
        store: ObjectStore,
        keys: ObjectKeys,
        clock: Clock,
        claim: Claim,
        writes: Callable[[str], bool],
    ) -> None:
        self._table = table
        self._manifest = manifest
        self._store = store
        self._keys = keys
        self._clock = clock
        self._claim = claim
        self._writes = writes
        self._lock = threading.Lock()
        self._to_clear: set[str] = set()
        self._doubted: dict[str, float] = {}  # name -> until when a deletion may take effect, monotonic
        # A broker that was deleting these may have died meanwhile.
        self._doubt(key for key in manifest.image.deletions if key.endswith(SEGMENT_SUFFIX))

    def obstacle(self, topic: str) -> str | None:
        """Why no topic with segments can have this name now, or None. Raises StoreError."""
        if topic in OWN_FOLDERS:
            return f"objects of a topic with kbroker.object.format=kfs cannot be called {topic}"
        if self._writes(topic):  # asked first: when it is over, the manifest knows what it stored
            return f"segments of a deleted topic '{topic}' are being stored; try again"
        known = next(iter(self._known_keys(topic)), None)
        if known is not None:
            return f"a deleted topic '{topic}' still has segments that are being deleted, {known} and others; try again"
        if self._is_doubted(topic):
            return f"segments of a deleted topic '{topic}' may still be being deleted; try again in some minutes"
        found = next(self._store.list(self._prefix(topic)), None)
        if found is None:
            return None
        return (
            f"{found.key} is in the object store, and keys in KafScale's format carry no topic id: a topic "
            f"'{topic}' in this format can be created when nothing is left under {self._prefix(topic)}"
        )

    def delete(self, keys: Sequence[str]) -> None:
        """Deletes segments and indexes, by keys below the root. Raises StoreError: then they may still be deleted, and
        the names that they are under are not free for a while."""
        try:
            self._store.delete([self._keys.full(key) for key in keys])
        except StoreUnavailable:
            self._doubt(keys)
            raise

    def is_gone(self, key: str) -> bool:
        """True for the key, below the root, of a segment whose topic has been deleted: nothing waits for it."""
        parsed = segment_key(key) if key.endswith(SEGMENT_SUFFIX) else None
        return parsed is not None and not self._is_topic(parsed.topic)

    def deleted(self, topic: str) -> None:
        """A topic with segments was deleted: what no manifest record knows under its name is to be deleted as well."""
        with self._lock:
            self._to_clear.add(topic)

    def dropped(self, topic_ids: Iterable[bytes]) -> None:
        """As `deleted`, for topics whose names only the keys of their segments tell."""
        image = self._manifest.image
        with image.lock:
            states = [state for topic_id in topic_ids for state in image.partitions.get(topic_id, {}).values()]
            files = [image.files[state.row(0).file].key for state in states if state.object_count]
        for parsed in map(segment_key, files):
            if parsed is not None:
                self.deleted(parsed.topic)

    def clear(self) -> int:
        """Deletes leftovers under the names of deleted topics whose named objects are gone; returns how many.

        Raises StoreError, Superseded: then it is tried again.
        """
        with self._lock:
            topics = sorted(self._to_clear)
        cleared = 0
        for topic in topics:
            if not self._is_topic(topic) and (self._writes(topic) or self._known_keys(topic)):
                continue  # later
            listed = [meta.key for meta in self._store.list(self._prefix(topic))]
            found = [key for key in listed if _is_of(self._keys.relative(key), topic)]
            # Looked up after the listing: a topic of this name made since needed it to be empty.
            if found and not self._is_topic(topic):
                self._claim.check()
                self.delete([self._keys.relative(key) for key in found])
                cleared += len(found)
                logger.info("deleted %d leftovers of the deleted topic %s, %s and others", len(found), topic, found[0])
            with self._lock:
                self._to_clear.discard(topic)
        return cleared

    def _doubt(self, keys: Iterable[str]) -> None:
        now = self._clock.monotonic()
        topics = {parsed.topic for parsed in map(segment_key, keys) if parsed is not None}
        with self._lock:
            doubted = {topic: until for topic, until in self._doubted.items() if until > now}
            self._doubted = doubted | dict.fromkeys(topics, now + DOUBT_SECONDS)

    def _is_doubted(self, topic: str) -> bool:
        with self._lock:
            return self._doubted.get(topic, 0.0) > self._clock.monotonic()

    def _is_topic(self, name: str) -> bool:
        topic_log = self._table.by_name.get(name)
        return topic_log is not None and bool(topic_log.config.kfs)

    def _prefix(self, topic: str) -> str:
        return self._keys.full(f"{topic}/")

    def _known_keys(self, topic: str) -> list[str]:
        """Keys under the name that the manifest knows, as live or to be deleted."""
        image = self._manifest.image
        with image.lock:
            return [key for key in (*image.segment_keys(), *image.deletions) if _is_of(key, topic)]


def _is_of(key: str, topic: str) -> bool:
    """Is this, below the root, the key of a segment or index of a topic of this name?"""
    if not key.startswith(topic):
        return False
    parsed = segment_key(key)
    return parsed is not None and parsed.topic == topic


def with_indexes(keys: Iterable[str]) -> list[str]:
    """Keys to delete, each segment's followed by that of its index."""
    return [each for key in keys for each in ((key, index_key_of(key)) if key.endswith(SEGMENT_SUFFIX) else (key,))]
