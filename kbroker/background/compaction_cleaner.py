"""The log cleaner: threads that compact the dirtiest partition first, at a bounded rate."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kbroker.background.compaction import Cleanable, cleanable, compacted_partitions
from kbroker.background.compaction_deadlines import CompactionDeadlines, DeadlineFlusher
from kbroker.background.compaction_round import (
    CleanerSettings,
    CompactionRound,
    RoundObsolete,
    RoundReport,
    RoundStopped,
    RoundTools,
)
from kbroker.clock import Clock
from kbroker.errors import CorruptionError
from kbroker.log.log_table import LogTable
from kbroker.storage.flush.pacing import Pacer
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.ledger.numbered_log import Fenced
from kbroker.storage.ledger.ownership import Superseded
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.rewrite.object_swap import PartitionLocks, Place
from kbroker.storage.stores.object_store import ObjectStore, StoreError

logger = logging.getLogger(__name__)

RETRY_SECONDS = 60.0  # after a failure, for that partition
FLUSH_LOOK_SECONDS = 0.2  # between checks of a requested flush


@dataclass(slots=True)
class CleanerMetrics:
    """Counters since the start, and what the last search for work found. Read by any thread without a lock."""

    due_partitions: int = 0
    dirty_bytes: int = 0  # of all compacted partitions
    running: int = 0  # rounds
    rounds: int = 0
    records_read: int = 0
    records_kept: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    failures: int = 0
    uncleanable_partitions: int = 0
    last_error: str | None = None


class Cleaner:
    """Compacts every topic whose cleanup.policy contains compact.

    `run_once` is one round, for the threads and for tests. Lock: `_lock` protects which partitions are put off; it is
    never held during work. `locks` is shared with all that rewrites objects. A partition with an unreadable batch is
    skipped until the next start; its data stays unchanged.
    """

    def __init__(
        self,
        table: LogTable,
        manifest: Manifest,
        store: ObjectStore,
        keys: ObjectKeys,
        clock: Clock,
        *,
        settings: CleanerSettings | None = None,
        threads: int = 1,
        locks: PartitionLocks | None = None,
        flusher: DeadlineFlusher | None = None,
    ) -> None:
        self.metrics = CleanerMetrics()
        self._table = table
        self._manifest = manifest
        self._store = store
        self._keys = keys
        self._clock = clock
        self._stop = threading.Event()
        self.pacer = Pacer(clock.monotonic, self._wait)
        self._thread_count = threads
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._locks = locks or PartitionLocks()
        self._not_before: dict[Place, float] = {}
        self._uncleanable: set[Place] = set()
        self.next_horizon_ms: int | None = None  # when the next tombstones may be removed
        self.deadlines = (
            CompactionDeadlines(table, manifest, clock, flusher, self._is_put_off) if flusher is not None else None
        )
        self.configure(settings or CleanerSettings())

    def configure(self, settings: CleanerSettings) -> None:
        """Changes the settings: the rate at once, the rest from the next round on."""
        self.settings = settings
        self.pacer.set_rate(settings.io_bytes_per_second)

    def _wait(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise RoundStopped

    # -- choosing ----------------------------------------------------------------------------------------------

    def _candidates(self) -> Iterator[tuple[Cleanable, Any, Any]]:
        """(cleanable part, partition, config) of the partitions that are due."""
        image, now_ms = self._manifest.image, self._clock.now_ms()
        self.next_horizon_ms = None
        dirty_bytes = 0
        for partition, config in compacted_partitions(self._table):
            place = (partition.topic_id, partition.index)
            with image.lock:
                state = image.partition(*place)
                if state is None:
                    continue
                found = cleanable(state, config, now_ms, lambda file: image.files[file].created_ms)
            dirty_bytes += found.dirty_bytes
            if self.deadlines is not None:
                found = self.deadlines.aged(place, found)
            if found.due(config, now_ms):
                yield found, partition, config
            elif found.horizon_ms >= 0:
                self.next_horizon_ms = min(self.next_horizon_ms or found.horizon_ms, found.horizon_ms)
        self.metrics.dirty_bytes = dirty_bytes

    def _choose(self) -> tuple[Any, Any] | None:
        """Locks and returns the dirtiest partition that is due; overdue ones first."""
        now_ms = self._clock.now_ms()
        due = sorted(
            self._candidates(), key=lambda item: (item[0].overdue(item[2], now_ms), item[0].ratio), reverse=True
        )
        self.metrics.due_partitions = len(due)
        for _, partition, config in due:
            place = (partition.topic_id, partition.index)
            if not self._is_put_off(place) and self._locks.acquire(place):
                return partition, config
        return None

    def _is_put_off(self, place: Place) -> bool:
        """True when the partition cannot be compacted now, because an earlier round failed."""
        with self._lock:
            return place in self._uncleanable or self._not_before.get(place, 0.0) > self._clock.monotonic()

    # -- one round ---------------------------------------------------------------------------------------------

    def run_once(self) -> RoundReport | None:
        """One round over the dirtiest partition; None when nothing is due or the round failed.

        Requests a flush first if a record may not stay in the WAL any longer.
        Raises RoundStopped, Fenced, Superseded; other failures are logged, and the partition is put off.
        """
        if not self.settings.enabled:
            return None
        if self.deadlines is not None:
            self.deadlines.look(self.settings.backoff_ms)
        chosen = self._choose()
        if chosen is None:
            return None
        partition, config = chosen
        place = (partition.topic_id, partition.index)
        self._note_running(1)
        try:
            report = self._compact(partition, config)
            self._put_off(place, 0.0 if report is not None else RETRY_SECONDS)
            return report
        except (StoreError, RoundObsolete, CorruptionError) as error:
            self._note_failure(place, f"{partition.topic}-{partition.index}", error)
            return None
        except Exception as error:
            if not isinstance(error, (RoundStopped, Fenced, Superseded)):
                self._put_off(place, RETRY_SECONDS)  # other partitions get their turn
            raise
        finally:
            self._note_running(-1)
            self._locks.release(place)

    def _note_running(self, change: int) -> None:
        with self._lock:
            self.metrics.running += change

    def _compact(self, partition: Any, config: Any) -> RoundReport | None:
        started = self._clock.monotonic()
        tools = RoundTools(
            self._manifest, self._store, self._keys, self._clock, self.settings, self.pacer.acquire,
            self._stop.is_set,
        )  # fmt: skip
        report = CompactionRound(tools, partition, config).run()
        if report is not None:
            metrics = self.metrics
            metrics.rounds += 1
            metrics.records_read += report.records_read
            metrics.records_kept += report.records_kept
            metrics.bytes_read += report.bytes_read
            metrics.bytes_written += report.bytes_written
            metrics.seconds += self._clock.monotonic() - started
            logger.debug("compacted %s-%d: %s", partition.topic, partition.index, report)
        return report

    def _put_off(self, place: Place, seconds: float) -> None:
        with self._lock:
            if seconds:
                self._not_before[place] = self._clock.monotonic() + seconds
            else:
                self._not_before.pop(place, None)

    def _note_failure(self, place: Place, name: str, error: Exception) -> None:
        self.metrics.failures += 1
        self.metrics.last_error = str(error)
        self._put_off(place, RETRY_SECONDS)
        if isinstance(error, CorruptionError):
            with self._lock:
                self._uncleanable.add(place)
                self.metrics.uncleanable_partitions = len(self._uncleanable)
            logger.error("%s will not be compacted until the next start: %s", name, error)
        elif isinstance(error, StoreError):
            logger.warning("compaction of %s could not finish, will try again: %s", name, error)
        else:
            logger.info("%s", error)

    # -- the threads -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the threads."""
        for number in range(self._thread_count):
            thread = threading.Thread(target=self._run, name=f"cleaner-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Ends the threads; a running round is aborted and cleaned up."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if self.run_once() is not None:
                    continue
            except RoundStopped:
                return
            except (Fenced, Superseded) as error:
                logger.error("compaction has stopped: %s", error)
                return
            except Exception as error:  # unexpected; without the thread the logs would only grow
                self.metrics.failures += 1
                self.metrics.last_error = repr(error)
                logger.exception("compaction failed, will try again")
            self._rest(min(self.settings.backoff_ms / 1000, threading.TIMEOUT_MAX))

    def _rest(self, seconds: float) -> None:
        """Seconds until the next check: at most to the next deadline or the end of a requested flush."""
        deadlines = self.deadlines
        horizon_ms = self.next_horizon_ms  # another cleaner thread may change it
        if horizon_ms is not None:
            seconds = min(seconds, max(horizon_ms - self._clock.now_ms(), 0) / 1000)
        while deadlines is not None and deadlines.awaits_flush and seconds > 0:
            self._stop.wait(FLUSH_LOOK_SECONDS)
            seconds -= FLUSH_LOOK_SECONDS
            if self._stop.is_set() or not deadlines.awaits_flush:
                return
        self._stop.wait(seconds if deadlines is None else min(seconds, deadlines.seconds_to_next))
