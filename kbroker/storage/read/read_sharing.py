"""Positions of the readers of each partition, so that the cache keeps what they have still to read.

Ten consumers that start together drift apart. What the first has read must stay in the cache until the last has passed,
and nothing else need stay. So the cache asks how far the nearest reader is from a range of offsets.

A fetch does not name its consumer: a reader is the offset where it continues, and is dropped when nothing was read
there for ACTIVE_SECONDS, which is longer than a client pauses while its own queue is full.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Hashable
from typing import NamedTuple

from kbroker.clock import Clock, SystemClock

ACTIVE_SECONDS = 2.0
PARTITIONS_MAX = 1_000
POSITIONS_MAX = 1_000  # in one partition


class OffsetRange(NamedTuple):
    """Offsets [base_offset, end_offset) of a partition."""

    partition: Hashable
    base_offset: int
    end_offset: int


class _Position:
    __slots__ = ("moved_at", "readers")

    def __init__(self) -> None:
        self.moved_at = 0.0
        self.readers = 0


class _Readers:
    """Readers of one partition by the offset where each continues, least recently moved first."""

    __slots__ = ("_offsets", "_positions")

    def __init__(self) -> None:
        self._positions: OrderedDict[int, _Position] = OrderedDict()
        self._offsets: list[int] = []  # the same, sorted

    def move(self, offset: int, next_offset: int, now: float) -> None:
        left = self._leave(offset)
        position = self._positions.get(next_offset)
        if position is None:
            position = self._positions[next_offset] = _Position()
            insort(self._offsets, next_offset)
        # A reader that was not at `offset` may repeat a fetch whose answer came too late.
        if left or not position.readers:
            position.readers += 1
        position.moved_at = now
        self._positions.move_to_end(next_offset)

    def _leave(self, offset: int) -> bool:
        position = self._positions.get(offset)
        if position is None:
            return False
        position.readers -= 1
        if position.readers <= 0:
            self._drop(offset)
        return True

    def forget(self, oldest: float) -> None:
        """Drops positions that have not moved since `oldest`, and those above POSITIONS_MAX."""
        while self._positions:
            offset, position = next(iter(self._positions.items()))
            if len(self._positions) <= POSITIONS_MAX and position.moved_at >= oldest:
                return
            self._drop(offset)

    def nearest_before(self, end_offset: int, oldest: float) -> int | None:
        """The highest position below `end_offset` that has moved since `oldest`."""
        for index in range(bisect_left(self._offsets, end_offset) - 1, -1, -1):
            offset = self._offsets[index]
            if self._positions[offset].moved_at >= oldest:
                return offset
        return None

    def _drop(self, offset: int) -> None:
        del self._positions[offset]
        del self._offsets[bisect_left(self._offsets, offset)]


class ReaderPositions:
    """Positions of readers by partition. Thread-safe: one lock, held for no more than a look-up."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._partitions: OrderedDict[Hashable, _Readers] = OrderedDict()

    def moved(self, partition: Hashable, offset: int, next_offset: int) -> None:
        """A reader at `offset` has got what lies before `next_offset`."""
        now = self._clock.monotonic()
        with self._lock:
            readers = self._partitions.get(partition)
            if readers is None:
                readers = self._partitions[partition] = _Readers()
            self._partitions.move_to_end(partition)
            readers.move(offset, next_offset, now)
            readers.forget(now - ACTIVE_SECONDS)
            while len(self._partitions) > PARTITIONS_MAX:
                self._partitions.popitem(last=False)

    def distance(self, offsets: OffsetRange) -> int | None:
        """Offsets between the nearest reader that will come to this range and its start; None when none will."""
        with self._lock:
            readers = self._partitions.get(offsets.partition)
            if readers is None:
                return None
            position = readers.nearest_before(offsets.end_offset, self._clock.monotonic() - ACTIVE_SECONDS)
            return None if position is None else max(0, offsets.base_offset - position)
