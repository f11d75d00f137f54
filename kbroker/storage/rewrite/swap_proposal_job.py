"""The job's side of swap proposals: its note, keys for its outputs, the proposal, the answer.

A job stores outputs under their final keys, which are its own: the 16 hex digits at their ends begin with the
proposal's. Readers see nothing of them before the owner's manifest record. A job that fails before it proposes deletes
its outputs; after one that is killed the owner does, by the note, after two days.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Iterator, Sequence

from kbroker import limits
from kbroker.clock import Clock
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.formats.object_keys import KlixKey, ObjectKeys, klix_key
from kbroker.storage.rewrite.swap_proposal import (
    JOB,
    PROPOSAL,
    RESULT,
    SMALL_BYTES_MAX,
    TAG_LENGTH,
    VERSION,
    JobNote,
    Proposal,
    Result,
    Swap,
    decode_result,
    encode_job,
    encode_proposal,
    proposal_key,
)
from kbroker.storage.stores.conditional_write import create_once, read_back
from kbroker.storage.stores.object_store import ObjectStore, StoreError

logger = logging.getLogger(__name__)


class JobTooOld(Exception):
    """The job has run for so long that its proposal would be refused."""


def output_key(proposal_id: str, topic: str, place: tuple[bytes, int], base_offset: int, generation: int) -> str:
    """A unique key, below the root, for one attempt of one task."""
    rewrite = proposal_id[:TAG_LENGTH] + os.urandom(8).hex()[: 16 - TAG_LENGTH]
    return klix_key(topic, place[0], place[1], base_offset, generation, rewrite)


class ProposingJob:
    """One job's proposal, from the note to the answer.

    `store` may retry all but conditional writes. Raises StoreError. Used by one thread, beside the heartbeat thread of
    `alive`.
    """

    def __init__(
        self, store: ObjectStore, keys: ObjectKeys, clock: Clock, kind: str, topic: str, topic_id: bytes
    ) -> None:
        self.id = os.urandom(16).hex()
        self.proposed = False
        self._store = store
        self._keys = keys
        self._clock = clock
        self._note = JobNote(
            self.id, kind, topic, topic_id, (), socket.gethostname()[:255], os.getpid(), clock.now_ms(), 0
        )

    def _full(self, name: str) -> str:
        return self._keys.full(proposal_key(self.id, name))

    # -- the note ----------------------------------------------------------------------------------------------

    def announce(self, partitions: Sequence[int]) -> None:
        """Stores the note of these partitions; call it before the first output is stored."""
        self._note = self._note._replace(partitions=tuple(partitions))
        self._store.put(self._full(JOB), encode_job(self._note))

    def beat(self) -> None:
        """Stores a heartbeat."""
        self._note = self._note._replace(beat=self._note.beat + 1)
        self._store.put(self._full(JOB), encode_job(self._note))

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        """Sends heartbeats from a thread until the block ends."""
        ended = threading.Event()

        def run() -> None:
            while not ended.wait(limits.PROPOSAL_BEAT_SECONDS):
                try:
                    self.beat()
                except StoreError as error:
                    logger.info("no sign of life: %s", error)

        thread = threading.Thread(target=run, name="kbroker-job-alive", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    # -- the proposal ------------------------------------------------------------------------------------------

    def propose(self, swaps: Sequence[Swap], retries: RetryPolicy, version: int = VERSION) -> Proposal:
        """Stores the proposal in this version. Raises JobTooOld, ValueError (too much for one proposal), StoreError.

        After an error `proposed` says whether it may have been stored.
        """
        now_ms = self._clock.now_ms()
        if now_ms - self._note.started_ms > limits.PROPOSAL_AGE_MS:
            raise JobTooOld("the job ran for more than a day: its outputs may be swept already")
        proposal = Proposal(self.id, self._note.kind, self._note.topic, self._note.topic_id, now_ms, tuple(swaps))
        data = encode_proposal(proposal, version)
        self.proposed = True
        create_once(self._store, self._full(PROPOSAL), data, retries, limits.PROPOSAL_BYTES_MAX)
        return proposal

    def answer(self) -> Result | None:
        """The owner's answer; None while there is none. Raises CorruptionError."""
        data = read_back(self._store, self._full(RESULT), SMALL_BYTES_MAX)
        return None if data is None else decode_result(data, self._full(RESULT), self.id)

    # -- afterwards --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """After the answer: removes the proposal's objects, the answer last."""
        for name in (PROPOSAL, JOB, RESULT):
            self._store.delete([self._full(name)])

    def staged(self) -> list[str]:
        """Store keys of all outputs of the job's tasks that no record names."""
        prefix = self._keys.full(f"{self._note.topic}-{self._note.topic_id.hex()}")
        found = []
        for partition in self._note.partitions:
            for meta in self._store.list(f"{prefix}/{partition}/"):
                key = self._keys.parse(meta.key)
                if isinstance(key, KlixKey) and key.rewrite.startswith(self.id[:TAG_LENGTH]):
                    found.append(meta.key)
        return found

    def drop_staged(self, keep: Sequence[str]) -> int:
        """Deletes outputs of tasks that failed or ran twice, and unfinished uploads; returns how many objects.

        `keep`: the proposed store keys, which are the owner's.
        """
        kept = set(keep)
        left = [key for key in self.staged() if key not in kept]
        self._store.delete(left)
        for upload in self._store.list_multipart(self._keys.full(f"{self._note.topic}-{self._note.topic_id.hex()}/")):
            key = self._keys.parse(upload.key)
            if isinstance(key, KlixKey) and key.rewrite.startswith(self.id[:TAG_LENGTH]):
                self._store.abort_multipart(upload.key, upload.upload_id)
        return len(left)

    def abandon(self) -> None:
        """After a failure before the proposal: deletes everything, the note last."""
        assert not self.proposed, "what may have been proposed is the owner's"
        self.drop_staged(())
        self._store.delete([self._full(JOB)])
