"""Fakes for share partitions: states in memory that can fail or wait, and logs made of record batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from kbroker._fast.partition.aborted_transactions import AbortedTransactions
from kbroker._fast.records.records import build_batch, build_control_batch, parse_batch_header
from kbroker._fast.wal.commit import WaitList
from kbroker.coordinator.share_state.batches import combine
from kbroker.coordinator.share_state.store import SharePartitionState, StateBatch
from kbroker.errors import ErrorCode, KafkaError

TOPIC = bytes(range(16))
Key = tuple[str, bytes, int]


class MemoryStates:
    """A ShareStateStore in memory. `hold` keeps writes waiting until `release`; `failures` are for the next ones."""

    def __init__(self) -> None:
        self.states: dict[Key, SharePartitionState] = {}
        self.hold = False
        self.failures: deque[ErrorCode] = deque()
        self.writes = 0
        self._waiting: deque[Callable[[ErrorCode | None], None]] = deque()

    def initialize(
        self, group_id: str, topic_id: bytes, partition: int, state_epoch: int, start_offset: int
    ) -> Future[None]:
        self.states[group_id, topic_id, partition] = SharePartitionState(state_epoch, -1, start_offset, 0, ())
        return _answered(None)

    def read(self, group_id: str, topic_id: bytes, partition: int) -> Future[SharePartitionState | None]:
        return _answered(self.states.get((group_id, topic_id, partition)))

    def write(
        self,
        group_id: str,
        topic_id: bytes,
        partition: int,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> Future[None]:
        done: Future[None] = Future()
        key = (group_id, topic_id, partition)

        def finish(error: ErrorCode | None) -> None:
            if error is not None:
                done.set_exception(KafkaError(error))
                return
            old = self.states[key]
            merged = combine(old.batches, batches, start_offset)
            self.states[key] = SharePartitionState(
                state_epoch, leader_epoch, start_offset, delivery_complete_count, merged
            )
            done.set_result(None)

        self.writes += 1
        self._waiting.append(finish)
        if not self.hold:
            self.release()
        return done

    def delete(self, group_id: str, topic_id: bytes, partition: int) -> Future[None]:
        self.states.pop((group_id, topic_id, partition), None)
        return _answered(None)

    def release(self) -> None:
        """Completes waiting writes."""
        while self._waiting:
            self._waiting.popleft()(self.failures.popleft() if self.failures else None)


class Producers:
    """The part of a partition's producer state that is needed."""

    def __init__(self) -> None:
        self.aborted = AbortedTransactions()


class BatchLog:
    """A partition in memory: the part of kbroker._fast.partition.partition.Partition that share groups use."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, bytes]] = []
        self.log_start_offset = 0
        self.leader_epoch = 1
        self.cold_below = 0  # objects alone have what lies below
        self.stable: int | None = None  # the last stable offset, if it is not the end
        self.waiters = WaitList()
        self.producers = Producers()
        self.log = self
        self.reads = 0
        self.fetched_bytes = self.fetched_records = 0

    @property
    def end(self) -> int:
        return parse_batch_header(self.batches[-1][1]).next_offset if self.batches else 0

    def high_watermark(self) -> int:
        return self.end

    def last_stable_offset(self) -> int:
        return self.end if self.stable is None else self.stable

    def append(self, records: int = 1, *, at: int | None = None, size: int = 1, **header: Any) -> int:
        """One batch; returns its base offset."""
        base = self.end if at is None else at
        batch = build_batch([(None, b"x" * size, 0, None)] * records, base_offset=base, **header)
        self.batches.append((base, batch))
        return base

    def end_transaction(self, producer_id: int, first: int, commit: bool) -> None:
        """A marker; the transaction began at `first`."""
        marker = build_control_batch(
            int(commit), producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0,
            base_offset=self.end,
        )  # fmt: skip
        if not commit:
            self.producers.aborted.restore([*self.producers.aborted.entries, (producer_id, first, self.end, self.end)])
        self.batches.append((self.end, marker))

    def count_fetched(self, size: int, records: int) -> None:
        self.fetched_bytes += size
        self.fetched_records += records

    def read_bytes(self, offset: int, upper: int, max_bytes: int) -> bytes | None:
        self.reads += 1
        return None if offset < self.cold_below else self._read(offset, upper, max_bytes)

    def read_objects(self, offset: int, upper: int, max_bytes: int) -> list[memoryview]:
        """The data in objects."""
        found = self._read(offset, upper, max_bytes)
        return [memoryview(found)] if found else []

    def _read(self, offset: int, upper: int, max_bytes: int) -> bytes:
        found = b""
        for _, batch in self.batches:
            header = parse_batch_header(batch)
            if header.next_offset <= offset or header.next_offset > upper:
                continue
            if found and len(found) + len(batch) > max_bytes:
                break
            found += batch
        return found

    def available_bytes(self, offset: int, upper: int, limit: int) -> int:
        return min(limit, len(self._read(offset, upper, limit)))


class Connection:
    """The part of a reactor's Connection that is needed. Its client reads every answer at once, unless stopped."""

    def __init__(self) -> None:
        self.on_closed: Callable[[], object] | None = None
        self.closed = False
        self.unsent_bytes = 0
        self.is_quiet = True

    def close(self) -> None:
        self.closed = True
        if self.on_closed is not None:
            self.on_closed()
            self.on_closed = None


def _answered(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
