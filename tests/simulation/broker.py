"""A broker of the simulation: every part of the storage layer that a real one has, on a simulated disk and bucket."""

from __future__ import annotations

import dataclasses
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from kbroker._fast.records.record_batch import validate
from kbroker._fast.wal.arena import Arena
from kbroker._fast.wal.commit import FastAppendWait, FastKafkaError
from kbroker._fast.wal.faults import Faults
from kbroker.app.config import load_config
from kbroker.app.data_dir import DataDir, Identity
from kbroker.app.open_cluster import OpenedStore, open_cluster
from kbroker.background.compaction_cleaner import Cleaner
from kbroker.background.compaction_round import CleanerSettings
from kbroker.background.converter import Converter, ConverterSettings
from kbroker.background.deleted_topics import drop_deleted_topics
from kbroker.background.retention import Retention
from kbroker.errors import CorruptionError, KafkaError, StartError
from kbroker.limits import KIB
from kbroker.log.log_starts import LogStarts
from kbroker.log.log_table import LogTable
from kbroker.log.recovery import recover_log
from kbroker.log.segment_names import SegmentNames
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.flush.flusher import Flusher
from kbroker.storage.flush.plan import PlanLimits
from kbroker.storage.flush.schedule import FlushSettings
from kbroker.storage.flush.upload import ClaimLost, FlushStopped
from kbroker.storage.ledger.numbered_log import Fenced
from kbroker.storage.ledger.ownership import Superseded
from kbroker.storage.read.object_reader import ObjectReader
from kbroker.storage.rewrite.merge_plan import MergeLimits
from kbroker.storage.rewrite.merger import MergerSettings
from kbroker.storage.rewrite.object_swap import PartitionLocks
from kbroker.storage.stores.hedged_put import HedgedStore
from kbroker.storage.stores.object_store import StoreError
from kbroker.storage.stores.store_health import StoreHealth
from kbroker.storage.stores.store_wrappers import RetryingStore, StoreCounters
from kbroker.storage.wal.keeper import create_wal
from tests.simulation.bucket import Client, Request
from tests.simulation.model import Entry
from tests.simulation.tasks import Killed, Task

if TYPE_CHECKING:
    from tests.simulation.disk import Disk
    from tests.simulation.world import World

SEGMENT_BYTES = 32 * KIB
WAL_SEGMENTS = 12
SLEEPS_MAX = 4  # of a flush during an outage
CONFIG = load_config({"data_dir": "/nowhere", "object_store": "file:/nowhere"}, environ={})
STOPPED = (Fenced, Superseded, ClaimLost)


