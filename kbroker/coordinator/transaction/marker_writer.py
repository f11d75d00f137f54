"""Ends decided transactions in their partitions: writes the markers and retries until all are durable."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Protocol

from kbroker.coordinator.runtime.result import Marker
from kbroker.coordinator.runtime.shard import Scheduler
from kbroker.coordinator.transaction.marker_answers import counts_as_written, is_passing
from kbroker.coordinator.transaction.state import TopicPartition, Transaction, TransactionState
from kbroker.errors import ErrorCode

logger = logging.getLogger(__name__)


class Markers(Protocol):
    """The partitions in which transactions end."""

    def write(self, topic: str, index: int, marker: Marker) -> Future[ErrorCode]:
        """Appends a marker; NONE when it is durable. Called by the loop thread, completed by any thread."""
        ...

    def is_deleted(self, topic: str, index: int) -> bool:
        """Whether this broker's own copy of the metadata says that the partition was deleted with its topic."""
        ...


_RETRY_FIRST_MS = 5
_RETRY_LAST_MS = 5_000


class _Attempt:
    """The markers of one transaction that are not known to be durable."""

    __slots__ = ("failed", "left", "marker", "prepared", "retry_ms", "retrying")

    def __init__(self, prepared: Transaction, marker: Marker) -> None:
        self.prepared = prepared
        self.marker = marker
        self.left = set(prepared.partitions)
        self.failed: set[TopicPartition] = set()
        self.retry_ms = _RETRY_FIRST_MS
        self.retrying = False


class MarkerWriter:
    """The unfinished transactions of one shard. Loop thread only.

    Its markers carry the leader epoch of the shard's partition as their coordinator epoch. `post` queues a call for the
    loop thread from any thread; `on_written` is called when all markers are durable.
    """

    def __init__(
        self,
        markers: Markers,
        post: Callable[[Callable[[], None]], None],
        on_written: Callable[[str, Transaction], None],
    ) -> None:
        self._markers = markers
        self._post = post
        self._on_written = on_written
        self._scheduler: Scheduler | None = None
        self._attempts: dict[str, _Attempt] = {}

    def __len__(self) -> int:
        return len(self._attempts)

    def attach(self, scheduler: Scheduler) -> None:
        """Sets the timers to use."""
        self._scheduler = scheduler

    def begin(self, transactional_id: str, prepared: Transaction) -> None:
        """Writes the markers of a transaction whose Prepare* is durable."""
        assert self._scheduler is not None
        marker = Marker(
            prepared.producer_id,
            prepared.producer_epoch,
            self._scheduler.leader_epoch,
            prepared.state is TransactionState.PREPARE_COMMIT,
        )
        attempt = self._attempts[transactional_id] = _Attempt(prepared, marker)
        if attempt.left:
            self._send(transactional_id, attempt, sorted(attempt.left))
        else:
            self._finish(transactional_id, attempt)

    def stop(self) -> None:
        """Drops all; later answers are ignored."""
        self._attempts.clear()

    def _send(self, transactional_id: str, attempt: _Attempt, partitions: Iterable[TopicPartition]) -> None:
        for topic, index in partitions:
            try:
                answer = self._markers.write(topic, index, attempt.marker)
            except Exception:
                logger.exception("%s: no marker for %s-%d", transactional_id, topic, index)
                self._fail(transactional_id, attempt, (topic, index))
            else:
                answer.add_done_callback(partial(self._answered_any_thread, transactional_id, attempt, (topic, index)))

    def _answered_any_thread(
        self, transactional_id: str, attempt: _Attempt, partition: TopicPartition, answer: Future[ErrorCode]
    ) -> None:
        failure = answer.exception()
        error = ErrorCode.UNKNOWN_SERVER_ERROR if failure is not None else answer.result()
        self._post(partial(self._answered, transactional_id, attempt, partition, error))

    def _answered(self, transactional_id: str, attempt: _Attempt, partition: TopicPartition, error: ErrorCode) -> None:
        if self._attempts.get(transactional_id) is not attempt:
            return
        if not counts_as_written(error, partial(self._markers.is_deleted, *partition)):
            if not is_passing(error) and attempt.retry_ms == _RETRY_FIRST_MS:
                logger.error("%s: no marker for %s-%d yet: %s", transactional_id, *partition, error.name)
            self._fail(transactional_id, attempt, partition)
            return
        if error is ErrorCode.INVALID_PRODUCER_EPOCH:
            logger.warning("%s: %s-%d has a later epoch of the producer", transactional_id, *partition)
        attempt.left.discard(partition)
        if not attempt.left:
            self._finish(transactional_id, attempt)

    def _finish(self, transactional_id: str, attempt: _Attempt) -> None:
        del self._attempts[transactional_id]
        self._on_written(transactional_id, attempt.prepared)

    def _fail(self, transactional_id: str, attempt: _Attempt, partition: TopicPartition) -> None:
        attempt.failed.add(partition)
        if attempt.retrying:
            return
        attempt.retrying = True

        def retry() -> None:
            if self._attempts.get(transactional_id) is attempt:
                failed, attempt.failed = sorted(attempt.failed), set()
                attempt.retrying = False
                self._send(transactional_id, attempt, failed)

        assert self._scheduler is not None
        self._scheduler.schedule(attempt.retry_ms, retry)
        attempt.retry_ms = min(attempt.retry_ms * 2, _RETRY_LAST_MS)
