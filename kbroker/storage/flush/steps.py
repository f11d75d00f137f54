"""The steps of a flush: a window is begun, its objects are stored, its record is committed, and the WAL is trimmed.

`begin` takes the next part of the WAL, plans the objects (plan.py), builds each by checking its batches (body.py) and
stores it (upload.py). When all are stored, `finish` commits one manifest record with the objects, the window's effect
on offsets, epochs, transactions and producers, and the WAL position. Only then is the WAL trimmed. A failure before the
record leaves orphans; a failure after it leaves WAL that recovery skips. Nothing in between exists.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol

from kbroker.clock import Clock
from kbroker.histogram import WORK_SECONDS, Histogram
from kbroker.storage.flush.admission import Admission, AdmissionWal
from kbroker.storage.flush.body import WalReader
from kbroker.storage.flush.pacing import Pacer
from kbroker.storage.flush.plan import PlanLimits, plan_flush
from kbroker.storage.flush.schedule import FlushSchedule, FlushSettings, FlushSource, ScheduleWal
from kbroker.storage.flush.upload import Claim, StoredFile, StoreGuard, Uploader
from kbroker.storage.flush.window import FlushWindow, note_flushed
from kbroker.storage.flush.windows import FlushWindows
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.manifest.record import ManifestRecord
from kbroker.storage.stores.hedged_put import HedgedStore
from kbroker.storage.stores.object_store import ObjectStore

SYNC_SECONDS = 10.0


class FlushWal(WalReader, AdmissionWal, ScheduleWal, Protocol):
    """What flushes use of kbroker._fast.wal.wal.Wal."""

    @property
    def durable_lsn(self) -> int: ...

    @property
    def flushed_lsn(self) -> int: ...

    def sync(self, timeout: float = ...) -> bool: ...

    def trim(self, lsn: int) -> object: ...

    def fail_objects(self, error: int) -> object: ...


@dataclass(slots=True)
class FlushMetrics:
    """Counters since the start: failures are written by the thread that plans flushes, the rest by the one that
    commits them. Read by any thread without a lock.
    """

    flushes: int = 0
    awaited_flushes: int = 0  # that acknowledgements waited for
    objects: Counter[str] = field(default_factory=Counter)  # by kind
    bytes: Counter[str] = field(default_factory=Counter)  # by kind, with the indexes of segments
    seconds: Histogram = field(default_factory=lambda: Histogram(WORK_SECONDS))  # from plan to commit
    failures: int = 0
    last_error: str | None = None


class FlushSteps:
    """`begin` and `settle` are for one thread; `finish`, for the oldest window, may run on another at the same time.

    `stop` ends waits and retries: the step then raises FlushStopped. `wait(seconds)` returns True when it is set.
    Lock: `condition` protects `flushed_lsn` and `windows`, and is notified when they change; never held during work.
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
        settings: FlushSettings,
        schedule: FlushSchedule,
        condition: threading.Condition,
        stop: threading.Event,
        wait: Callable[[float], bool],
        hedged: HedgedStore | None = None,
    ) -> None:
        self.metrics = FlushMetrics()
        self.flushed_lsn = max(wal.flushed_lsn, manifest.image.wal_flushed_lsn(data_dir_id) or 0)
        self.urgent = False  # uploads have no rate limit
        self._wal = wal
        self._source = source
        self._manifest = manifest
        self._clock = clock
        self._data_dir_id = data_dir_id
        self._settings = settings
        self._schedule = schedule
        self._condition = condition
        self._stop = stop
        self.windows = FlushWindows(condition)
        self.admission = Admission(
            wal, clock.monotonic, settings.wal_bytes, settings.plan.window_bytes_max, settings.memory_bytes
        )
        self.pacer = Pacer(clock.monotonic, wait, self._pace, self.admission.sent)
        self._reading = Pacer(clock.monotonic, wait, self._pace)
        self.guard = StoreGuard(claim, wait, stop.is_set, self.admission.open)
        self.guard.batches_are_trusted = settings.store_checks_crc
        # A hedge takes a second thread for a PUT, and the slower request may run on for a while.
        self.hedged = hedged or HedgedStore(store, clock, 3 * settings.windows)
        self._uploader = Uploader(
            store, keys, self.guard, self.pacer, broker_epoch, manifest.image.is_known, self.hedged
        )
        threads = max(settings.upload_threads, settings.windows)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="upload")

    @property
    def cut_lsn(self) -> int:
        """Where the next window begins."""
        with self._condition:
            windows = self.windows.in_order()
            return windows[-1].end_lsn if windows else self.flushed_lsn

    def close(self) -> None:
        """Waits for the uploads that run."""
        self._pool.shutdown(wait=True)
        self.hedged.close()

    # -- begin -------------------------------------------------------------------------------------------------

    def begin(self, objects_awaited: bool = False) -> FlushWindow | None:
        """Plans a window and starts its uploads; None when there is nothing to flush."""
        if objects_awaited:
            self._wal.sync(SYNC_SECONDS)  # the WAL thread may still have what is waited for
        durable_lsn = self._wal.durable_lsn
        if durable_lsn <= self.cut_lsn:
            return None
        started = self._clock.monotonic()
        window = self._plan(durable_lsn, started, objects_awaited)
        if window is None:
            return None
        self._schedule.window_begins(started, objects_awaited)
        self.admission.window_begins(window.start_lsn, window.end_lsn, window.total_bytes)
        store = self._uploader.store_awaited if objects_awaited else self._uploader.store
        try:
            now_ms = self._clock.now_ms()
            at_once, trusted = self._uploads_at_once(), self.guard.batches_are_trusted
            window.start(self._wal, self._reading, now_ms, self._pool, store, at_once, trusted)
        except BaseException:
            self.windows.note_building(frozenset())
            raise
        if not self.windows.add(window):
            window.abandon()  # the next call of `windows.raise_failure` raises why
        return window

    def _plan(self, durable_lsn: int, started: float, objects_awaited: bool) -> FlushWindow | None:
        with self._condition:
            earlier = self.windows.in_order()
            cut_lsn = self.cut_lsn
        self.windows.note_building(None)
        topics: frozenset[str] = frozenset()
        try:
            image = self._manifest.image
            partitions = list(self._source.all_partitions())
            plan = plan_flush(
                partitions, image, cut_lsn, durable_lsn, self._plan_limits(), self._source.kfs_topics()
            )
            window = FlushWindow(plan, image, earlier, started=started, objects_awaited=objects_awaited)
            topics = window.segment_topics
        finally:
            self.windows.note_building(topics)
        return window if window.end_lsn > cut_lsn else None

    def _plan_limits(self) -> PlanLimits:
        plan = self._settings.plan
        if not self.admission.held:
            return plan
        window_bytes = self.admission.window_bytes
        # Work for all upload threads.
        share = max(window_bytes // self._settings.upload_threads, plan.pack_below_bytes)
        return replace(
            plan,
            window_bytes_max=window_bytes,
            object_bytes_max=min(plan.object_bytes_max, share),
            pack_bytes_max=min(plan.pack_bytes_max, share),
        )

    def _uploads_at_once(self) -> int:
        """Half of the threads unless producers are held, so that other work waits less."""
        threads = self._settings.upload_threads
        return threads if self.admission.held else (threads + 1) // 2

    def _pace(self) -> float:
        urgent = self.urgent or self.admission.held or self._stop.is_set()
        return self._schedule.pace(self.flushed_lsn, urgent)

    # -- finish ------------------------------------------------------------------------------------------------

    def finish(self, window: FlushWindow) -> None:
        """Waits for the objects of the oldest window and commits them. The caller removes it from `windows`."""
        files = window.results()
        self._commit(window, files)
        self.metrics.flushes += 1
        self.metrics.awaited_flushes += window.objects_awaited
        self.metrics.seconds.add(self._clock.monotonic() - window.started)
        window.note_flushed()
        self._advance(window.end_lsn)

    def _commit(self, window: FlushWindow, files: list[StoredFile]) -> None:
        def change(image: ManifestImage) -> ManifestRecord:
            return window.record(files, self._data_dir_id, self._clock.now_ms(), self._settings.delete_grace_ms)

        def attempt() -> None:
            """After a failure the record may be in doubt: the window is committed when the image has its end."""
            self._manifest.settle()
            if self._committed_lsn() < window.end_lsn:
                self._manifest.commit(change)


        self.guard.run("storing a manifest record", attempt)
        for file in files:
            self.metrics.objects[file.kind] += 1
            self.metrics.bytes[file.kind] += file.sent_bytes

    def settle(self) -> None:
        """Settles an earlier record in doubt; if it is committed, its window is flushed. No window is in progress."""
        self.guard.run("settling a manifest record", self._manifest.settle)
        image = self._manifest.image
        flushed_lsn = self._committed_lsn()
        if flushed_lsn > self.flushed_lsn:
            for partition in self._source.all_partitions():
                note_flushed(partition, image, partition.topic_id, partition.index)
            self._advance(flushed_lsn)

    def _committed_lsn(self) -> int:
        return self._manifest.image.wal_flushed_lsn(self._data_dir_id) or 0

    def _advance(self, lsn: int) -> None:
        self._wal.trim(lsn)
        self.admission.flushed(lsn)
        with self._condition:
            self.flushed_lsn = lsn
            self._condition.notify_all()