class _Stopping:
    """Stands for the event that ends all waiting of a broker."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self._broker = broker

    def wait(self, seconds: float = 0.0) -> bool:
        return self._broker.sleep(seconds)

    def is_set(self) -> bool:
        return False


class SimulatedBroker:
    """One process, from its start to its end. Raises StartError when it cannot start.

    `dead`: it makes no more requests. `superseded`: it has learned that another broker owns the cluster.
    """

    def __init__(self, world: World, name: str, disk: Disk) -> None:
        self.name = name
        self.disk = disk
        self.dead = False
        self.closed = False
        self.started = False
        self.superseded = False
        self.refused = ""  # why it could not start
        self.epoch = 0  # none before the cluster is open
        self.requests_left = 0  # until it crashes; 0 or less: it does not
        self.sleeps = 0
        self.entries: list[Entry] = []
        self.floor_lsn = 0  # below this the log was said to be durable
        self.tasks: list[Task] = []
        self.client = Client(world.watched, world, self)
        self._world = world
        self._wal_thread: threading.Thread | None = None
        self._data_dir: DataDir | None = None
        self._metadata_store: Any = None

    # -- start ---------------------------------------------------------------------------------------------------

    def start(self, take_over: bool) -> None:
        """As kbroker.app.broker.Broker, without sockets and threads."""
        config = dataclasses.replace(
            CONFIG, data_dir=self.disk.path / "data", take_over=take_over, cluster_id=self._world.cluster_id
        )
        self._data_dir = data_dir = DataDir(config.data_dir)
        data_dir.wal.mkdir(exist_ok=True)
        clock = self._world.clock
        stopping: Any = _Stopping(self)
        retrying = RetryingStore(self.client, RetryPolicy(5.0, clock=clock, wait=stopping.wait))
        health = StoreHealth(clock)
        self.store = OpenedStore(self.client, retrying, StoreCounters(), health, self.client, StoreCounters())
        self.cluster = open_cluster(
            config, data_dir, self.store, clock, stopping, ("127.0.0.1", 9092), self._fenced
        )
        self._metadata_store = self.cluster.metadata_store
        self.epoch = self.cluster.claim.epoch
        self._open_log(data_dir)
        self._build_storage()
        self.floor_lsn = self.wal.durable_lsn
        self.disk.remember(self.floor_lsn)
        self.started = True

    def _open_log(self, data_dir: DataDir) -> None:
        try:
            self.faults = Faults()
            self.wal = create_wal(
                Arena(4 * SEGMENT_BYTES, 16 * KIB), data_dir.wal, segment_bytes=SEGMENT_BYTES,
                wal_bytes=WAL_SEGMENTS * (SEGMENT_BYTES + 4096), cluster_id=self._world.cluster_id,
                clock=self._world.clock, faults=self.faults,
            )  # fmt: skip
            self.table = LogTable(self.wal, self.cluster.manifest.image, self.epoch)
            self.cluster.topics.add_listener(self.table)
            self._recover(data_dir)
        except (CorruptionError, OSError) as error:
            raise StartError(f"the write-ahead log cannot be used: {error}") from error
        self.wal.keeper.begin()
        self._wal_thread = threading.Thread(target=self.wal.run, daemon=True)
        self._wal_thread.start()
        self.pump()

    def _recover(self, data_dir: DataDir) -> None:
        intruder, stale = self.cluster.intruder, None
        if intruder is not None:
            stale = StartError(f"holds what was not flushed when epoch {intruder.epoch} took over")
        try:
            deleted = self.cluster.topics.image.deleted
            report = recover_log(self.table, self.wal, data_dir.identity.data_dir_id, deleted)
        except StartError as error:
            raise stale or error from error
        if stale is not None and report.wal.batches:
            raise stale
        data_dir.save(Identity(data_dir.identity.data_dir_id, self.cluster.keys.cluster_id, self.epoch))

    def _build_storage(self) -> None:
        world, cluster, retrying = self._world, self.cluster, self.store.retrying
        clock, keys, manifest, claim = world.clock, cluster.keys, cluster.manifest, cluster.claim
        pack_below = world.pack_below_bytes
        self.flusher = Flusher(
            self.wal, self.table, manifest, self.client, keys, claim, clock, broker_epoch=self.epoch,
            data_dir_id=self._data_dir.identity.data_dir_id,  # type: ignore[union-attr]
            settings=FlushSettings(paced=False, upload_threads=1, plan=PlanLimits(pack_below_bytes=pack_below)),
            wait=self._flusher_sleep, hedged=HedgedStore(self.client, clock, 1, wait_for=self._wait_for_put),
        )  # fmt: skip
        writes = self.flusher.windows.writes_segments
        segments = SegmentNames(self.table, manifest, self.client, keys, clock, claim, writes)
        cluster.topics.segment_obstacle = segments.obstacle
        self.retention = Retention(self.table, manifest, retrying, clock, claim=claim, segments=segments)
        drop_deleted_topics(self.table, self.retention.drop_topic, segments, cluster.topics.image.deleted, 60_000)
        cluster.topics.add_listener(self.retention)
        self.table.on_removed = self.retention.topic_removed
        self.log_starts = LogStarts(self.table, manifest, clock)
        locks = PartitionLocks()
        self.cleaner = Cleaner(
            self.table, manifest, retrying, keys, clock, settings=CleanerSettings(io_bytes_per_second=0),
            locks=locks,
        )  # fmt: skip
        self.converter = Converter(
            self.table, manifest, retrying, keys, clock, claim, broker_epoch=self.epoch, locks=locks,
            settings=ConverterSettings(
                io_bytes_per_second=0.0, bounds=MergeLimits(fan_in=2, below_bytes=(32 * KIB, 64 * KIB)),
                merger=MergerSettings(buffer_bytes=world.merge_buffer_bytes, pack_images_min=2),
            ),
        )  # fmt: skip
        self.reader = ObjectReader(retrying, manifest.image, 4 * 1024 * KIB)

    def _fenced(self, error: Exception) -> None:
        self.superseded = True

    # -- time ----------------------------------------------------------------------------------------------------

    def sleep(self, seconds: float) -> bool:
        """A wait between two attempts; others run meanwhile."""
        if self.dead:
            raise Killed(self.name)
        if Task.running is not None:
            Task.running.pause(Request("sleep", "/_manifest/", lambda: None))
            if self.dead:
                raise Killed(self.name)
        self._world.clock.advance(seconds)
        return False

    def _wait_for_put(self, attempts: Any, seconds: float | None, until: str = "") -> tuple[set[Any], set[Any]]:
        """Every request has ended when it is waited for; some count as slow, and are sent a second time."""
        if seconds is not None and self._world.rng.random() < self._world.hedge_rate:
            self._world.seen["hedged puts"] += 1
            return set(), set(attempts)
        return set(attempts), set()

    def _flusher_sleep(self, seconds: float) -> bool:
        self.sleeps += 1
        return self.sleep(seconds) or self.sleeps > SLEEPS_MAX

    # -- the log -------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """What the log's own threads do."""
        while self.wal.keeper.sealer.seal_once() or self.wal.keeper.preparer.prepare_once():
            pass

    def append(self, hot: Any, batch: bytes, entry: Entry) -> bool:
        """Appends and syncs; False when there is no room, or the broker does not take it."""
        now_ms, judged = self._world.clock.now_ms(), validate(batch)
        assert judged.error_code == 0, judged
        append = partial(hot.append_bytes, batch, now_ms, entry.acknowledge, disorder_ms=judged.disorder_ms)
        return self._append(entry, append)

    def append_marker(self, hot: Any, producer: tuple[int, int], commit: bool, entry: Entry) -> bool:
        """As `append`, for the end of a transaction."""
        now_ms = self._world.clock.now_ms()
        return self._append(entry, partial(hot.append_marker, *producer, 0, commit, now_ms, entry.acknowledge))

    def _append(self, entry: Entry, append: Any) -> bool:
        for _ in range(3):
            try:
                entry.base_offset, entry.end_lsn = append()
            except FastAppendWait:
                self.pump()
                continue
            except FastKafkaError:
                return False
            entry.next_offset += entry.base_offset
            self.wal.sync(20)
            self.pump()
            return True
        return False

    def drain(self) -> None:
        """Answers the producers whose batches are durable."""
        if self.superseded or self.dead:
            return
        self.wal.drain_commits()
        self.promise()

    def promise(self) -> None:
        """All that is durable now has been acknowledged: a crash must lose none of it."""
        self.floor_lsn = self.wal.durable_lsn
        self.disk.remember(self.floor_lsn)

    # -- operations ----------------------------------------------------------------------------------------------

    def flush(self) -> bool:
        """Everything durable; False when it came to nothing."""
        self.promise()
        self.sleeps = 0
        wanted = self.wal.durable_lsn
        while self.flusher.windows:
            self.finish_window()
        while self.flusher.flushed_lsn < wanted and self.flusher.run_once():
            pass
        return self.flusher.flushed_lsn >= wanted

    def begin_window(self) -> None:
        """As the flusher's thread, for producers that wait for objects."""
        steps, windows = self.flusher.steps, self.flusher.windows
        self.promise()
        self.sleeps = 0
        windows.raise_failure()
        if len(windows) >= self.flusher.settings.windows:
            return
        if not windows:
            steps.settle()
        if steps.begin(objects_awaited=True) is not None:
            self._world.seen["windows after others"] += len(windows) > 1

    def finish_window(self) -> None:
        """As the thread that commits windows: finishes the oldest one, or abandons all."""
        windows = self.flusher.windows
        self.sleeps = 0
        if not windows:
            return
        try:
            self.flusher.steps.finish(windows.in_order()[0])
        except BaseException as error:
            self._world.seen["windows given up"] += len(windows)
            windows.abandon(error)
            raise
        windows.remove_first()

    def run(self, operation: Any) -> Any:
        """The result of an operation; None after an error that the simulation expects."""
        try:
            return operation()
        except STOPPED:
            self.superseded = True
        except (StoreError, FlushStopped, KafkaError) as error:
            self._world.note(f"{self.name}: {error}")
        except CorruptionError as error:
            self._world.note(f"{self.name}: {error}")
            if not self._world.damaged:
                raise
        return None

    def check_may_write(self, request: Request) -> None:
        """A broker that knows that it was superseded changes nothing."""
        if self.superseded:
            self._world.fail(f"{self.name} was superseded and knows it: {request.operation} {request.key}")

    # -- end -----------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """Ends at once, in the middle of any operation; the disk keeps what it must, and perhaps more."""
        if self.closed:
            return
        self.closed = True
        for task in self.tasks:
            if isinstance(task.paused_at, Request):
                self.client.cut_off(task.paused_at)
        self.dead = True
        # First the task that holds the lock of a log: the others may need it to end.
        paused = [task for task in self.tasks if not task.done]
        for task in sorted(paused, key=lambda task: not task.paused_at.holds_log):
            while not task.done:
                task.resume()
        self.tasks.clear()
        if self.started:
            self._count()
        self._close()

    def _count(self) -> None:
        seen, image = self._world.seen, self.cluster.manifest.image
        seen["flushes"] += self.flusher.metrics.flushes
        seen["packs"] += self.flusher.metrics.objects["pack"]
        seen["merges"] += self.converter.metrics.jobs
        seen["compactions"] += self.cleaner.metrics.rounds
        seen["keys deleted"] += self.retention.deleted_keys
        seen["orphans found"] += self.converter.metrics.orphans
        seen["uploads dropped"] += self.converter.metrics.uploads_dropped
        seen["log files replaced"] += self.wal.failed_files
        seen["log segments filled"] += sum(segment.sealed for segment in self.wal.segments)
        seen["aborted transactions"] += sum(len(state.aborted) for state in image.states())
        seen["open transactions in the manifest"] += sum(bool(state.open_transactions) for state in image.states())

    def _close(self) -> None:
        if self._wal_thread is not None:
            self.wal.sync(20)
            floor = max(self.floor_lsn, *(s.first_lsn for s in self.wal.segments if s.first_lsn <= self.wal.head_lsn))
            head, failed = self.wal.durable_lsn, self.wal.failed_files
            self.wal.close()
            self._wal_thread.join()
            if not failed:
                how = self.disk.tear(self._world.rng, floor, head)
                self._world.seen["torn tails"] += not how.startswith(("nothing", "all"))
                self._world.note(f"{self.name}: {how}")
        if self._metadata_store is not None:
            self._metadata_store.close()
        if self._data_dir is not None:
            self._data_dir.close()
