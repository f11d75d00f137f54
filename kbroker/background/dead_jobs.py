"""Jobs that died: the objects that they stored and never proposed are deleted, and then their notes."""

from __future__ import annotations

import logging

from kbroker import limits
from kbroker.background.job_holds import read_note
from kbroker.clock import Clock
from kbroker.storage.flush.upload import Claim
from kbroker.storage.formats.object_keys import KlixKey, ObjectKeys
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.manifest.record import ManifestRecord
from kbroker.storage.rewrite.swap_proposal import JOB, PROPOSAL, RESULT, TAG_LENGTH, proposal_key
from kbroker.storage.stores.object_store import ObjectMeta, ObjectStore

logger = logging.getLogger(__name__)

ORPHAN_GRACE_MS = 86_400_000  # between finding a dead job's objects and their deletion


class DeadJobs:
    """Used by one thread at a time. Methods return how many objects they queued.

    They raise StoreError, Fenced, Superseded.
    """

    def __init__(self, manifest: Manifest, store: ObjectStore, keys: ObjectKeys, clock: Clock, claim: Claim) -> None:
        self._manifest = manifest
        self._store = store
        self._keys = keys
        self._clock = clock
        self._claim = claim

    def sweep(self, proposal_id: str, note: ObjectMeta) -> int:
        """A job that sent no heartbeat for SWEEP_AGE_MS and proposed nothing: objects with its tag, its note last."""
        queued = self._queue_tagged(proposal_id, note, self._clock.now_ms() - limits.SWEEP_AGE_MS)
        self._store.delete([note.key])
        return queued

    def delete_proposal(self, proposal_id: str, metas: dict[str, ObjectMeta]) -> int:
        """A finished proposal whose job died; the answer last, so that it is never judged again."""
        queued = self._queue_tagged(proposal_id, metas[JOB], self._clock.now_ms()) if JOB in metas else 0
        for name in (PROPOSAL, JOB, RESULT):
            self._store.delete([self._keys.full(proposal_key(proposal_id, name))])
        return queued

    def _queue_tagged(self, proposal_id: str, meta: ObjectMeta, before_ms: int) -> int:
        """Queues older objects of a job that no record names: they will never be proposed."""
        note = read_note(self._store, meta, proposal_id)
        if note is None:
            return 0
        self._claim.check()
        folder = self._keys.full(f"{note.topic}-{note.topic_id.hex()}/")
        return self._queue(
            [
                self._keys.relative(found.key)
                for found in self._store.list(folder)
                if isinstance(key := self._keys.parse(found.key), KlixKey)
                and key.rewrite.startswith(proposal_id[:TAG_LENGTH])
                and found.modified_ms < before_ms
            ]
        )

    def _queue(self, keys: list[str]) -> int:
        queued = 0

        def change(image: ManifestImage) -> ManifestRecord | None:
            nonlocal queued
            due_ms = self._clock.now_ms() + ORPHAN_GRACE_MS
            unknown = tuple((key, due_ms) for key in keys if not image.is_known(key))
            queued = len(unknown)
            return ManifestRecord(queued=unknown) if unknown else None

        if keys:
            self._manifest.commit(change)
        if queued:
            logger.info("%d objects of a job that died will be deleted: %s and others", queued, keys[0])
        return queued
