"""A transaction coordinator that runs by hand: a manual clock, logs in memory, and partitions that take markers."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from typing import Any

from kbroker._fast.records.records import build_batch
from kbroker.clock import ManualClock
from kbroker.coordinator.runtime.key_partition import group_partition
from kbroker.coordinator.runtime.result import Marker
from kbroker.coordinator.transaction.add_partitions import PartitionsRequest
from kbroker.coordinator.transaction.admin import ListFilter
from kbroker.coordinator.transaction.config import TransactionConfig
from kbroker.coordinator.transaction.coordinator import TransactionCoordinator
from kbroker.coordinator.transaction.end import EndRequest
from kbroker.coordinator.transaction.init_producer_id import InitRequest
from kbroker.coordinator.transaction.records import encode_record
from kbroker.coordinator.transaction.state import ProducerIdentity, Transaction, TransactionRecord
from kbroker.errors import ErrorCode, KafkaError
from tests.unit.coordinator.coordinator_fakes import HandExecutor, MemoryLog, MemoryTopic

A, B, C = ("t", 0), ("t", 1), ("u", 0)


class MarkedPartitions:
    """The ends of transactions in partitions. `hold` keeps them from becoming durable until `release`."""

    def __init__(self) -> None:
        self.durable: list[tuple[tuple[str, int], Marker]] = []
        self.hold = False
        self.missing: set[tuple[str, int]] = set()  # their leaders do not know them
        self.deleted: set[tuple[str, int]] = set()  # the coordinator knows that they were deleted
        self.errors: dict[tuple[str, int], deque[ErrorCode]] = {}
        self.asked = 0
        self.coordinator_epochs: dict[tuple[tuple[str, int], int], int] = {}  # highest, by partition and producer id
        self._waiting: deque[tuple[tuple[str, int], Marker, Future[ErrorCode]]] = deque()

    def write(self, topic: str, index: int, marker: Marker) -> Future[ErrorCode]:
        partition = (topic, index)
        answer: Future[ErrorCode] = Future()
        self.asked += 1
        if self.errors.get(partition):
            answer.set_result(self.errors[partition].popleft())
        elif partition in self.missing:
            answer.set_result(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif marker.coordinator_epoch < self.coordinator_epochs.get((partition, marker.producer_id), -1):
            answer.set_result(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
        else:
            self.coordinator_epochs[partition, marker.producer_id] = marker.coordinator_epoch
            self._waiting.append((partition, marker, answer))
            if not self.hold:
                self.release()
        return answer

    def is_deleted(self, topic: str, index: int) -> bool:
        return (topic, index) in self.deleted

    def release(self, count: int | None = None) -> None:
        """Makes markers durable, oldest first."""
        while self._waiting and count != 0:
            partition, marker, answer = self._waiting.popleft()
            self.durable.append((partition, marker))
            answer.set_result(ErrorCode.NONE)
            count = None if count is None else count - 1

    def crash(self) -> None:
        """Drops what is not durable."""
        self._waiting.clear()

    def at(self, partition: tuple[str, int]) -> list[tuple[int, int, bool]]:
        """(producer id, epoch, commit) of the partition's markers."""
        return [
            (marker.producer_id, marker.producer_epoch, marker.commit)
            for where, marker in self.durable
            if where == partition
        ]


class CountedIds:
    """Producer ids from 1000 on; `dry` makes the next ones wait for `claim`."""

    def __init__(self, first: int = 1000) -> None:
        self.next = first
        self.dry = False
        self._waiting: list[Future[int]] = []

    def take(self) -> int | None:
        if self.dry:
            return None
        self.next += 1
        return self.next - 1

    def take_later(self) -> Future[int]:
        self._waiting.append(Future())
        return self._waiting[-1]

    def claim(self, error: ErrorCode | None = None) -> None:
        """Completes waiting requests, with ids or without."""
        waiting, self._waiting = self._waiting, []
        self.dry = self.dry and error is not None
        for future in waiting:
            if error is None:
                future.set_result(self.next)
                self.next += 1
            else:
                future.set_exception(KafkaError(error))


