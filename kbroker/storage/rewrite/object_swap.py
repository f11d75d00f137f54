"""The steps that all rewrites of objects (compaction, merging) share: reserve keys, check that the inputs are still the
partition's objects, replace them by the outputs, or release the keys.

Nothing changes before the one manifest record that swaps. A key is reserved by an earlier record before its first byte
is sent; so it always ends live, or is deleted when its reservation or its grace time expires (only
background.object_deletion deletes). Reserving also proves that this broker still owns the cluster.
docs/formats/manifest.md, "Reservation" and "Deletion".
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence

from kbroker import limits
from kbroker.clock import Clock
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.manifest.partition_state import ObjectRef, is_same_object
from kbroker.storage.manifest.record import ManifestRecord
from kbroker.storage.stores.object_store import NotFound, ObjectStore, StoreError

logger = logging.getLogger(__name__)

KEY_TRIES = 100  # orphans in the way; more are no accident
RESERVATION_MARGIN_MS = 600_000  # a reservation that expires sooner is not used

Place = tuple[bytes, int]  # topic id, partition


class ReservedKeys:
    """The keys that one rewrite reserved. Used by one thread."""

    def __init__(self, manifest: Manifest, store: ObjectStore, full_key: Callable[[str], str], clock: Clock) -> None:
        self.keys: list[str] = []
        self._manifest = manifest
        self._store = store
        self._full_key = full_key
        self._clock = clock
        self._handed_over = False

    def reserve(self, choices: Sequence[Callable[[str], str]]) -> list[str]:
        """A key for each choice, a function of 16 random hex digits; all are reserved by one record.

        No object has or had such a key, and only this rewrite may use it. Raises StoreError, Fenced.
        """
        for _ in range(KEY_TRIES):
            keys = [self._free_key(choice) for choice in choices]
            if self._try_reserve(keys):
                self.keys += keys
                return keys
        raise StoreError(f"{KEY_TRIES} orphans at {choices[0]('0' * 16)}")

    def _free_key(self, choice: Callable[[str], str]) -> str:
        for _ in range(KEY_TRIES):
            key = choice(os.urandom(8).hex())
            try:
                self._store.head(self._full_key(key))
            except NotFound:
                return key
        raise StoreError(f"{KEY_TRIES} orphans at {key}")

    def _try_reserve(self, keys: list[str]) -> bool:
        reserved = False

        def change(image: ManifestImage) -> ManifestRecord | None:
            nonlocal reserved
            reserved = not any(image.is_live(key) or key in image.deletions or key in image.reserved for key in keys)
            if not reserved:
                return None
            due_ms = self._clock.now_ms() + limits.REWRITE_RESERVATION_MS
            return ManifestRecord(reserved=tuple((key, due_ms) for key in keys))

        self._manifest.commit(change)
        return reserved

    def held(self, image: ManifestImage, keys: Sequence[str]) -> bool:
        """Whether these keys are reserved for long enough still. The caller holds the manifest's lock."""
        late_ms = self._clock.now_ms() + RESERVATION_MARGIN_MS
        return all(image.reserved.get(key, 0) > late_ms for key in keys)

    def released(self, image: ManifestImage, keys: Sequence[str]) -> tuple[tuple[str, int], ...]:
        """What a record queues of keys that will not be used, if they are still reserved."""
        # Not at once: a request with an unknown outcome may still take effect.
        due_ms = self._clock.now_ms() + RESERVATION_MARGIN_MS
        return tuple((key, due_ms) for key in keys if key in image.reserved)

    def handed_over(self) -> None:
        """The record that names the keys is being appended: from now on the manifest alone decides about them."""
        self._handed_over = True

    def release(self) -> None:
        """After a failure: has stored objects deleted, unless the record that names them may have been committed."""
        if not self.keys or self._handed_over:
            return

        def change(image: ManifestImage) -> ManifestRecord | None:
            queued = self.released(image, self.keys)
            return ManifestRecord(queued=queued) if queued else None

        try:
            self._manifest.commit(change)
        except Exception as error:  # the reservations expire by themselves
            logger.info("keys of a rewrite that failed stay reserved (%s, ...): %s", self.keys[0], error)


def are_current(image: ManifestImage, place: Place, inputs: Sequence[ObjectRef]) -> bool:
    """Whether these are still consecutive objects of the partition. The caller holds the manifest's lock."""
    refs = image.objects_from(*place, inputs[0].base_offset)
    return all(is_same_object(next(refs, None), ref) for ref in inputs)


class PartitionLocks:
    """One lock per partition for rewrites of its objects, so that no two of them conflict. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: set[Place] = set()

    def acquire(self, place: Place) -> bool:
        """Locks a partition; False when it is locked already. Never waits."""
        with self._lock:
            if place in self._places:
                return False
            self._places.add(place)
            return True

    def release(self, place: Place) -> None:
        """Unlocks a partition; no harm if it is not locked."""
        with self._lock:
            self._places.discard(place)
