"""Deletes the objects in the manifest's delete queue whose time has come."""

from __future__ import annotations

from functools import partial

from kbroker.clock import Clock
from kbroker.log.segment_names import SegmentNames, with_indexes
from kbroker.storage.flush.upload import Claim
from kbroker.storage.formats.kfs_keys import SEGMENT_SUFFIX
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.manifest.record import ManifestRecord
from kbroker.storage.stores.object_store import ObjectStore

DELETE_BATCH_KEYS = 1_000  # one DeleteObjects request


class ObjectDeletion:
    """Used by one thread. `claim` is read before each batch; None in tests of a bucket with one owner."""

    def __init__(
        self,
        manifest: Manifest,
        store: ObjectStore,
        clock: Clock,
        claim: Claim | None,
        segments: SegmentNames | None,
    ) -> None:
        self._manifest = manifest
        self._store = store
        self._clock = clock
        self._claim = claim
        self._segments = segments

    def run_once(self) -> int:
        """Deletes the keys that are due; returns how many. Raises StoreError, Fenced, Superseded.

        Deleting twice does no harm, so a key leaves the queue only after it is deleted. A reserved key is queued first:
        no record can make a queued key live, while the rewrite that reserved it may be about to.
        """
        deleted = 0
        image = self._manifest.image
        while self._due(1):
            self._manifest.commit(partial(_expired_reservations, self._clock.now_ms()))
            due = [key for key in self._due(DELETE_BATCH_KEYS) if key in image.deletions]
            if not due:
                break
            if self._claim is not None:
                self._claim.check()
            self._delete(due)
            self._manifest.commit(ManifestRecord(deleted=tuple(due)))
            deleted += len(due)
        if self._segments is not None:
            self._segments.clear()
        return deleted

    def _due(self, limit: int) -> list[str]:
        image, now_ms = self._manifest.image, self._clock.now_ms()
        if self._segments is None:
            return image.due_deletions(now_ms, limit)
        return image.due_deletions(now_ms, limit, self._segments.is_gone)

    def _delete(self, keys: list[str]) -> None:
        """Segments last, by SegmentNames: on a failure it knows when the names are free again."""
        segments: list[str] = []
        if self._segments is not None:
            segments = [key for key in keys if key.endswith(SEGMENT_SUFFIX)]
            keys = [key for key in keys if not key.endswith(SEGMENT_SUFFIX)]
        root = self._manifest.image.root
        self._store.delete([root + key for key in with_indexes(keys)])
        if self._segments is not None and segments:
            self._segments.delete(with_indexes(segments))


def _expired_reservations(now_ms: int, image: ManifestImage) -> ManifestRecord | None:
    """The record that queues the keys of expired reservations."""
    expired = [key for key, due_ms in image.reserved.items() if due_ms <= now_ms and not image.is_live(key)]
    queued = tuple((key, now_ms) for key in expired[:DELETE_BATCH_KEYS])
    return ManifestRecord(queued=queued) if queued else None
