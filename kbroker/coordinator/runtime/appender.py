"""Appends what a shard decides to its log, in order, and ends each decision when it is durable.

An append that fails for lack of space is retried for a while, and requests that come meanwhile queue after it. The
queue is bounded in length and in time; requests beyond it are refused with a retriable error.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf

from kbroker._fast.wal.commit import FastAppendWait, FastKafkaError
from kbroker.coordinator.runtime.batches import Batch
from kbroker.coordinator.runtime.config import ShardConfig
from kbroker.coordinator.runtime.event_loop import EventLoop, loop_thread_only
from kbroker.coordinator.runtime.request import Request, RequestQueue, internal
from kbroker.coordinator.runtime.result import Result
from kbroker.errors import ErrorCode
from kbroker.log.internal_log import InternalLog

logger = logging.getLogger(__name__)

_RETRY_FIRST_MS = 2
_RETRY_LAST_MS = 100

# Zombies, records after the end of their transaction, no room for a producer id, the end of the leadership: the log
# refuses them by design.
_EXPECTED = (
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)

# The errors that clients get when an append fails (Kafka's mapping for coordinators).
_CLIENT_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def client_error(error: ErrorCode) -> ErrorCode:
    """What clients are told when the log refuses or fails an append with this error."""
    return _CLIENT_ERRORS.get(error, error)


OnAppend = Callable[[int, int], None]  # bytes, records


@dataclass(slots=True)
class Write:
    """A decision to append."""

    result: Result
    request: Request | None
    batches: deque[Batch]  # still to append
    on_append: OnAppend | None = None
    give_up_at: float = 0.0  # monotonic seconds
    retry_ms: int = _RETRY_FIRST_MS
    appended: bool = False  # some of its batches are in the log


@dataclass(slots=True)
class _Pending:
    """An appended batch that is not durable yet, and the reads that wait for it."""

    write: Write | None  # None unless the batch is the write's last
    reads: list[tuple[Result, Request | None]] = field(default_factory=list)


class Appender:
    """The appends of one shard. Loop thread only.

    `run` runs a request of the backlog. `apply` is called with each batch that was appended, `on_written` when all of a
    write are, with True for a marker. `finish` ends a decision: its records are durable, or (with an error) were not
    appended. `on_lost` is called with the log's error when the log holds only part of what was decided: the shard must
    be loaded again. NOT_LEADER_OR_FOLLOWER: the log takes nothing from this shard any more.
    """

    def __init__(
        self,
        loop: EventLoop,
        config: ShardConfig,
        now_ms: Callable[[], int],
        *,
        run: Callable[[Request], None],
        apply: Callable[[Batch], None],
        finish: Callable[[Result, Request | None, ErrorCode], None],
        on_written: Callable[[bool], None],
        on_lost: Callable[[ErrorCode], None],
    ) -> None:
        self.log: InternalLog | None = None
        self.backlog = RequestQueue(config, loop.monotonic, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._loop = loop
        self._config = config
        self._now_ms = now_ms
        self._run = run
        self._apply = apply
        self._finish = finish
        self._on_written = on_written
        self._on_lost = on_lost
        self._blocked: Write | None = None
        self._pending: deque[_Pending] = deque()
        self._epoch = 0  # grows with each reset; callbacks of an earlier epoch are stale
        self._under_way = 0  # appended batches, also of earlier epochs, that are neither durable nor failed
        self._on_settled: Callable[[], None] | None = None

    @property
    def is_blocked(self) -> bool:
        """True while a write waits for space: requests go to the backlog."""
        return self._blocked is not None

    @loop_thread_only
    def append(self, write: Write) -> None:
        """Appends a decision, or keeps it until there is space."""
        if self._blocked is not None and self._blocked is not write:
            # It follows from the completion of an earlier write: it queues like any other.
            self.backlog.add(internal(lambda shard, future: write.result))
            return
        assert self.log is not None, "a write before the shard was elected"
        try:
            while write.batches:
                self._append_next(self.log, write)
        except FastAppendWait:
            self._wait_for_space(write)
        except FastKafkaError as refused:
            expected = refused.code in _EXPECTED
            logger.log(logging.INFO if expected else logging.ERROR, "%s: append refused: %s", self.log, refused)
            self._give_up(write, ErrorCode(refused.code))
        else:
            was_blocked = self._unblock(write)
            self._on_written(write.result.marker is not None)
            if was_blocked:
                self._run_backlog()

    def when_durable(self, result: Result, request: Request | None) -> None:
        """Finishes the result when all appends so far are durable."""
        if self._pending:
            self._pending[-1].reads.append((result, request))
        else:
            self._finish(result, request, ErrorCode.NONE)

    @property
    def is_settling(self) -> bool:
        """Whether a call of `when_settled` waits."""
        return self._on_settled is not None

    @loop_thread_only
    def when_settled(self, callback: Callable[[], None]) -> None:
        """Calls `callback` when no append is under way, those of before a reset included; not if a reset comes first.

        What becomes durable after a load would be in the log and not in the shard.
        """
        if self._under_way:
            self._on_settled = callback
        else:
            callback()

    @loop_thread_only
    def reset(self) -> list[Request]:
        """Forgets all appends and the backlog; returns the requests that wait for them."""
        self._epoch += 1
        self._on_settled = None
        waiting = [request for pending in self._pending for _, request in pending.reads]
        waiting += [pending.write.request for pending in self._pending if pending.write is not None]
        waiting += [self._blocked.request if self._blocked is not None else None, *self.backlog.drain()]
        self._pending.clear()
        self._blocked = None
        return [request for request in waiting if request is not None]

    def _append_next(self, log: InternalLog, write: Write) -> None:
        batch = write.batches[0]
        pending = _Pending(write if len(write.batches) == 1 else None)
        durable = partial(self._durable_any_thread, self._epoch, pending)
        if batch.marker is not None:
            log.append_marker(*batch.marker, self._now_ms(), durable)
        else:
            log.append(batch.data, self._now_ms(), durable)
        write.batches.popleft()
        write.appended = True
        self._under_way += 1
        self._pending.append(pending)
        self._apply(batch)
        if write.on_append is not None:
            write.on_append(len(batch.data), len(batch.records))

    # -- waiting for space ---------------------------------------------------------------------------------------

    def _wait_for_space(self, write: Write) -> None:
        now = self._loop.monotonic()
        if self._blocked is None:
            self._blocked = write
            write.give_up_at = self._end_of_wait(write.request, now)
        elif now >= write.give_up_at:
            self._give_up(write, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return

        def retry() -> None:
            if self._blocked is write:
                self.append(write)
                if self._blocked is not None:
                    self.backlog.refuse_overdue()

        self._loop.call_later(write.retry_ms / 1000, retry)
        write.retry_ms = min(write.retry_ms * 2, _RETRY_LAST_MS)

    def _end_of_wait(self, request: Request | None, now: float) -> float:
        """Until when the write of `request` waits: forever if no client would retry it."""
        if request is not None and request.is_internal:
            return inf
        waited = 0.0 if request is None else request.give_up_at
        return waited or now + self._config.append_timeout_ms / 1000

    def _give_up(self, write: Write, error: ErrorCode) -> None:
        if write.appended or error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            # The log has a part of it, or takes no more: the pending state is not what the log will say.
            if write.request is not None:
                write.request.refuse(client_error(error))
            self._on_lost(error)
            return
        was_blocked = self._unblock(write)
        self._finish(write.result, write.request, client_error(error))
        if was_blocked:
            self._run_backlog()

    def _unblock(self, write: Write) -> bool:
        """Ends the wait of a write; False if it did not wait."""
        if self._blocked is not write:
            return False
        self._blocked = None
        return True

    def _run_backlog(self) -> None:
        while self.backlog and self._blocked is None:
            self._run(self.backlog.pop())

    # -- durability ----------------------------------------------------------------------------------------------

    def _durable_any_thread(self, epoch: int, pending: _Pending, error: int) -> None:
        self._loop.post(partial(self._durable, epoch, pending, error))

    def _durable(self, epoch: int, pending: _Pending, error: int) -> None:
        self._under_way -= 1
        if epoch == self._epoch:
            self._end(pending, error)
        elif self._on_settled is not None and not self._under_way:
            settled, self._on_settled = self._on_settled, None
            settled()

    def _end(self, pending: _Pending, error: int) -> None:
        if error:
            level = logging.INFO if error == ErrorCode.NOT_LEADER_OR_FOLLOWER else logging.ERROR
            logger.log(level, "%s: append failed with error %d", self.log, error)
            self._on_lost(ErrorCode(error))
            return
        first = self._pending.popleft()
        assert first is pending, "appends became durable out of order"
        if pending.write is not None:
            self._finish(pending.write.result, pending.write.request, ErrorCode.NONE)
        for read, reader in pending.reads:
            self._finish(read, reader, ErrorCode.NONE)
