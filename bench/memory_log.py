"""A coordinator on logs in memory, run by hand: its own cost, without the write-ahead log's."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

from kbroker._fast.records.records import build_control_batch, parse_batch_header
from kbroker.clock import ManualClock
from kbroker.coordinator.group.config import GroupConfig
from kbroker.coordinator.group.coordinator import GroupCoordinator
from kbroker.limits import MIB
from tests.unit.coordinator.coordinator_fakes import MemoryTopic

READ_BYTES = 4 * MIB


class MemoryLog:
    """Durable at once. Reads as an internal log does: in blocks."""

    def __init__(self) -> None:
        self._batches: list[bytes] = []
        self.start_offset = 0
        self.next_offset = 0

    @property
    def bytes_held(self) -> int:
        return sum(len(batch) for batch in self._batches)

    def append(self, batch: bytes, now_ms: int, on_durable: Callable[[int], None]) -> int:
        base_offset = self.next_offset
        self._batches.append(struct.pack(">q", base_offset) + batch[8:])
        self.next_offset += parse_batch_header(batch).record_count
        on_durable(0)
        return base_offset

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        now_ms: int,
        on_durable: Callable[[int], None],
    ) -> int:
        marker = build_control_batch(
            int(commit),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=now_ms,
        )
        return self.append(marker, now_ms, on_durable)

    def advance_start(self, offset: int) -> None:
        self.start_offset = offset
        self._batches = [batch for batch in self._batches if parse_batch_header(batch).next_offset > offset]

    def read_all(self) -> Iterator[bytes | bytearray]:
        piece = bytearray()
        for batch in self._batches:
            piece += batch
            if len(piece) >= READ_BYTES:
                yield bytes(piece)
                piece.clear()
        yield bytes(piece)


class BlockLog(MemoryLog):
    """Keeps batches in the blocks in which they are read, so that reading them costs nothing here; never shortened."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks = [bytearray()]

    @property
    def bytes_held(self) -> int:
        return sum(len(block) for block in self._blocks)

    def append(self, batch: bytes, now_ms: int, on_durable: Callable[[int], None]) -> int:
        base_offset = self.next_offset
        if len(self._blocks[-1]) >= READ_BYTES:
            self._blocks.append(bytearray())
        self._blocks[-1] += struct.pack(">q", base_offset)
        self._blocks[-1] += memoryview(batch)[8:]
        self.next_offset += parse_batch_header(batch).record_count
        on_durable(0)
        return base_offset

    def advance_start(self, offset: int) -> None:
        self.start_offset = offset

    def read_all(self) -> Iterator[bytes | bytearray]:
        yield from self._blocks


class NowExecutor(Executor):
    """Runs work at once."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        fn(*args, **kwargs)
        return Future()


def coordinator_on(logs: list[MemoryLog], executor: Executor | None = None) -> GroupCoordinator:
    """A started coordinator; its loop is run by the caller."""
    coordinator = GroupCoordinator(
        GroupConfig(initial_rebalance_delay_ms=0),
        ManualClock(),
        topic=MemoryTopic(logs),
        topic_exists=lambda topic, partition: True,
        deleted_topics=frozenset,
        executor=executor or NowExecutor(),
    )
    coordinator.start_by_hand()
    coordinator.loop.run_pending()
    return coordinator
