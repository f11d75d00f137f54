"""The broker's inbox of swap proposals, for jobs that share only the bucket with it.

One thread lists the proposals' folder every PROPOSAL_POLL_SECONDS: one request per poll while there are none. The
broker does not rewrite partitions that a job works on; it judges and answers proposals, and sweeps the objects of dead
jobs. A local job need not wait for the next poll: `look` is also a control command.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from kbroker import limits
from kbroker.background.dead_jobs import DeadJobs
from kbroker.background.job_holds import JobHolds
from kbroker.clock import Clock
from kbroker.errors import CorruptionError
from kbroker.log.log_table import LogTable
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.flush.pacing import Pacer
from kbroker.storage.flush.upload import Claim
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.ledger.numbered_log import Fenced
from kbroker.storage.ledger.ownership import Superseded
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.rewrite.object_swap import PartitionLocks, Place
from kbroker.storage.rewrite.swap_proposal import (
    JOB,
    OBSOLETE,
    PROPOSAL,
    PROPOSALS_DIR,
    REFUSED,
    RESULT,
    SMALL_BYTES_MAX,
    SWAPPED,
    Proposal,
    Result,
    decode_proposal,
    encode_result,
    parse_proposal_key,
    proposal_key,
)
from kbroker.storage.rewrite.swap_proposal_judge import PlaceRules, ProposalJudge
from kbroker.storage.stores.conditional_write import create_once, read_back
from kbroker.storage.stores.object_store import ObjectMeta, ObjectStore, StoreError

logger = logging.getLogger(__name__)

RESULT_KEPT_MS = 3_600_000  # for an answer that its job does not fetch
ANSWER_SECONDS = 10.0  # for storing one answer; retried at the next poll


class InboxStopped(Exception):
    """The inbox is closing."""


@dataclass(slots=True)
class InboxMetrics:
    """Counters since the start; read by the metrics endpoint without a lock."""

    looks: int = 0
    swapped: int = 0  # partitions
    obsolete: int = 0
    refused: int = 0
    jobs: int = 0  # running, as of the last poll
    orphans: int = 0  # objects of dead jobs, queued for deletion
    last_error: str | None = None


class ProposalInbox:
    """Finds proposals and answers them. `look` is one poll, for the thread, the control command and tests.

    Lock: `_lock` serialises polls. `locks` is shared with all that rewrites objects. `rate()` limits what judging
    reads: bytes per second, 0 for no limit.
    """

    def __init__(
        self,
        table: LogTable,
        manifest: Manifest,
        store: ObjectStore,
        plain_store: ObjectStore,
        keys: ObjectKeys,
        clock: Clock,
        claim: Claim,
        *,
        broker_epoch: int,
        locks: PartitionLocks,
        rate: Callable[[], float] = lambda: 0.0,
        poll_seconds: float = limits.PROPOSAL_POLL_SECONDS,
    ) -> None:
        self.metrics = InboxMetrics()
        self._table = table
        self._store = store
        self._plain_store = plain_store
        self._keys = keys
        self._clock = clock
        self._locks = locks
        self._poll_seconds = poll_seconds
        self._stop = threading.Event()
        self._pacer = Pacer(clock.monotonic, self._wait, rate)
        self._judge = ProposalJudge(
            manifest, store, keys, clock, broker_epoch=broker_epoch, rules_of=self._rules_of, acquire=self._acquire
        )
        self._lock = threading.Lock()
        self.holds = JobHolds(store, locks, clock.monotonic, lambda place: self._rules_of(*place) is not None)
        self._dead_jobs = DeadJobs(manifest, store, keys, clock, claim)
        self._thread: threading.Thread | None = None

    def _wait(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise InboxStopped

    def _acquire(self, count: int) -> None:
        if self._stop.is_set():
            raise InboxStopped
        self._pacer.acquire(count)

    def _rules_of(self, topic_id: bytes, partition: int) -> PlaceRules | None:
        topic_log = self._table.by_id.get(topic_id)
        if topic_log is None or not 0 <= partition < len(topic_log.partitions):
            return None
        hot = topic_log.partitions[partition]
        return PlaceRules(
            topic_log.name,
            topic_log.config.compacted,
            topic_log.config.file_delete_delay_ms,
            topic_log.config.delete_retention_ms,
            lambda: hot.leader_epoch < 0,
            hot.log.note_cleaned,
        )

    # -- one poll ----------------------------------------------------------------------------------------------

    def look(self) -> int:
        """One poll; returns how many proposals were answered. Raises StoreError, Fenced, Superseded, InboxStopped."""
        with self._lock:
            if self._stop.is_set():
                raise InboxStopped("the broker is stopping")
            found: dict[str, dict[str, ObjectMeta]] = {}
            prefix = self._keys.full(PROPOSALS_DIR) + "/"
            count = 0
            for meta in itertools.islice(self._store.list(prefix), limits.PROPOSAL_LISTED_MAX):
                parsed = parse_proposal_key(self._keys.relative(meta.key))
                if parsed is None:
                    continue  # no proposal: neither read nor deleted
                if count >= limits.PROPOSAL_KEYS_MAX and parsed[0] not in found:
                    break  # the rest at the next poll
                count += 1
                found.setdefault(parsed[0], {})[parsed[1]] = meta
            self.holds.release_others(found)
            answered = sum(self._try(proposal_id, metas) for proposal_id, metas in found.items())
            self.metrics.looks += 1
            self.metrics.jobs = self.holds.jobs
            return answered

    def _try(self, proposal_id: str, metas: dict[str, ObjectMeta]) -> bool:
        """A store error of one job must not block the others."""
        try:
            return self._look_at(proposal_id, metas)
        except StoreError as error:
            self.metrics.last_error = str(error)
            logger.warning("proposal %s has to wait: %s", proposal_id, error)
            return False

    def _look_at(self, proposal_id: str, metas: dict[str, ObjectMeta]) -> bool:
        now_ms = self._clock.now_ms()
        if RESULT in metas:
            self.holds.release(proposal_id)
            if metas[RESULT].modified_ms < now_ms - RESULT_KEPT_MS:
                self.metrics.orphans += self._dead_jobs.delete_proposal(proposal_id, metas)
            return False
        if PROPOSAL in metas:
            return self._answer(proposal_id, metas[PROPOSAL])
        if metas[JOB].modified_ms < now_ms - limits.SWEEP_AGE_MS:
            self.holds.release(proposal_id)
            self.metrics.orphans += self._dead_jobs.sweep(proposal_id, metas[JOB])
        else:
            self.holds.renew(proposal_id, metas[JOB])
        return False

    # -- proposals ---------------------------------------------------------------------------------------------

    def _answer(self, proposal_id: str, meta: ObjectMeta) -> bool:
        """Judges and answers; False when it has to wait for the next poll."""
        taken: set[Place] = set()
        try:
            try:
                proposal = self._read(proposal_id, meta)
            except CorruptionError as error:
                result = self._judge.refusal(proposal_id, str(error))
            else:
                if proposal is None or not self._take(proposal, taken):
                    return False
                result = self._judged(proposal)
            self._count(result, meta.key)
            key = self._keys.full(proposal_key(proposal_id, RESULT))
            retries = RetryPolicy(ANSWER_SECONDS, clock=self._clock, wait=self._stop.wait)
            create_once(self._plain_store, key, encode_result(result), retries, SMALL_BYTES_MAX)
            self.holds.release(proposal_id)
            return True
        finally:
            for place in taken:
                self._locks.release(place)

    def _judged(self, proposal: Proposal) -> Result:
        try:
            return self._judge.judge(proposal)
        except (CorruptionError, ValueError) as error:  # it makes no record
            return self._judge.refusal(proposal.id, str(error))

    def _read(self, proposal_id: str, meta: ObjectMeta) -> Proposal | None:
        if meta.size > limits.PROPOSAL_BYTES_MAX:
            raise CorruptionError(f"{meta.key}: {meta.size} bytes: at most {limits.PROPOSAL_BYTES_MAX} are read")
        data = read_back(self._store, meta.key, limits.PROPOSAL_BYTES_MAX)
        return None if data is None else decode_proposal(data, meta.key, proposal_id)

    def _take(self, proposal: Proposal, taken: set[Place]) -> bool:
        """Locks the partitions that no job holds; False while the broker itself rewrites one.

        A partition that another job holds is no obstacle: that job may be dead; if not, the first proposal wins.
        """
        held = self.holds.places
        for swap in proposal.swaps:
            place = (proposal.topic_id, swap.partition)
            if place in held:
                continue
            if not self._locks.acquire(place):
                return False
            taken.add(place)
        return True

    def _count(self, result: Result, key: str) -> None:
        statuses = [outcome.status for outcome in result.outcomes]
        self.metrics.swapped += statuses.count(SWAPPED)
        self.metrics.obsolete += statuses.count(OBSOLETE)
        self.metrics.refused += statuses.count(REFUSED) + (result.refused is not None)
        if result.refused is not None:
            logger.warning("refused the proposal %s: %s", key, result.refused)
        for outcome in result.outcomes:
            if outcome.status == REFUSED:
                logger.warning("refused partition %d of the proposal %s: %s", outcome.partition, key, outcome.reason)
        logger.info("judged the proposal %s: %d of %d partitions swapped", key, statuses.count(SWAPPED), len(statuses))

    # -- the thread --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread."""
        self._thread = threading.Thread(target=self._run, name="proposals", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; an interrupted judgement is repeated after the next start."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:  # a poll by the control command
            self.holds.clear()

    def _run(self) -> None:
        while not self._stop.wait(self._poll_seconds):
            try:
                with contextlib.suppress(InboxStopped):
                    self.look()
            except (Fenced, Superseded) as error:
                logger.error("proposals are not polled any more: %s", error)
                return
            except StoreError as error:
                self.metrics.last_error = str(error)
                logger.debug("polling for proposals failed, will try again: %s", error)
            except Exception as error:  # unexpected; without the thread no job would be answered
                self.metrics.last_error = repr(error)
                logger.exception("polling for proposals failed, will try again")
