"""The flusher: writes the WAL's content to objects, commits them to the manifest, and only then trims the WAL.

One flush: take a prefix of the WAL; plan the objects (plan.py); build each by checking its batches (body.py); store it
(upload.py); when all are stored, commit one manifest record with the objects, the window's effect on offsets, epochs,
transactions and producers, and the WAL position; then trim. A failure before the record leaves orphans; a failure after
it leaves WAL that recovery skips. Nothing in between exists.

While acknowledgements wait for flushes (`kbroker.durability=object`) several windows are in progress: one thread begins
them, another commits their records, in order. If one fails, later ones are abandoned and begun again.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

from kbroker.clock import Clock
from kbroker.errors import CorruptionError, ErrorCode
from kbroker.storage.flush.admission import WINDOWS_HELD, Admission, AdmissionWal
from kbroker.storage.flush.body import WalReader
from kbroker.storage.flush.pacing import Pacer
from kbroker.storage.flush.plan import PlanLimits, plan_flush
from kbroker.storage.flush.schedule import (
    OBJECTS_AWAITED,
    FlushSchedule,
    FlushSettings,
    FlushSource,
    ObjectCommits,
)
from kbroker.storage.flush.upload import Claim, ClaimLost, FlushStopped, StoredFile, StoreGuard, Uploader
from kbroker.storage.flush.window import FlushWindow, note_flushed
from kbroker.storage.flush.windows import FlushWindows
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.ledger.numbered_log import Fenced
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.stores.hedged_put import HedgedStore
from kbroker.storage.stores.object_store import ChecksumMismatch, ObjectStore

__all__ = ["FlushMetrics", "FlushSettings", "Flusher"]

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.25
SYNC_SECONDS = 10.0
PLAN_SECONDS = 5.0  # more than a plan takes
EMPTY_SECONDS = 0.05  # after an empty plan, if the WAL syncs no more
RETRY_SECONDS = 5.0  # after an unexpected failure


class FlushWal(WalReader, AdmissionWal, Protocol):
    """What the flusher uses of kbroker._fast.wal.wal.Wal."""

    @property
    def durable_lsn(self) -> int: ...

    @property
    def wants_flush(self) -> bool: ...

    @property
    def object_commits(self) -> ObjectCommits: ...

    def sync(self, timeout: float = ...) -> bool: ...

    def trim(self, lsn: int) -> object: ...

    def fail_objects(self, error: int) -> object: ...


@dataclass(slots=True)
class FlushMetrics:
    """Counters since the start; read by the metrics endpoint without a lock."""

    flushes: int = 0
    awaited_flushes: int = 0  # that acknowledgements waited for
    objects: int = 0
    packs: int = 0
    bytes: int = 0
    seconds: float = 0.0
    failures: int = 0
    windows_most: int = 0  # in progress at a time
    last_error: str | None = None


class Flusher:
    """One thread that begins windows, one that commits them, and a few that upload.

    `on_stopped` is called once, on the flusher's thread (so it must not call `stop`), when it ends for a reason
    that the broker must act on: ClaimLost or Fenced (another broker has taken over: stop, keep the WAL) or
    CorruptionError (the WAL holds damaged bytes: neither they nor anything after them is uploaded). Requests that wait
    for objects then fail with NOT_LEADER_OR_FOLLOWER or KAFKA_STORAGE_ERROR.
    Lock: `_condition` protects requests, states and the windows in progress, and is never held during work. `run_once`
    is one flush, for tests; only while the threads do not run.
    """

    def __init__(
        self,
        wal: FlushWal,
        source: FlushSource,
        manifest: Manifest,
        store: ObjectStore,
        keys: ObjectKeys,
        claim: Claim,
        clock: Clock,
        *,
        broker_epoch: int,
        data_dir_id: str,
        flushed_lsn: int = 0,
        settings: FlushSettings | None = None,
        on_stopped: Callable[[Exception], None] | None = None,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self.settings = settings or FlushSettings()
        self.metrics = FlushMetrics()
        self.flushed_lsn = max(flushed_lsn, manifest.image.wal_flushed_lsn(data_dir_id) or 0)
        self.failed: Exception | None = None
        self._wal = wal
        self._source = source
        self._manifest = manifest
        self._clock = clock
        self._data_dir_id = data_dir_id
        self._on_stopped = on_stopped
        self._condition = threading.Condition()
        self._stop = threading.Event()
        self._paused = False
        self._busy = False
        self._requested_lsn = -1
        self._urgent = False
        self._windows = FlushWindows(self._condition)
        self._wake_fd = -1
        self._threads: list[threading.Thread] = []
        self._schedule = FlushSchedule(self.settings, wal, source, clock)
        self._admission = Admission(
            wal,
            clock.monotonic,
            self.settings.wal_bytes,
            self.settings.plan.window_bytes_max,
            self.settings.memory_bytes,
        )
        self.pacer = Pacer(clock.monotonic, self._stop.wait, self._pace, self._admission.sent)
        self._reading = Pacer(clock.monotonic, self._stop.wait, self._pace)
        self.guard = StoreGuard(claim, wait or self._stop.wait, self._stop.is_set, self._admission.open)
        self.guard.batches_are_trusted = self.settings.store_checks_crc
        self._segments: frozenset[str] | None = frozenset()  # topics whose segments are being built; None: planning
        # A hedge takes a second thread for a PUT, and the slower request may run on for a while.
        self.hedged = HedgedStore(store, clock, 3 * self.settings.windows)
        self._uploader = Uploader(
            store, keys, self.guard, self.pacer, broker_epoch, manifest.image.is_known, self.hedged
        )
        threads = max(self.settings.upload_threads, self.settings.windows)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="upload")

    # -- when --------------------------------------------------------------------------------------------------

    @property
    def unflushed_bytes(self) -> int:
        """WAL bytes that are in no committed object yet."""
        return max(0, self._wal.durable_lsn - self.flushed_lsn)

    @property
    def pressure(self) -> bool:
        """True when the WAL fills faster than it is flushed, or would if producers were not held, or has no room."""
        held = self._admission.held and self.unflushed_bytes > 0
        return held or self._wal.wants_flush or self._schedule.pressure(self.flushed_lsn)

    @property
    def windows_in_progress(self) -> int:
        """Windows that were begun and are not committed yet."""
        return len(self._windows)

    @property
    def _cut_lsn(self) -> int:
        """Where the next window begins."""
        windows = self._windows.in_order()
        return windows[-1].end_lsn if windows else self.flushed_lsn

    def due(self) -> str | None:
        """Why a window should begin now, or None."""
        with self._condition:
            in_progress, cut_lsn = len(self._windows), self._cut_lsn
        if in_progress < self.settings.windows and self._schedule.objects_due(cut_lsn):
            return OBJECTS_AWAITED
        if self._admission.held and in_progress < WINDOWS_HELD:
            reason = self._schedule.due_while_held(cut_lsn, self._admission.window_bytes // (1 if in_progress else 2))
            if reason is not None:
                return reason
        if in_progress:
            return None
        return self._schedule.due(self.flushed_lsn, self._requested_lsn)

    def _pace(self) -> float:
        urgent = self._urgent or self._admission.held or self._stop.is_set()
        return self._schedule.pace(self.flushed_lsn, urgent)

    # -- one flush ---------------------------------------------------------------------------------------------

    def run_once(self) -> bool:
        """Flushes what is durable now, or as much of it as one flush takes; False when there was nothing.

        Raises FlushStopped, ClaimLost, Fenced, CorruptionError; retries store errors.
        """
        self._windows.raise_failure()
        self._settle()
        window = self._begin()
        if window is None:
            return False
        try:
            self._finish(window)
        finally:
            self._windows.remove_first()
        return True

    def _begin(self, objects_awaited: bool = False) -> FlushWindow | None:
        """Plans a window and starts its uploads; None when there is nothing to flush."""
        if objects_awaited:
            self._wal.sync(SYNC_SECONDS)  # the WAL thread may still have what is waited for
        with self._condition:
            earlier = self._windows.in_order()
            cut_lsn = self._cut_lsn
        durable_lsn = self._wal.durable_lsn
        if durable_lsn <= cut_lsn:
            return None
        started = self._clock.monotonic()
        self._note_segments(None)
        planned: frozenset[str] = frozenset()
        try:
            plan = plan_flush(
                list(self._source.all_partitions()),
                self._manifest.image,
                cut_lsn,
                durable_lsn,
                self._plan_limits(),
                self._source.kfs_topics(),
            )
            window = FlushWindow(plan, self._manifest.image, earlier, started=started, objects_awaited=objects_awaited)
            planned = window.segment_topics
        finally:
            self._note_segments(planned)
        if window.end_lsn <= cut_lsn:
            return None
        self._schedule.window_begins(started, objects_awaited)
        self._admission.window_begins(window.start_lsn, window.end_lsn, window.total_bytes)
        store = self._uploader.store_awaited if objects_awaited else self._uploader.store
        try:
            now_ms = self._clock.now_ms()
            at_once, trusted = self._uploads_at_once(), self.guard.batches_are_trusted
            window.start(self._wal, self._reading, now_ms, self._pool, store, at_once, trusted)
        except BaseException:
            self._note_segments(frozenset())
            raise
        self._add(window)
        return window

    def _uploads_at_once(self) -> int:
        """Half of them unless producers are held, so that other work waits less."""
        threads = self.settings.upload_threads
        return threads if self._admission.held else (threads + 1) // 2

    def _plan_limits(self) -> PlanLimits:
        plan = self.settings.plan
        if not self._admission.held:
            return plan
        window_bytes = self._admission.window_bytes
        share = max(window_bytes // self.settings.upload_threads, plan.pack_below_bytes)  # work for all upload threads
        return replace(
            plan,
            window_bytes_max=window_bytes,
            object_bytes_max=min(plan.object_bytes_max, share),
            pack_bytes_max=min(plan.pack_bytes_max, share),
        )

    def _add(self, window: FlushWindow) -> None:
        with self._condition:
            self._segments = frozenset()
            added = self._windows.add(window)
            self.metrics.windows_most = max(self.metrics.windows_most, len(self._windows))
            self._condition.notify_all()
        if not added:
            window.abandon()  # the thread gets the failure next

    def _finish(self, window: FlushWindow) -> None:
        """Waits for the window's objects and commits them. The window stays in `_windows`."""
        files = window.results()
        self._commit(window, files)
        self.metrics.flushes += 1
        self.metrics.awaited_flushes += window.objects_awaited
        self.metrics.seconds += self._clock.monotonic() - window.started
        window.note_flushed()
        self._advance(window.end_lsn)

    def _note_segments(self, topics: frozenset[str] | None) -> None:
        """Sets the topics of the window that is being planned (None) or built; `_windows` has those of later stages."""
        with self._condition:
            self._segments = topics
            self._condition.notify_all()

    def writes_segments(self, topic: str) -> bool:
        """True while a flush may be storing segments of a topic of this name, even of a deleted one."""
        with self._condition:
            self._condition.wait_for(lambda: self._segments is not None, PLAN_SECONDS)
            return (
                self._segments is None
                or topic in self._segments
                or any(topic in window.segment_topics for window in self._windows.in_order())
            )

    def _commit(self, window: FlushWindow, files: list[StoredFile]) -> None:
        # Once handed to the log, a record is never built a second time: after a failure it is in doubt, and settled.
        given = False

        def change(image: ManifestImage) -> dict[str, Any]:
            nonlocal given
            record = window.record(files, self._data_dir_id, self._clock.now_ms(), self.settings.delete_grace_ms)
            given = True
            return record

        def attempt() -> None:
            if given:
                self._manifest.settle()
            else:
                self._manifest.commit(change)

        self.guard.run("storing a manifest record", attempt)
        self.metrics.objects += len(files)
        self.metrics.packs += sum(file.key.endswith(".pack") for file in files)
        self.metrics.bytes += sum(file.size for file in files)

    def _settle(self) -> None:
        """Settles an earlier record in doubt; if it is committed, its window is flushed."""
        self.guard.run("settling a manifest record", self._manifest.settle)
        image = self._manifest.image
        flushed_lsn = image.wal_flushed_lsn(self._data_dir_id) or 0
        if flushed_lsn > self.flushed_lsn:
            for partition in self._source.all_partitions():
                note_flushed(partition, image, partition.topic_id, partition.index)
            self._advance(flushed_lsn)

    def _advance(self, lsn: int) -> None:
        self._wal.trim(lsn)
        self._admission.flushed(lsn)
        with self._condition:
            self.flushed_lsn = lsn
            self._condition.notify_all()

    # -- the threads -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the threads."""
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._threads = [
            threading.Thread(target=self._run, name="flusher", daemon=True),
            threading.Thread(target=self._windows.run, args=(self._finish, self._wake), name="flush-commit",
            daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def flush(self, wait: bool = True, timeout: float | None = None) -> bool:
        """Requests a flush of everything durable now, without a rate limit.

        With `wait`: of everything appended before the call; returns True when it is in objects.
        """
        if wait:
            self._wal.sync(SYNC_SECONDS)  # else a stop would miss what the WAL thread is writing
        with self._condition:
            target = self._wal.durable_lsn
            self._requested_lsn = max(self._requested_lsn, target)
            self._urgent = True
            self._condition.notify_all()
            self._wake_locked()
            if not wait:
                return self.flushed_lsn >= target
            self._condition.wait_for(
                lambda: self.flushed_lsn >= target or self.failed is not None or self._stop.is_set(), timeout
            )
            return self.flushed_lsn >= target

    def pause(self) -> None:
        """Starts no flush until `resume`; returns when none is in progress."""
        with self._condition:
            self._paused = True
            self._condition.wait_for(lambda: not self._busy and not self._windows)

    def resume(self) -> None:
        """Ends a pause."""
        with self._condition:
            self._paused = False
            self._wake_locked()

    def stop(self, flush: bool = True, timeout: float | None = None) -> bool:
        """Ends the flusher, after a last flush if requested; True when nothing is left unflushed."""
        flushed = True
        if flush and self._threads:
            flushed = self.flush(wait=True, timeout=timeout)
        self._stop.set()
        self._wake()
        for thread in self._threads:
            thread.join()
        self._pool.shutdown(wait=True)
        self.hedged.close()
        with self._condition:
            self._wal.object_commits.disarm()
            if self._wake_fd >= 0:
                os.close(self._wake_fd)
                self._wake_fd = -1
        return flushed and self.unflushed_bytes == 0

    def _wake(self) -> None:
        with self._condition:
            self._wake_locked()

    def _wake_locked(self) -> None:
        self._condition.notify_all()
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    def _wait(self) -> None:
        """Waits until something may be due: a wake-up, the end of an interval, the next check of sizes and ages."""
        with self._condition:
            in_progress, cut_lsn = len(self._windows), self._cut_lsn
        seconds = min(POLL_SECONDS, max(self.settings.flush_seconds / 4, 0.01))
        if in_progress < self.settings.windows and not self._paused:
            self._wal.object_commits.arm(self._wake_fd)  # before the check: a later push wakes this thread
            again = self._schedule.objects_look_again(cut_lsn)
            seconds = seconds if again is None else min(seconds, again)
        waiting = select.poll()
        waiting.register(self._wake_fd, select.POLLIN)
        if waiting.poll(seconds * 1000):
            os.eventfd_read(self._wake_fd)

    def _next(self) -> str | None:
        """Why to begin a window now, or None. Marks the thread busy if there is a reason."""
        self._windows.raise_failure()
        with self._condition:
            reason = None if self._paused else self.due()
            if reason is None and not self._windows:
                self._urgent = False
            self._busy = reason is not None
            return reason

    def _turn(self) -> None:
        """Begins one window, or waits."""
        reason = self._next()
        if reason is None:
            self._wait()
            return
        if not self._windows:
            self._settle()
        try:
            if self._begin(reason == OBJECTS_AWAITED) is None:
                self._stop.wait(EMPTY_SECONDS)
        except BaseException:
            self._windows.wait_until_empty()  # earlier windows are not affected
            raise

    def _run(self) -> None:
        while not self._stop.is_set() and self.failed is None:
            try:
                self._turn()
            except FlushStopped:
                break
            except (ClaimLost, Fenced, CorruptionError) as error:
                self._fail(error)
            except Exception as error:
                # Nothing is lost (see the module): log the unexpected failure and retry.
                if isinstance(error, ChecksumMismatch):
                    self.guard.batches_are_trusted = False  # the next try reads the batches and finds a damaged one
                self.metrics.failures += 1
                self.metrics.last_error = repr(error)
                logger.exception("flush failed; trying again in %s s", RETRY_SECONDS)
                self._stop.wait(RETRY_SECONDS)
            finally:
                with self._condition:
                    self._busy = False
                    self._condition.notify_all()
        self._windows.end()

    def _fail(self, error: Exception) -> None:
        logger.critical("flushing has stopped: %s; the WAL keeps what is not in objects", error)
        self.metrics.failures += 1
        self.metrics.last_error = str(error)
        corrupt = isinstance(error, CorruptionError)
        self._wal.fail_objects(ErrorCode.KAFKA_STORAGE_ERROR if corrupt else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        try:
            if self._on_stopped is not None:
                self._on_stopped(error)
        finally:
            with self._condition:
                self.failed = error
                self._condition.notify_all()