class TransactionBench:
    """One coordinator and shortcuts for its clients, all of transactional id "x" unless said otherwise."""

    def __init__(
        self,
        logs: list[MemoryLog] | None = None,
        *,
        has_topic: bool = True,
        clock: ManualClock | None = None,
        markers: MarkedPartitions | None = None,
        ids: CountedIds | None = None,
        leader_epoch: int = 7,
        **config: Any,
    ) -> None:
        self.settings: dict[str, Any] = {"state_log_partitions": 1, **config}
        self.clock = clock or ManualClock()
        self.executor = HandExecutor()
        self.logs = logs or [MemoryLog() for _ in range(self.settings["state_log_partitions"])]
        self.state_topic = MemoryTopic(self.logs, exists=has_topic, leader_epoch=leader_epoch)
        self.markers = markers or MarkedPartitions()
        self.ids = ids or CountedIds()
        self.coordinator = TransactionCoordinator(
            TransactionConfig(**self.settings),
            self.clock,
            topic=self.state_topic,
            markers=self.markers,
            producer_ids=self.ids,
            newest_leader_epoch=lambda: leader_epoch,
            executor=self.executor,
        )

    def start(self) -> TransactionBench:
        self.coordinator.start_by_hand()
        self.run()
        return self

    def restarted(self) -> TransactionBench:
        """A new broker on the durable part of the logs, at the same time."""
        self.markers.crash()
        return TransactionBench(
            [log.restarted() for log in self.logs],
            has_topic=self.state_topic.exists,
            clock=self.clock,
            markers=self.markers,
            ids=self.ids,
            leader_epoch=max(self.state_topic.leader_epochs.values()) + 1,
            **self.settings,
        ).start()

    def elect(self, leader_epoch: int, partition: int = 0) -> None:
        """This broker leads a partition of the state topic."""
        self.state_topic.leader_epochs[partition] = leader_epoch
        self.coordinator.shards.elected(partition, leader_epoch)
        self.run()

    def resign(self, leader_epoch: int | None, partition: int = 0) -> None:
        """This broker does not lead it any more."""
        self.coordinator.shards.resigned(partition, leader_epoch)
        self.run()

    @property
    def log(self) -> MemoryLog:
        return self.logs[0]

    def run(self) -> None:
        self.coordinator.loop.run_pending()

    def advance(self, seconds: float) -> None:
        """Advances the clock; each timer fires at its own time."""
        target = self.clock.monotonic() + seconds
        self.run()
        while True:
            step = self.coordinator.loop.seconds_to_next_timer()
            if self.clock.monotonic() + step > target:
                break
            self.clock.advance(step + 1e-6)
            self.run()
        self.clock.advance(max(0.0, target - self.clock.monotonic()))
        self.run()

    def given(self, transaction: Transaction, transactional_id: str = "x") -> None:
        """Puts a record into the log of a coordinator that is not started."""
        key, value = encode_record(TransactionRecord(transactional_id, transaction))
        log = self.logs[group_partition(transactional_id, len(self.logs))]
        log.append(build_batch([(key, value, 0, None)]), 0, lambda error: None)

    def now(self, transactional_id: str = "x") -> Transaction | None:
        """The state as of all appends."""
        return self.coordinator.shards.runtime(transactional_id).shard.transactions.get(transactional_id)

    # -- clients -------------------------------------------------------------------------------------------------

    def init_later(
        self, expected: tuple[int, int] | None = None, *, timeout_ms: int = 60_000, id: str = "x"
    ) -> Future[ProducerIdentity]:
        future = self.coordinator.init_producer_id(InitRequest(id, timeout_ms, *(expected or (-1, -1))))
        self.run()
        return future

    def init(self, expected: tuple[int, int] | None = None, **keywords: Any) -> ProducerIdentity:
        return self.init_later(expected, **keywords).result(0)

    def add_later(
        self, producer: tuple[int, int], *partitions: tuple[str, int], version: int = 0, id: str = "x"
    ) -> Future[ErrorCode]:
        request = PartitionsRequest(id, *producer, frozenset(partitions or {A}), version)
        future = self.coordinator.add_partitions(request)
        self.run()
        return future

    def add(self, producer: tuple[int, int], *partitions: tuple[str, int], **keywords: Any) -> ErrorCode:
        return self.add_later(producer, *partitions, **keywords).result(0)

    def verify_later(
        self, producer: tuple[int, int], *partitions: tuple[str, int], add: bool = False, id: str = "x"
    ) -> Future[dict[tuple[str, int], ErrorCode]]:
        future = self.coordinator.verify_partitions(id, *producer, list(partitions or [A]), add=add)
        self.run()
        return future

    def verify(
        self, producer: tuple[int, int], *partitions: tuple[str, int], **keywords: Any
    ) -> dict[tuple[str, int], ErrorCode]:
        return self.verify_later(producer, *partitions, **keywords).result(0)

    def end_later(
        self, producer: tuple[int, int], commit: bool, *, version: int = 0, id: str = "x"
    ) -> Future[ProducerIdentity]:
        future = self.coordinator.end_transaction(EndRequest(id, *producer, commit, version))
        self.run()
        return future

    def end(self, producer: tuple[int, int], commit: bool, **keywords: Any) -> ProducerIdentity:
        future = self.end_later(producer, commit, **keywords)
        if not future.done():
            self.advance(0.11)  # it waits so long for a transaction that is being completed
        return future.result(0)

    def describe(self, id: str = "x") -> Any:
        future = self.coordinator.describe(id)
        self.run()
        return future.result(0)

    def list(self, **filters: Any) -> Any:
        future = self.coordinator.list(ListFilter(**filters))
        self.run()
        return future.result(0)
