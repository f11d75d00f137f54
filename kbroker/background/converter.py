"""The converter: one thread that merges images of packs and small objects into larger ones, and sweeps orphans.

It runs one job after another at a bounded rate, yields to flushes with a backlog for a limited time, and polls after a
pause.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kbroker import limits
from kbroker.background.merge_choice import MergeChoice
from kbroker.clock import Clock
from kbroker.errors import CorruptionError
from kbroker.log.log_table import LogTable
from kbroker.storage.flush.pacing import Pacer
from kbroker.storage.flush.upload import Claim
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.ledger.numbered_log import Fenced
from kbroker.storage.ledger.ownership import Superseded
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.rewrite.merge_image import Merge
from kbroker.storage.rewrite.merge_plan import MergeLimits
from kbroker.storage.rewrite.merger import MergeObsolete, Merger, MergeReport, MergerSettings, MergeTooLong
from kbroker.storage.rewrite.object_swap import PartitionLocks, Place
from kbroker.storage.rewrite.orphans import OrphanSweep
from kbroker.storage.stores.object_store import ObjectStore, StoreError

logger = logging.getLogger(__name__)

POLL_SECONDS = 5.0
RETRY_SECONDS = 60.0  # after a failure, for the partitions of the job
YIELD_SECONDS = 0.1  # between checks whether flushes still have a backlog
YIELD_SECONDS_MAX = 600.0  # per job: objects must not pile up while producers outrun the store


class MergeStopped(Exception):
    """The converter is stopping."""


@dataclass(frozen=True, slots=True)
class ConverterSettings:
    """How to convert; `enabled` and the rate may change while it runs."""

    enabled: bool = True
    io_bytes_per_second: float = limits.MERGE_IO_BYTES_PER_SECOND  # read, sent and copied together; 0: no limit
    bounds: MergeLimits = field(default_factory=MergeLimits)
    merger: MergerSettings = field(default_factory=MergerSettings)


@dataclass(slots=True)
class ConverterMetrics:
    """Counters since the start; read by the metrics endpoint without a lock. Orphans are those of the last sweep."""

    buffered_bytes: int = 0  # of the job that runs: its inputs and its outputs
    jobs: int = 0
    objects_replaced: int = 0
    objects_written: int = 0
    bytes_copied: int = 0
    bytes_sent: int = 0
    bytes_read: int = 0
    seconds: float = 0.0
    failures: int = 0
    uploads_dropped: int = 0
    orphans: int = 0
    orphan_bytes: int = 0
    last_error: str | None = None


class Converter:
    """Merges the objects of all topics (storage.rewrite.merge_plan says when), and sweeps orphans.

    `run_once` is one job, for the thread and for tests; one caller at a time. `locks` is shared with all that rewrites
    objects; `busy` returns whether flushes need the store and the cores now. `wait(seconds)` replaces waits within a
    job; it returns something true when the converter should stop.
    """

    def __init__(
        self,
        table: LogTable,
        manifest: Manifest,
        store: ObjectStore,
        keys: ObjectKeys,
        clock: Clock,
        claim: Claim,
        *,
        broker_epoch: int,
        settings: ConverterSettings | None = None,
        locks: PartitionLocks | None = None,
        busy: Callable[[], bool] = lambda: False,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self.settings = settings or ConverterSettings()
        self.metrics = ConverterMetrics()
        self.orphan_sweep = OrphanSweep(manifest, store, keys, clock, claim, broker_epoch=broker_epoch)
        self._clock = clock
        self._locks = locks or PartitionLocks()
        self._busy = busy
        self._stop = threading.Event()
        self._pause = wait or self._stop.wait
        self._pacer = Pacer(clock.monotonic, self._wait)
        self._pacer.set_rate(self.settings.io_bytes_per_second)
        self._choice = MergeChoice(table, manifest, clock, self.settings.bounds)
        self._merger = Merger(
            manifest, store, keys, clock, broker_epoch=broker_epoch, acquire=self.acquire,
            settings=self.settings.merger,
        )  # fmt: skip
        self._not_before: dict[Place, float] = {}
        self._yield_until = 0.0
        self._next_sweep = clock.monotonic() + limits.SWEEP_FIRST_SECONDS
        self._thread: threading.Thread | None = None

    def configure(self, settings: ConverterSettings) -> None:
        """Changes settings: the rate at once, `enabled` from the next job on, the rest not at all."""
        self.settings = dataclasses.replace(
            self.settings, enabled=settings.enabled, io_bytes_per_second=settings.io_bytes_per_second
        )
        self._pacer.set_rate(settings.io_bytes_per_second)

    def _wait(self, seconds: float) -> None:
        if self._pause(seconds):
            raise MergeStopped

    def _yield(self) -> None:
        while self._busy() and self._clock.monotonic() < self._yield_until:
            self._wait(YIELD_SECONDS)

    def acquire(self, count: int) -> None:
        """Waits until so many bytes may be read, sent or copied. Raises MergeStopped."""
        self._yield()
        if self._stop.is_set():
            raise MergeStopped
        self._pacer.acquire(count)

    # -- one job -----------------------------------------------------------------------------------------------

    def run_once(self) -> MergeReport | None:
        """One job; None when nothing is due or the job failed.

        Raises MergeStopped, Fenced, Superseded; other failures are logged, and the partitions are put off.
        """
        merges: list[Merge] = []
        try:
            if self.settings.enabled:
                self._yield_until = self._clock.monotonic() + YIELD_SECONDS_MAX
                self._yield()  # without any partition locked
                self._choose_job(merges)
            buffered = sum(merge.total_bytes for merge in merges)
            self.metrics.buffered_bytes = 2 * min(buffered, self.settings.merger.buffer_bytes)
            return self._run(merges) if merges else None
        finally:
            self.metrics.buffered_bytes = 0
            for place in {merge.place for merge in merges}:
                self._locks.release(place)

    def _choose_job(self, merges: list[Merge]) -> None:
        """Adds the first merge that is due, and later ones that fit into the buffer with it; locks their partitions."""
        taken: set[Place] = set()
        room = self.settings.merger.buffer_bytes
        for merge in self._choice.due():
            if self._not_before.get(merge.place, 0.0) > self._clock.monotonic():
                continue
            large = merge.total_bytes > self.settings.merger.buffer_bytes
            if merges and large:
                continue  # it needs its own job
            if merges and (merge.total_bytes > room or len(taken) >= limits.MERGE_JOB_PARTITIONS_MAX):
                break
            if merge.place not in taken:
                if not self._locks.acquire(merge.place):
                    continue
                taken.add(merge.place)
            merges.append(merge)
            room -= merge.total_bytes
            if large:
                break

    def _run(self, merges: Sequence[Merge]) -> MergeReport | None:
        started = self._clock.monotonic()
        try:
            report = self._merger.run(merges)
        except CorruptionError as error:
            if len(merges) == 1:
                self._leave_alone(merges[0], error)
                return None
            done = [self._run([merge]) for merge in merges]  # find the damaged one; the others can be merged
            return next((report for report in done if report is not None), None)
        except MergeTooLong as error:
            self._choice.leave_alone(merges[0].place, merges[0].inputs[0].base_offset)
            logger.debug("%s", error)
            return None
        except (StoreError, MergeObsolete) as error:
            self._put_off(merges, error)
            return None
        except (MergeStopped, Fenced, Superseded):
            raise
        except Exception as error:
            self._put_off(merges, error)  # other partitions get their turn
            raise
        self._count(report, self._clock.monotonic() - started)
        return report

    def _count(self, report: MergeReport, seconds: float) -> None:
        metrics = self.metrics
        metrics.jobs += 1
        metrics.objects_replaced += report.objects_replaced
        metrics.objects_written += report.objects_written
        metrics.bytes_copied += report.bytes_copied
        metrics.bytes_sent += report.bytes_sent
        metrics.bytes_read += report.bytes_read
        metrics.seconds += seconds
        logger.debug("merged: %s", report)

    def _put_off(self, merges: Sequence[Merge], error: Exception) -> None:
        not_before = self._clock.monotonic() + RETRY_SECONDS
        self._not_before = {place: when for place, when in self._not_before.items() if when > self._clock.monotonic()}
        for merge in merges:
            self._not_before[merge.place] = not_before
        if isinstance(error, MergeObsolete):
            logger.info("%s", error)
            return
        self.metrics.failures += 1
        self.metrics.last_error = str(error)
        logger.warning("merging objects of %s and others failed, will try again: %s", merges[0].topic, error)

    def _leave_alone(self, merge: Merge, error: CorruptionError) -> None:
        self.metrics.failures += 1
        self.metrics.last_error = str(error)
        for ref in merge.inputs:
            self._choice.leave_alone(merge.place, ref.base_offset)
        logger.error(
            "%s-%d: offsets %d to %d stay in the objects where they are, until the next start: %s", merge.topic,
            merge.place[1], merge.inputs[0].base_offset, merge.inputs[-1].end_offset, error,
        )  # fmt: skip

    # -- sweeps ------------------------------------------------------------------------------------------------

    def sweep_once(self) -> None:
        """Aborts unfinished uploads, rebuilds lost indexes, finds orphans.

        Raises Superseded, Fenced; store errors are logged.
        """
        for sweep in (self._sweep_uploads, self._sweep_indexes, self._sweep_orphans):
            try:
                sweep()
            except (StoreError, CorruptionError) as error:
                self.metrics.last_error = str(error)
                logger.warning("no sweep for orphans in the bucket: %s", error)

    def _sweep_uploads(self) -> None:
        self.metrics.uploads_dropped += self.orphan_sweep.sweep_uploads()

    def _sweep_indexes(self) -> None:
        self.orphan_sweep.sweep_indexes()

    def _sweep_orphans(self) -> None:
        found = self.orphan_sweep.sweep_orphans()
        self.metrics.orphans, self.metrics.orphan_bytes = len(found.found), found.bytes

    def repair_indexes(self) -> None:
        """Rebuilds lost indexes of KafScale segments: a crash may have occurred between a segment and its index.

        At the start, before other work: readers of that format need the pair. Raises Superseded, Fenced.
        """
        try:
            self._sweep_indexes()
        except (StoreError, CorruptionError) as error:
            self.metrics.last_error = str(error)
            logger.warning("indexes of segments are not checked before the next sweep: %s", error)

    def _maybe_sweep(self) -> None:
        if self._clock.monotonic() >= self._next_sweep:
            self._next_sweep = self._clock.monotonic() + limits.SWEEP_INTERVAL_SECONDS
            self.sweep_once()

    # -- the thread --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread."""
        self._thread = threading.Thread(target=self._loop, name="converter", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; a running job is aborted and cleaned up."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _loop(self) -> None:
        started = False
        while not self._stop.is_set():
            try:
                if not started:
                    started = True
                    self.repair_indexes()
                self._maybe_sweep()
                if self.run_once() is not None:
                    continue
            except MergeStopped:
                return
            except (Fenced, Superseded) as error:
                logger.error("merging of objects has stopped: %s", error)
                return
            except Exception as error:  # unexpected; without the thread packs would only pile up
                self.metrics.failures += 1
                self.metrics.last_error = repr(error)
                logger.exception("merging of objects failed, will try again")
            self._stop.wait(POLL_SECONDS)
