"""The flusher: makes objects of what the WAL holds, names them in the manifest, and only then lets the WAL go.

One flush: take a prefix of the WAL; plan the objects (flush_plan); build each by reading and checking its batches
(flush_body); store it (upload); when all are stored commit one manifest record with the objects, what the window did to
offsets, epochs, transactions and producers, and the WAL position; then trim. A failure before the record leaves objects
that nothing names; a failure after it leaves WAL that recovery skips. Nothing in between exists.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from kbroker import limits
from kbroker.clock import Clock
from kbroker.errors import CorruptionError
from kbroker.storage.flush_body import ObjectBuilder, WalReader
from kbroker.storage.flush_fold import PartitionFold
from kbroker.storage.flush_plan import FlushPartition, FlushPlan, PlanLimits, plan_flush
from kbroker.storage.manifest import Manifest
from kbroker.storage.manifest_image import ManifestImage
from kbroker.storage.numbered_log import Fenced
from kbroker.storage.object_keys import ObjectKeys
from kbroker.storage.object_store import ObjectStore
from kbroker.storage.pacing import Pacer
from kbroker.storage.upload import Claim, ClaimLost, FlushStopped, StoredFile, StoreGuard, Uploader

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.25
PACE_SECONDS = 0.1  # over which what comes in is measured
PACE_SHARE = 0.8  # of flush_seconds: what a flush of a quiet broker takes
PRESSURE_SHARE = 0.5  # of the WAL budget unflushed: flush at once, and at full speed
SYNC_SECONDS = 10.0
PLAN_SECONDS = 5.0  # more than a plan takes
RETRY_SECONDS = 5.0  # after a failure that nobody expected


class FlushWal(WalReader, Protocol):
    """What the flusher asks of kbroker._fast.wal.Wal."""

    @property
    def durable_lsn(self) -> int: ...

    def sync(self, timeout: float = ...) -> bool: ...

    def trim(self, lsn: int) -> object: ...


class FlushSource(Protocol):
    """Where the partitions come from (log.log_table.LogTable)."""

    def all_partitions(self) -> Iterable[FlushPartition]: ...

    def kfs_topics(self) -> frozenset[bytes]:
        """Ids of the topics whose objects are KafScale segments."""
        ...


@dataclass(frozen=True, slots=True)
class FlushSettings:
    """When to flush, and how. Sizes are bytes."""

    flush_bytes: int = 64 * limits.MIB  # of one partition
    flush_seconds: float = 60.0
    total_bytes: int = limits.FLUSH_TOTAL_BYTES
    wal_bytes: int = 4 * limits.GIB
    paced: bool = True
    upload_threads: int = limits.UPLOAD_THREADS
    delete_grace_ms: int = 60_000  # for objects that a flush finds dead: of a topic deleted meanwhile, say
    plan: PlanLimits = field(default_factory=PlanLimits)


@dataclass(slots=True)
class FlushMetrics:
    """Counters since the start; read by the metrics endpoint without a lock."""

    flushes: int = 0
    objects: int = 0
    packs: int = 0
    bytes: int = 0
    seconds: float = 0.0
    failures: int = 0
    last_error: str | None = None


class Flusher:
    """One thread that flushes, and a few that upload.

    `on_stopped` is called once, on the flusher's thread (so it must not call `stop`), when it ends for a reason
    that the broker must act on: ClaimLost or Fenced (another broker has taken over: stop, keep the WAL) or
    CorruptionError (the WAL holds damaged bytes: they are not uploaded, and nothing behind them is either).
    Locks: `_condition` protects requests and states, and is never held during work. `run_once` is one flush, for the
    thread and for tests; only one caller at a time.
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
        self._oldest_since: float | None = None
        self._slowest = float(limits.UPLOAD_BYTES_PER_SECOND_MIN)  # of a paced flush
        self._ingest = 0.0  # bytes per second, lately
        self._measured = clock.monotonic(), wal.durable_lsn
        self._checked_at_lsn = 0
        self._thread: threading.Thread | None = None
        self.pacer = Pacer(clock.monotonic, self._stop.wait, self._pace)
        self.guard = StoreGuard(claim, wait or self._stop.wait, self._stop.is_set)
        self._segments: frozenset[str] | None = frozenset()  # topics whose segments are being stored; None: planning
        self._uploader = Uploader(store, keys, self.guard, self.pacer, broker_epoch, manifest.image.is_known)
        self._pool = ThreadPoolExecutor(self.settings.upload_threads, thread_name_prefix="upload")

    # -- when --------------------------------------------------------------------------------------------------

    @property
    def unflushed_bytes(self) -> int:
        """WAL bytes that no object holds yet."""
        return max(0, self._wal.durable_lsn - self.flushed_lsn)

    @property
    def pressure(self) -> bool:
        """True when the WAL fills faster than flushes empty it."""
        return self.unflushed_bytes > PRESSURE_SHARE * self.settings.wal_bytes

    def due(self) -> str | None:
        """Why a flush should start now, or None."""
        unflushed = self.unflushed_bytes
        now = self._clock.monotonic()
        if unflushed == 0:
            self._oldest_since = None
            return None
        if self._oldest_since is None:
            self._oldest_since = now
        if self._requested_lsn > self.flushed_lsn:
            return "request"
        if self.pressure:
            return "WAL pressure"
        if unflushed >= self.settings.total_bytes:
            return "size"
        if now - self._oldest_since >= self.settings.flush_seconds:
            return "age"
        return "partition size" if self._large_partition(unflushed) else None

    def _large_partition(self, unflushed: int) -> bool:
        """Looks for a partition with flush_bytes; only after the WAL has grown enough for the answer to change."""
        step = self.settings.flush_bytes // 8
        if unflushed < self.settings.flush_bytes or self._wal.durable_lsn < self._checked_at_lsn + step:
            return False
        self._checked_at_lsn = self._wal.durable_lsn
        return any(
            partition.unflushed_bytes >= self.settings.flush_bytes
            for partition in self._source.all_partitions()
            if not partition.deleted
        )

    # -- one flush ---------------------------------------------------------------------------------------------

    def run_once(self) -> bool:
        """Flushes what is durable now, or as much of it as one flush takes; False when there was nothing.

        Raises FlushStopped, ClaimLost, Fenced, CorruptionError; retries what the store refuses.
        """
        self._settle()
        durable_lsn = self._wal.durable_lsn
        if durable_lsn <= self.flushed_lsn:
            return False
        try:
            return self._flush_below(durable_lsn)
        finally:
            self._note_segments(frozenset())

    def _flush_below(self, durable_lsn: int) -> bool:
        started = self._clock.monotonic()
        self._note_segments(None)
        partitions = list(self._source.all_partitions())
        plan = plan_flush(
            partitions,
            self._manifest.image,
            self.flushed_lsn,
            durable_lsn,
            self.settings.plan,
            self._source.kfs_topics(),
        )
        self._note_segments(frozenset(planned.images[0].topic for planned in plan.objects if planned.kfs))
        if plan.end_lsn <= self.flushed_lsn:
            return False
        self._oldest_since = started
        self._slowest = max(
            plan.total_bytes / (self.settings.flush_seconds * PACE_SHARE), limits.UPLOAD_BYTES_PER_SECOND_MIN
        )
        folds: dict[tuple[bytes, int], PartitionFold] = {}
        files = self._store_objects(plan, folds)
        self._commit(plan, files, folds)
        self._advance(plan.end_lsn)
        self.metrics.flushes += 1
        self.metrics.seconds += self._clock.monotonic() - started
        return True

    def _note_segments(self, topics: frozenset[str] | None) -> None:
        with self._condition:
            self._segments = topics
            self._condition.notify_all()

    def writes_segments(self, topic: str) -> bool:
        """True while a flush may be storing segments of a topic of this name, be it deleted meanwhile or not."""
        with self._condition:
            self._condition.wait_for(lambda: self._segments is not None, PLAN_SECONDS)
            return self._segments is None or topic in self._segments

    def _pace(self) -> float:
        """Bytes per second that uploads may take now, 0 for no limit; called by the pacer, one thread at a time.

        As fast as data comes in when half the way to pressure is unflushed; slower below, up to four times as fast
        above.
        """
        if not self.settings.paced or self._urgent or self.pressure:
            return 0.0
        now, durable_lsn = self._clock.monotonic(), self._wal.durable_lsn
        since, lsn = self._measured
        if now - since >= PACE_SECONDS:
            self._ingest = (self._ingest + (durable_lsn - lsn) / (now - since)) / 2
            self._measured = now, durable_lsn
        fill = self.unflushed_bytes / (PRESSURE_SHARE * self.settings.wal_bytes)
        return max(self._slowest, self._ingest * (2 * fill) ** 2)

    def _store_objects(self, plan: FlushPlan, folds: dict[tuple[bytes, int], PartitionFold]) -> list[StoredFile]:
        """Builds in order on this thread, uploads on the pool; returns the stored files in order of the plan."""

        def fold_of(topic_id: bytes, partition: int) -> PartitionFold:
            if (topic_id, partition) not in folds:
                folds[topic_id, partition] = PartitionFold(self._manifest.image.partition(topic_id, partition))
            return folds[topic_id, partition]

        builder = ObjectBuilder(self._wal, fold_of, self._clock.now_ms())
        room = threading.BoundedSemaphore(self.settings.upload_threads)  # bounds the footers held in memory
        uploads: list[Future[StoredFile]] = []
        try:
            plan.objects.reverse()
            while plan.objects:
                built = builder.build(plan.objects.pop())
                room.acquire()
                uploads.append(self._pool.submit(self._uploader.store, built))
                uploads[-1].add_done_callback(lambda _: room.release())
                del built
            return [upload.result() for upload in uploads]
        except BaseException:
            for upload in uploads:
                upload.cancel()
            for upload in uploads:
                if not upload.cancelled():
                    upload.exception()  # waits: no upload may outlive the flush that it belongs to
            raise

    def _commit(self, plan: FlushPlan, files: list[StoredFile], folds: dict[tuple[bytes, int], PartitionFold]) -> None:
        # Once given to the log, a record that failed is in doubt and settled by itself: never built a second time.
        given = False

        def change(image: ManifestImage) -> dict[str, Any]:
            nonlocal given
            record = self._record(plan, files, folds)
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

    def _record(
        self, plan: FlushPlan, files: list[StoredFile], folds: dict[tuple[bytes, int], PartitionFold]
    ) -> dict[str, Any]:
        """The manifest record. Data of topics deleted since the plan is left out; their objects are to be deleted."""
        alive = {
            (partition.topic_id, partition.index): partition
            for partition in self._source.all_partitions()
            if not partition.deleted
        }
        named: list[list[Any]] = []
        queued: list[list[Any]] = []
        partitions: dict[str, dict[str, Any]] = {}
        for file in files:
            images = [image for image in file.images if (image.topic_id, image.partition) in alive]
            if not images:
                queued.append([file.key, self._clock.now_ms() + self.settings.delete_grace_ms])
                continue
            for image in images:
                deltas = partitions.setdefault(image.topic_id.hex(), {})
                delta = deltas.setdefault(str(image.partition), {"r": []})
                delta["r"].append(image.ref(len(named)))
                delta.update(folds[image.topic_id, image.partition].delta(image.end_offset))
                self._add_log_start(delta, alive[image.topic_id, image.partition])
            named.append([file.key, file.size, file.etag, file.crc32c])
        return {"w": [self._data_dir_id, plan.end_lsn], "f": named, "p": partitions, "q": queued}

    def _add_log_start(self, delta: dict[str, Any], partition: FlushPartition) -> None:
        state = self._manifest.image.partition(partition.topic_id, partition.index)
        log_start_offset = partition.log_start_offset
        if log_start_offset > (state.log_start_offset if state is not None else 0):
            delta["s"] = log_start_offset
            delta["g"] = self.settings.delete_grace_ms

    def _settle(self) -> None:
        """An earlier record in doubt may have become true meanwhile: then its window is flushed."""
        self.guard.run("settling a manifest record", self._manifest.settle)
        flushed_lsn = self._manifest.image.wal_flushed_lsn(self._data_dir_id) or 0
        if flushed_lsn > self.flushed_lsn:
            self._advance(flushed_lsn)

    def _advance(self, lsn: int) -> None:
        self._wal.trim(lsn)
        with self._condition:
            self.flushed_lsn = lsn
            self._condition.notify_all()

    # -- the thread --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread."""
        self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)
        self._thread.start()

    def flush(self, wait: bool = True, timeout: float | None = None) -> bool:
        """Asks for a flush of everything durable now, at full speed.

        With `wait` of everything appended before the call: True when it is in objects.
        """
        if wait:
            self._wal.sync(SYNC_SECONDS)  # else a stop would leave behind what the WAL thread has in hand
        with self._condition:
            target = self._wal.durable_lsn
            self._requested_lsn = max(self._requested_lsn, target)
            self._urgent = True
            self._condition.notify_all()
            if not wait:
                return self.flushed_lsn >= target
            self._condition.wait_for(
                lambda: self.flushed_lsn >= target or self.failed is not None or self._stop.is_set(), timeout
            )
            return self.flushed_lsn >= target

    def pause(self) -> None:
        """No flush starts until `resume`; returns when none is under way."""
        with self._condition:
            self._paused = True
            self._condition.wait_for(lambda: not self._busy)

    def resume(self) -> None:
        """Flushes go on."""
        with self._condition:
            self._paused = False
            self._condition.notify_all()

    def stop(self, flush: bool = True, timeout: float | None = None) -> bool:
        """Ends the flusher, after a last flush if asked for; True when nothing is left unflushed."""
        flushed = True
        if flush and self._thread is not None:
            flushed = self.flush(wait=True, timeout=timeout)
        self._stop.set()
        with self._condition:
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._pool.shutdown(wait=True)
        return flushed and self.unflushed_bytes == 0

    def _run(self) -> None:
        while not self._stop.is_set() and self.failed is None:
            with self._condition:
                reason = None if self._paused else self.due()
                if reason is None:
                    self._urgent = False
                    self._condition.wait(min(POLL_SECONDS, max(self.settings.flush_seconds / 4, 0.01)))
                    continue
                self._busy = True
            try:
                self.run_once()
            except FlushStopped:
                break
            except (ClaimLost, Fenced, CorruptionError) as error:
                self._fail(error)
            except Exception as error:
                # Nothing is lost (see the module), but nobody knows this failure: say so, and try again.
                self.metrics.failures += 1
                self.metrics.last_error = repr(error)
                logger.exception("flush failed; trying again in %s s", RETRY_SECONDS)
                self._stop.wait(RETRY_SECONDS)
            finally:
                with self._condition:
                    self._busy = False
                    self._condition.notify_all()

    def _fail(self, error: Exception) -> None:
        logger.critical("flushing has stopped: %s; the WAL keeps what is not in objects", error)
        self.metrics.failures += 1
        self.metrics.last_error = str(error)
        try:
            if self._on_stopped is not None:
                self._on_stopped(error)
        finally:
            with self._condition:
                self.failed = error
                self._condition.notify_all()
