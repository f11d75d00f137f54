"""The flusher: the threads that write the WAL's content to objects, when it is due or requested.

While acknowledgements wait for flushes (`kbroker.durability=object`) several windows are in progress: one thread begins
them, another commits their records, in order. If one fails, later ones are abandoned and begun again.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable

from kbroker.clock import Clock
from kbroker.errors import CorruptionError, ErrorCode
from kbroker.storage.flush.admission import WINDOWS_HELD
from kbroker.storage.flush.schedule import OBJECTS_AWAITED, FlushSchedule, FlushSettings, FlushSource
from kbroker.storage.flush.steps import SYNC_SECONDS, FlushSteps, FlushWal
from kbroker.storage.flush.upload import Claim, ClaimLost, FlushStopped
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.ledger.numbered_log import Fenced
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.stores.hedged_put import HedgedStore
from kbroker.storage.stores.object_store import ChecksumMismatch, ObjectStore

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.25
EMPTY_SECONDS = 0.05  # after an empty plan, if the WAL syncs no more
RETRY_SECONDS = 5.0  # after an unexpected failure


class Flusher:
    """One thread that begins windows, one that commits them, and a few that upload.

    `on_stopped` is called once, on the flusher's thread (so it must not call `stop`), when it ends for a reason
    that the broker must act on: ClaimLost or Fenced (another broker has taken over: stop, keep the WAL) or
    CorruptionError (the WAL holds damaged bytes: neither they nor anything after them is uploaded). Requests that wait
    for objects then fail with NOT_LEADER_OR_FOLLOWER or KAFKA_STORAGE_ERROR.
    `run_once` is one flush, for tests; only while the threads do not run. `wait(seconds)` replaces waits for retries
    and for the rate of uploads; it returns True when the flusher should stop.
    Lock: `_condition`, shared with `steps`, protects requests, `failed`, the flushed position and the windows in
    progress; never held during work.
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
        settings: FlushSettings | None = None,
        on_stopped: Callable[[Exception], None] | None = None,
        wait: Callable[[float], bool] | None = None,
        hedged: HedgedStore | None = None,
    ) -> None:
        self.settings = settings or FlushSettings()
        self.failed: Exception | None = None
        self._wal = wal
        self._on_stopped = on_stopped
        self._condition = threading.Condition()
        self._stop = threading.Event()
        self._requested_lsn = -1
        self._wake_fd = -1
        self._threads: list[threading.Thread] = []
        self._schedule = FlushSchedule(self.settings, wal, source, clock)
        self.steps = FlushSteps(
            wal,
            source,
            manifest,
            store,
            keys,
            claim,
            clock,
            broker_epoch=broker_epoch,
            data_dir_id=data_dir_id,
            settings=self.settings,
            schedule=self._schedule,
            condition=self._condition,
            stop=self._stop,
            wait=wait or self._stop.wait,
            hedged=hedged,
        )
        self.metrics = self.steps.metrics
        self.windows = self.steps.windows

    # -- when --------------------------------------------------------------------------------------------------

    @property
    def flushed_lsn(self) -> int:
        """WAL position below which everything is in committed objects."""
        return self.steps.flushed_lsn

    @property
    def unflushed_bytes(self) -> int:
        """WAL bytes that are in no committed object yet."""
        return max(0, self._wal.bytes_between(self.flushed_lsn, self._wal.durable_lsn))

    @property
    def pressure(self) -> bool:
        """True when the WAL fills faster than it is flushed, or would if producers were not held, or has no room."""
        held = self.steps.admission.held and self.unflushed_bytes > 0
        return held or self._wal.wants_flush or self._schedule.pressure(self.flushed_lsn)

    def due(self) -> str | None:
        """Why a window should begin now, or None."""
        admission = self.steps.admission
        with self._condition:
            in_progress, cut_lsn = len(self.windows), self.steps.cut_lsn
        if in_progress < self.settings.windows and self._schedule.objects_due(cut_lsn):
            return OBJECTS_AWAITED
        if admission.held and in_progress < WINDOWS_HELD:
            reason = self._schedule.due_while_held(cut_lsn, admission.window_bytes // (1 if in_progress else 2))
            if reason is not None:
                return reason
        if in_progress:
            return None
        return self._schedule.due(self.flushed_lsn, self._requested_lsn)

    def run_once(self) -> bool:
        """Flushes what is durable now, or as much of it as one flush takes; False when there was nothing.

        Raises FlushStopped, ClaimLost, Fenced, CorruptionError; retries store errors.
        """
        self.windows.raise_failure()
        self.steps.settle()
        window = self.steps.begin()
        if window is None:
            return False
        try:
            self.steps.finish(window)
        finally:
            self.windows.remove_first()
        return True

    # -- the threads -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the threads."""
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        commits = (self.steps.finish, self._wake)
        self._threads = [
            threading.Thread(target=self._run, name="flusher", daemon=True),
            threading.Thread(target=self.windows.run, args=commits, name="flush-commit", daemon=True),
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
            self.steps.urgent = True
            self._wake_locked()
            if not wait:
                return self.flushed_lsn >= target
            self._condition.wait_for(
                lambda: self.flushed_lsn >= target or self.failed is not None or self._stop.is_set(), timeout
            )
            return self.flushed_lsn >= target

    def stop(self, flush: bool = True, timeout: float | None = None) -> bool:
        """Ends the flusher, after a last flush if requested; True when nothing is left unflushed."""
        flushed = True
        if flush and self._threads:
            flushed = self.flush(wait=True, timeout=timeout)
        self._stop.set()
        self._wake()
        for thread in self._threads:
            thread.join()
        self.steps.close()
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
            in_progress, cut_lsn = len(self.windows), self.steps.cut_lsn
        seconds = min(POLL_SECONDS, max(self.settings.flush_seconds / 4, 0.01))
        if in_progress < self.settings.windows:
            self._wal.object_commits.arm(self._wake_fd)  # before the check: a later push wakes this thread
            again = self._schedule.objects_look_again(cut_lsn)
            seconds = seconds if again is None else min(seconds, again)
        waiting = select.poll()
        waiting.register(self._wake_fd, select.POLLIN)
        if waiting.poll(seconds * 1000):
            os.eventfd_read(self._wake_fd)

    def _next(self) -> str | None:
        """Why to begin a window now, or None."""
        self.windows.raise_failure()
        with self._condition:
            reason = self.due()
            if reason is None and not self.windows:
                self.steps.urgent = False
            return reason

    def _turn(self) -> None:
        """Begins one window, or waits."""
        reason = self._next()
        if reason is None:
            self._wait()
            return
        if not self.windows:
            self.steps.settle()
        try:
            if self.steps.begin(reason == OBJECTS_AWAITED) is None:
                self._stop.wait(EMPTY_SECONDS)
        except BaseException:
            self.windows.wait_until_empty()  # earlier windows are not affected
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
                # Nothing is lost (see steps.py): log the unexpected failure and retry.
                if isinstance(error, ChecksumMismatch):
                    self.steps.guard.batches_are_trusted = False  # the next try reads the batches and finds the damage
                self.metrics.failures += 1
                self.metrics.last_error = repr(error)
                logger.exception("flush failed; trying again in %s s", RETRY_SECONDS)
                self._stop.wait(RETRY_SECONDS)
        self.windows.end()

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
