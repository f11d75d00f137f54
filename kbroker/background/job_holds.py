"""The partitions of running jobs, locked against the broker's own rewrites while the job sends heartbeats."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from dataclasses import dataclass, field

from kbroker import limits
from kbroker.errors import CorruptionError
from kbroker.storage.rewrite.object_swap import PartitionLocks, Place
from kbroker.storage.rewrite.swap_proposal import SMALL_BYTES_MAX, JobNote, decode_job
from kbroker.storage.stores.conditional_write import read_back
from kbroker.storage.stores.object_store import ObjectMeta, ObjectStore

logger = logging.getLogger(__name__)


def read_note(store: ObjectStore, meta: ObjectMeta, proposal_id: str) -> JobNote | None:
    """A job's note; None when it is malformed or has just been deleted. Raises StoreError."""
    try:
        if meta.size > SMALL_BYTES_MAX:
            raise CorruptionError(f"{meta.key}: {meta.size} bytes are too many")
        data = read_back(store, meta.key, SMALL_BYTES_MAX)
        return None if data is None else decode_job(data, meta.key, proposal_id)
    except CorruptionError as error:
        logger.warning("a job's note is not used: %s", error)
        return None


@dataclass(slots=True)
class _Hold:
    note: JobNote | None  # None: malformed
    version: str = ""  # of the note: a heartbeat changes it
    seen_at: float = 0.0  # monotonic, last change of the version
    places: set[Place] = field(default_factory=set)  # locked


class JobHolds:
    """Not thread-safe. `exists` tells whether the broker has a partition; `locks` is shared with all rewrites."""

    def __init__(
        self,
        store: ObjectStore,
        locks: PartitionLocks,
        monotonic: Callable[[], float],
        exists: Callable[[Place], bool],
    ) -> None:
        self._store = store
        self._locks = locks
        self._monotonic = monotonic
        self._exists = exists
        self._holds: dict[str, _Hold] = {}  # by proposal id

    @property
    def places(self) -> set[Place]:
        """The partitions that are locked for jobs."""
        return {place for hold in self._holds.values() for place in hold.places}

    @property
    def jobs(self) -> int:
        """How many jobs have partitions."""
        return sum(1 for hold in self._holds.values() if hold.places)

    def renew(self, proposal_id: str, meta: ObjectMeta) -> None:
        """Locks the job's partitions that are free, or releases all if its note stays the same. Raises StoreError."""
        now = self._monotonic()
        hold = self._holds.get(proposal_id)
        if hold is None:
            hold = self._holds[proposal_id] = _Hold(read_note(self._store, meta, proposal_id))
        version = f"{meta.etag} {meta.modified_ms}"
        if hold.version != version:
            hold.version, hold.seen_at = version, now
        if hold.note is None:
            return
        if now - hold.seen_at > limits.PROPOSAL_HOLD_SECONDS:
            self._release_places(hold)
            return
        for partition in hold.note.partitions:
            place = (hold.note.topic_id, partition)
            if place not in hold.places and self._exists(place) and self._locks.acquire(place):
                hold.places.add(place)

    def release(self, proposal_id: str) -> None:
        """The job is finished or dead."""
        hold = self._holds.pop(proposal_id, None)
        if hold is not None:
            self._release_places(hold)

    def release_others(self, proposal_ids: Container[str]) -> None:
        """Releases the partitions of all jobs but these."""
        for proposal_id in list(self._holds):
            if proposal_id not in proposal_ids:
                self.release(proposal_id)

    def clear(self) -> None:
        """Forgets all jobs; the locks are of no more use."""
        self._holds.clear()

    def _release_places(self, hold: _Hold) -> None:
        for place in hold.places:
            self._locks.release(place)
        hold.places.clear()
