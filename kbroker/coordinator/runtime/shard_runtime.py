"""Runs one shard: its log, its load, its order of operations. It knows no semantics of groups or transactions.

    absent ──open──► loading ──loaded──► active ──append failed──► loading (again, from what is durable)

Decisions are made on the state as of all appends so far (pending state); an answer waits until the records that it
depends on are durable. An append that fails for lack of space is retried for a while, and later operations queue after
it. The queue is bounded in length and in time; requests beyond it are refused with a retriable error.
All methods run on the loop thread unless said otherwise.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from math import inf
from typing import Generic, TypeVar

from kbroker._fast.wal.commit import FastAppendWait, FastKafkaError
from kbroker.clock import Clock
from kbroker.coordinator.runtime.batches import Batch, to_batches
from kbroker.coordinator.runtime.config import ShardConfig
from kbroker.coordinator.runtime.event_loop import EventLoop, Timer
from kbroker.coordinator.runtime.load import LogSize, load
from kbroker.coordinator.runtime.request import Request, RequestQueue, internal
from kbroker.coordinator.runtime.result import Operation, Result, complete
from kbroker.coordinator.runtime.shard import Shard
from kbroker.coordinator.runtime.snapshot_writer import OnAppend, SnapshotWriter
from kbroker.errors import ErrorCode, KafkaError
from kbroker.log.internal_log import InternalLog

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=Shard)

_APPEND_RETRY_FIRST_MS = 2
_APPEND_RETRY_LAST_MS = 100
_LOAD_RETRY_FIRST_MS = 500
_LOAD_RETRY_LAST_MS = 30_000

# Zombies, records after the end of their transaction, no room for a producer id: the log refuses them by design.
_EXPECTED = (
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
)

# The errors that clients get when an append fails (Kafka's mapping for coordinators).
_APPEND_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}


class ShardState(Enum):
    """The life of a shard."""

    ABSENT = "absent"  # the internal topic does not exist, so neither does any state
    LOADING = "loading"
    ACTIVE = "active"
    STOPPED = "stopped"


@dataclass(slots=True)
class _Write:
    """A decision that is being appended."""

    result: Result
    request: Request | None
    batches: deque[Batch]  # still to append
    give_up_at: float = 0.0  # monotonic seconds
    retry_ms: int = _APPEND_RETRY_FIRST_MS
    appended: bool = False  # some of its batches are in the log
    on_append: OnAppend | None = None


@dataclass(slots=True)
class _Pending:
    """An appended batch that is not durable yet, and what waits for it."""

    write: _Write | None  # None unless the batch is the write's last
    reads: list[tuple[Result, Request | None]] = field(default_factory=list)


class ShardRuntime(Generic[S]):
    """One shard of a coordinator."""

    def __init__(
        self,
        loop: EventLoop,
        clock: Clock,
        config: ShardConfig,
        executor: Executor,
        new_shard: Callable[[], S],
        on_loaded: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_loaded` is called on the loop thread at the end of each load."""
        self._loop = loop
        self._clock = clock
        self._config = config
        self._executor = executor
        self._new_shard = new_shard
        self._on_loaded = on_loaded
        self._log: InternalLog | None = None
        self._epoch = 0  # grows with each load; callbacks of an earlier epoch are stale
        self._load_retry_ms = _LOAD_RETRY_FIRST_MS
        self._after_load = RequestQueue(config, loop.monotonic, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        # after the blocked write
        self._backlog = RequestQueue(config, loop.monotonic, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._blocked: _Write | None = None
        self._pending: deque[_Pending] = deque()
        self._snapshots = SnapshotWriter(
            loop,
            executor,
            config,
            is_blocked=lambda: self._blocked is not None,
            write=self._write_slice,
            when_durable=lambda result: self._execute_read(result, None),
        )
        self.load_seconds = 0.0  # of the last load, without its wait for a worker
        self.loaded_records = 0  # in the last load
        self.state = ShardState.ABSENT
        self.shard: S = new_shard()
        self.shard.attach(self)

    # -- operations ----------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Runs the request now, queues it after a blocked write, or answers with the reason why not."""
        if self.state is ShardState.LOADING and request.waits_for_load:
            self._after_load.add(request)
        elif self.state is ShardState.LOADING:
            request.refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        elif self.state is ShardState.STOPPED:
            request.refuse(ErrorCode.NOT_COORDINATOR)
        elif self._blocked is not None:
            self._backlog.add(request)
        else:
            self._run(request)

    @property
    def refused(self) -> int:
        """Requests that found a queue full or waited too long. Any thread."""
        return self._after_load.refused + self._backlog.refused

    @property
    def queue_length(self) -> int:
        """Requests that wait for a load or a blocked write. Any thread."""
        return len(self._after_load) + len(self._backlog)

    def now_ms(self) -> int:
        """Wall clock."""
        return self._clock.now_ms()

    def schedule(self, delay_ms: int, operation: Operation) -> Timer:
        """Runs `operation` later as an operation of this shard.

        It does not run if the shard was reloaded meanwhile, or if the timer was cancelled while the operation queued.
        """
        epoch = self._epoch

        def due() -> None:
            if epoch == self._epoch and self.state in (ShardState.ACTIVE, ShardState.ABSENT):
                self.submit(internal(lambda shard, future: None if timer.cancelled else operation()))

        timer = self._loop.call_later(delay_ms / 1000, due)
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
        if result.marker is not None:
            self._write(_Write(result, request, deque([Batch(marker=result.marker)])))
        elif result.records:
            try:
                batches = self._batches(result)
            except ValueError as error:
                # Flexible requests can carry longer strings than the records' layouts.
                logger.warning("%s: cannot be stored: %s", self._log, error)
                self._finish(result, request, ErrorCode.UNKNOWN_SERVER_ERROR)
            else:
                self._write(_Write(result, request, batches))
        elif request is not None and request.is_read:
            self._execute_read(result, request)
        else:
            self._finish(result, request, ErrorCode.NONE)

    def _execute_read(self, result: Result, request: Request | None) -> None:
        """Finishes the result when all appends so far are durable."""
        if self._pending:
            self._pending[-1].reads.append((result, request))
        else:
            self._finish(result, request, ErrorCode.NONE)

    def _finish(self, result: Result, request: Request | None, error: ErrorCode) -> None:
        """The records are durable, or (with an error) were not appended."""
        if result.on_complete is not None:
            following = result.on_complete(error)
            if following is not None:
                self._execute(following, None)
        if request is None or result.response is None:
            return
        complete(request.future, request.error_response(error) if error else result.response)

    # -- appends -------------------------------------------------------------------------------------------------

    def _write(self, write: _Write) -> None:
        assert self._log is not None, "a write before the topic exists"
        if self._blocked is not None and self._blocked is not write:
            # It follows from the completion of an earlier write: it queues like any other.
            self._backlog.add(internal(lambda shard, future: write.result))
            return
        try:
            while write.batches:
                self._append_next(self._log, write)
        except FastAppendWait:
            self._wait_for_space(write)
            return
        except FastKafkaError as refused:
            expected = refused.code in _EXPECTED
            logger.log(logging.INFO if expected else logging.ERROR, "%s: append refused: %s", self._log, refused)
            self._give_up(write, ErrorCode(refused.code))
            return
        self._unblock(self._log, write)
        self._snapshot_if_due()

    def _write_slice(self, result: Result, on_append: OnAppend) -> None:
        """Appends a slice of a snapshot."""
        self._write(_Write(result, None, self._batches(result), on_append=on_append))

    def _batches(self, result: Result) -> deque[Batch]:
        max_bytes = self._config.snapshot_batch_bytes
        return deque(to_batches(result.records, result.stamp, self.shard.encode, self.now_ms(), max_bytes))

    def _append_next(self, log: InternalLog, write: _Write) -> None:
        batch = write.batches[0]
        pending = _Pending(write if len(write.batches) == 1 else None)
        durable = partial(self._durable_any_thread, self._epoch, pending)
        if batch.marker is not None:
            log.append_marker(*batch.marker, self.now_ms(), durable)
        else:
            log.append(batch.data, self.now_ms(), durable)
        write.batches.popleft()
        write.appended = True
        self._pending.append(pending)
        if batch.marker is not None:
            self.shard.replay_marker(batch.marker)
        for record in batch.records:
            self.shard.replay(record, batch.stamp)
        self._snapshots.size.total_bytes += len(batch.data)
        self._snapshots.size.total_records += max(len(batch.records), 1)
        if write.on_append is not None:
            write.on_append(len(batch.data), len(batch.records))

    def _wait_for_space(self, write: _Write) -> None:
        now = self._loop.monotonic()
        if self._blocked is None:
            self._blocked = write
            write.give_up_at = self._end_of_wait(write.request, now)
        elif now >= write.give_up_at:
            self._give_up(write, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        epoch = self._epoch

        def retry() -> None:
            if epoch == self._epoch and self._blocked is write:
                self._write(write)
                if self._blocked is not None:
                    self._backlog.refuse_overdue()

        self._loop.call_later(write.retry_ms / 1000, retry)
        write.retry_ms = min(write.retry_ms * 2, _APPEND_RETRY_LAST_MS)

    def _end_of_wait(self, request: Request | None, now: float) -> float:
        """Until when the write of `request` waits: forever if no client would retry it."""
        if request is not None and request.is_internal:
            return inf
        waited = 0.0 if request is None else request.give_up_at
        return waited or now + self._config.append_timeout_ms / 1000

    def _give_up(self, write: _Write, error: ErrorCode) -> None:
        if write.appended:
            # Part of it is in the log: its request is refused, and the shard reloads what is durable.
            self._unload(_client_error(error))
            if write.request is not None:
                write.request.refuse(_client_error(error))
            self._start_load()
            return
        write.batches.clear()
        unblocked = self._blocked is write
        if unblocked:
            self._blocked = None
        self._finish(write.result, write.request, _client_error(error))
        if unblocked:
            self._run_backlog()

    def _unblock(self, log: InternalLog, write: _Write) -> None:
        unblocked = self._blocked is write
        if unblocked:
            self._blocked = None
        if write.result.marker is not None:
            self._snapshots.marker_appended(log)
        if unblocked:
            self._run_backlog()

    def _run_backlog(self) -> None:
        while self._backlog and self._blocked is None:
            self._run(self._backlog.pop())

    def _durable_any_thread(self, epoch: int, pending: _Pending, error: int) -> None:
        self._loop.post(partial(self._durable, epoch, pending, error))

    def _durable(self, epoch: int, pending: _Pending, error: int) -> None:
        if epoch != self._epoch:
            return
        if error:
            logger.error("%s: append failed with error %d; reloading", self._log, error)
            self._unload(_client_error(ErrorCode(error)))
            self._start_load()
            return
        first = self._pending.popleft()
        assert first is pending, "appends became durable out of order"
        if pending.write is not None:
            self._finish(pending.write.result, pending.write.request, ErrorCode.NONE)
        for read, reader in pending.reads:
            self._finish(read, reader, ErrorCode.NONE)

    # -- loading and unloading -----------------------------------------------------------------------------------

    def open(self, log: InternalLog) -> None:
        """Starts to load the shard from its log."""
        self._log = log
        self._start_load()

    def _start_load(self) -> None:
        assert self._log is not None
        self.state = ShardState.LOADING
        self._epoch += 1
        if self._log.start_offset == self._log.next_offset:
            self._loaded(self._epoch, self._new_shard(), LogSize(), 0.0)
        else:
            self._executor.submit(self._load, self._log, self._epoch)

    def _load(self, log: InternalLog, epoch: int) -> None:
        """Worker thread: builds a shard that no other thread sees yet."""
        begun = self._clock.monotonic()
        try:
            shard, size = load(log, self._new_shard)
        except Exception:
            logger.exception("%s: loading failed, will be retried", log)
            self._loop.post(partial(self._load_failed, epoch))
        else:
            self._loop.post(partial(self._loaded, epoch, shard, size, self._clock.monotonic() - begun))

    def _load_failed(self, epoch: int) -> None:
        if epoch != self._epoch or self.state is not ShardState.LOADING:
            return
        self._after_load.refuse_overdue()

        def retry() -> None:
            if epoch == self._epoch and self.state is ShardState.LOADING:
                self._start_load()

        self._loop.call_later(self._load_retry_ms / 1000, retry)
        self._load_retry_ms = min(self._load_retry_ms * 2, _LOAD_RETRY_LAST_MS)

    def _loaded(self, epoch: int, shard: S, size: LogSize, seconds: float) -> None:
        if epoch != self._epoch or self.state is not ShardState.LOADING:
            return
        self._load_retry_ms = _LOAD_RETRY_FIRST_MS
        self.load_seconds, self.loaded_records = seconds, size.total_records
        self.shard = shard
        shard.attach(self)
        self.state = ShardState.ACTIVE
        waiting = self._after_load.drain()
        self._snapshots.loaded(size, self._snapshot_if_due)
        self._execute(shard.activate(), internal(lambda shard, future: None))
        for request in waiting:
            self.submit(request)
        self._on_loaded()

    def _unload(self, error: ErrorCode) -> None:
        """Drops all memory state; waiting requests get `error`."""
        self._epoch += 1
        waiting = [answer[1] for pending in self._pending for answer in pending.reads]
        waiting += [pending.write.request for pending in self._pending if pending.write is not None]
        waiting += [self._blocked.request if self._blocked is not None else None, *self._backlog.drain()]
        self._pending.clear()
        self._blocked = None
        self._snapshots.cancel()
        for request in waiting:
            if request is not None:
                request.refuse(error)
        self.shard.deactivate(error)

    def stop(self) -> None:
        """Refuses all requests from now on, and the parked ones."""
        self._unload(ErrorCode.NOT_COORDINATOR)
        self.state = ShardState.STOPPED
        for request in self._after_load.drain():
            request.refuse(ErrorCode.NOT_COORDINATOR)

    def _snapshot_if_due(self) -> None:
        if self.state is ShardState.ACTIVE and self._log is not None:
            self._snapshots.start_if_due(self.shard, self._log)


def _client_error(error: ErrorCode) -> ErrorCode:
    """The error that clients get for an append that failed with `error`."""
    if error in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return _APPEND_ERRORS.get(error, error)
