"""Runs one shard: its load, its order of operations, its snapshots. It knows no semantics of groups or transactions.

    absent ──topic created──► not led ◄──resigned── loading, active
    not led ──elected──► loading ──loaded──► active ──append failed──► loading (again, from what is durable)

State belongs to one leader epoch of the shard's partition (cluster protocol §6): a later one begins with a new load.
Decisions are made on the state as of all appends so far (pending state); an answer waits until the records that it
depends on are durable.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from enum import Enum
from functools import partial
from typing import Generic, TypeVar

from kbroker.clock import Clock
from kbroker.coordinator.runtime.appender import Appender, OnAppend, Write, client_error
from kbroker.coordinator.runtime.batches import Batch, to_batches
from kbroker.coordinator.runtime.config import ShardConfig
from kbroker.coordinator.runtime.event_loop import EventLoop, Timer, loop_thread_only
from kbroker.coordinator.runtime.load import LogSize, ShardLoader
from kbroker.coordinator.runtime.request import Request, RequestQueue, internal
from kbroker.coordinator.runtime.result import Operation, Result, complete
from kbroker.coordinator.runtime.shard import Shard
from kbroker.coordinator.runtime.snapshot_writer import SnapshotWriter
from kbroker.errors import ErrorCode, KafkaError
from kbroker.log.internal_log import InternalLog

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=Shard)

NO_EPOCH = -1
OVERDUE_CHECK_SECONDS = 0.5


class ShardState(Enum):
    """The life of a shard."""

    ABSENT = "absent"  # the internal topic does not exist, so neither does any state
    NOT_LED = "not_led"  # this broker does not lead the partition, or is stopping
    LOADING = "loading"
    ACTIVE = "active"


class ShardRuntime(Generic[S]):
    """One shard of a coordinator. Loop thread only; other threads read the attributes and properties that are numbers,
    `state`, and single values of `shard`."""

    def __init__(
        self,
        loop: EventLoop,
        clock: Clock,
        config: ShardConfig,
        executor: Executor,
        new_shard: Callable[[], S],
        on_loaded: Callable[[int, float], None],
    ) -> None:
        """`on_loaded` is called on the loop thread at the end of each load, with the records that it read and its
        seconds, without the wait for a worker.
        """
        self._loop = loop
        self._clock = clock
        self._config = config
        self._new_shard = new_shard
        self._on_loaded = on_loaded
        self._after_load = RequestQueue(config, loop.monotonic, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        self._loader = ShardLoader(
            loop, executor, new_shard, on_loaded=self._loaded, on_failed=self._after_load.refuse_overdue
        )
        self._snapshots = SnapshotWriter(
            loop,
            executor,
            config,
            is_blocked=lambda: self.appender.is_blocked,
            write=self._write_slice,
            when_durable=lambda result: self.appender.when_durable(result, None),
        )
        self.appender = Appender(
            loop,
            config,
            clock.now_ms,
            run=self._run,
            apply=self._apply,
            finish=self._finish,
            on_written=self._snapshots.on_written,
            on_lost=self._lost,
        )
        self.loaded_records = 0  # in the last load
        self.state = ShardState.ABSENT
        self.leader_epoch = NO_EPOCH  # the latest in which the partition was led here, or is known not to be
        self._timers: set[Timer] = set()  # of the shard
        self.shard = self._empty_shard()

    @property
    def refused(self) -> int:
        """Requests that found a queue full or waited too long."""
        return self._after_load.refused + self.appender.backlog.refused

    @property
    def queue_length(self) -> int:
        """Requests that wait for a load or a blocked write."""
        return len(self._after_load) + len(self.appender.backlog)

    # -- operations ----------------------------------------------------------------------------------------------

    @loop_thread_only
    def submit(self, request: Request) -> None:
        """Runs the request now, queues it after a blocked write, or answers with the reason why not."""
        if self.state is ShardState.LOADING and request.waits_for_load:
            self._after_load.add(request)
        elif self.state is ShardState.LOADING:
            request.refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        elif self.state is ShardState.NOT_LED:
            request.refuse(ErrorCode.NOT_COORDINATOR)
        elif self.appender.is_blocked:
            self.appender.backlog.add(request)
        else:
            self._run(request)

    def now_ms(self) -> int:
        """Wall clock."""
        return self._clock.now_ms()

    @loop_thread_only
    def schedule(self, delay_ms: int, operation: Operation) -> Timer:
        """Runs `operation` later as an operation of this shard.

        It does not run if the shard was unloaded before, or if the timer was cancelled while the operation queued.
        """

        def due() -> None:
            self.submit(internal(lambda shard, future: None if timer.cancelled else operation()))

        timer = self._loop.call_later(delay_ms / 1000, due, self._timers)
        return timer

    def _run(self, request: Request) -> None:
        try:
            result = request.run(self.shard, request.future)
            if result is not None:
                self._execute(result, request)
        except KafkaError as error:
            request.refuse(error.code)
        except Exception:
            logger.exception("coordinator operation failed")
            request.refuse(ErrorCode.UNKNOWN_SERVER_ERROR)

    def _execute(self, result: Result, request: Request | None) -> None:
        if result.marker is not None or result.records:
            try:
                batches = self._batches(result)
            except ValueError as error:
                # Flexible requests can carry longer strings than the records' layouts.
                logger.warning("%s: cannot be stored: %s", self.appender.log, error)
                self._finish(result, request, ErrorCode.UNKNOWN_SERVER_ERROR)
            else:
                self.appender.append(Write(result, request, batches))
        elif request is not None and request.is_read:
            self.appender.when_durable(result, request)
        else:
            self._finish(result, request, ErrorCode.NONE)

    def _batches(self, result: Result) -> deque[Batch]:
        if result.marker is not None:
            return deque([Batch(marker=result.marker)])
        max_bytes = self._config.snapshot_batch_bytes
        return deque(to_batches(result.records, result.stamp, self.shard.encode, self.now_ms(), max_bytes))

    def _apply(self, batch: Batch) -> None:
        """A batch was appended."""
        if batch.marker is not None:
            self.shard.replay_marker(batch.marker)
        for record in batch.records:
            self.shard.replay(record, batch.stamp)
        self._snapshots.size.total_bytes += len(batch.data)
        self._snapshots.size.total_records += max(len(batch.records), 1)

    def _finish(self, result: Result, request: Request | None, error: ErrorCode) -> None:
        """The records are durable, or (with an error) were not appended."""
        if result.on_complete is not None:
            following = result.on_complete(error)
            if following is not None:
                self._execute(following, None)
        if request is None or result.response is None:
            return
        complete(request.future, request.error_response(error) if error else result.response)

    def _write_slice(self, result: Result, on_append: OnAppend) -> None:
        """Appends a slice of a snapshot."""
        self.appender.append(Write(result, None, self._batches(result), on_append))

    # -- loading and unloading -----------------------------------------------------------------------------------

    @loop_thread_only
    def elected(self, leader_epoch: int, log: InternalLog | None) -> None:
        """The partition is led here in this epoch: loads the shard. None: it is known that it is not led any more.

        Does nothing if the epoch is not a later one.
        """
        if leader_epoch <= self.leader_epoch:
            return
        self._leave()
        self.leader_epoch = leader_epoch
        if log is not None:
            self.appender.log = log
            self._load(log)

    @loop_thread_only
    def resigned(self, leader_epoch: int | None) -> None:
        """The partition is not led here in this epoch: unloads the shard, and refuses all requests from now on.

        Does nothing if it is led in a later epoch. None: in no epoch, because there is no such partition.
        """
        if leader_epoch is not None and leader_epoch < self.leader_epoch:
            return
        self.leader_epoch = NO_EPOCH if leader_epoch is None else leader_epoch
        self._leave()

    def _leave(self) -> None:
        was_open = self.state in (ShardState.LOADING, ShardState.ACTIVE)  # else it holds nothing
        self.state = ShardState.NOT_LED
        if was_open:
            self._unload(ErrorCode.NOT_COORDINATOR)
        for request in self._after_load.drain():
            request.refuse(ErrorCode.NOT_COORDINATOR)

    def _load(self, log: InternalLog) -> None:
        self.state = ShardState.LOADING
        self.appender.when_settled(partial(self._loader.start, log))
        self._refuse_overdue()

    def _refuse_overdue(self) -> None:
        """Until the loader, which does it then, may start: that takes as long as the log takes to store what it has."""
        if self.appender.is_settling:
            self._after_load.refuse_overdue()
            self._loop.call_later(OVERDUE_CHECK_SECONDS, self._refuse_overdue, self._timers)

    def _loaded(self, log: InternalLog, shard: S, size: LogSize, seconds: float) -> None:
        self.loaded_records = size.total_records
        self.shard = shard
        shard.attach(self)
        self.state = ShardState.ACTIVE
        waiting = self._after_load.drain()
        self._snapshots.loaded(shard, log, size)
        self._run(internal(lambda shard, future: shard.activate()))
        for request in waiting:
            self.submit(request)
        self._on_loaded(size.total_records, seconds)

    def _lost(self, error: ErrorCode) -> None:
        """The log has not taken what was decided: goes back to what is durable, if it is still led here."""
        if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self.resigned(self.leader_epoch)
            return
        assert self.appender.log is not None
        self._unload(client_error(error))
        self._load(self.appender.log)

    def _unload(self, error: ErrorCode) -> None:
        """Drops all memory state; waiting requests get `error`. What is being appended may still become durable."""
        self._loader.cancel()
        self._snapshots.cancel()
        for request in self.appender.reset():
            request.refuse(error)
        self.shard.deactivate(error)
        for timer in list(self._timers):
            timer.cancel()
        self.shard = self._empty_shard()

    def _empty_shard(self) -> S:
        shard = self._new_shard()
        shard.attach(self)
        return shard
