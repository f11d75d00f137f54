"""The records of a partition that a share group works on: from its start offset to the end of what it has read.

    completed | start ... runs of records: available, acquired, acknowledged, archived ... end | not read yet

Kafka's SPSO is `start`, its SPEO the offset before `end`. A run is consecutive records with the same state; it is split
where an acquisition or an acknowledgement ends within it, and neighbours with the same state are joined again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from operator import attrgetter

from kbroker.coordinator.share_state.store import StateBatch

_FIRST = attrgetter("first")


class Delivery(IntEnum):
    """Kafka's ids of delivery states."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4

    @property
    def is_final(self) -> bool:
        """True if the record is not delivered again."""
        return self in (Delivery.ACKNOWLEDGED, Delivery.ARCHIVED)


@dataclass(slots=True)
class Run:
    """Records `first` to `last`."""

    first: int
    last: int
    state: Delivery
    count: int  # deliveries so far
    member: str | None = None  # which holds them while they are acquired
    lock_ends: float = 0.0  # monotonic seconds, while they are acquired
    # While a write makes an acknowledgement durable: its number, and the state to restore if it fails.
    write: int = 0
    before: Run | None = None
    unsaved: bool = False  # changed by the broker itself: goes with the next write

    @property
    def settled(self) -> bool:
        """True if no acknowledgement of it is being written."""
        return self.write == 0

    @property
    def is_available(self) -> bool:
        """True if it can be acquired."""
        return self.state is Delivery.AVAILABLE and self.write == 0

    @property
    def is_done(self) -> bool:
        """True if its state is final."""
        return self.state.is_final and self.write == 0

    def acquire(self, member: str, lock_ends: float) -> None:
        """Delivers it to a member. That needs no write: until it is acknowledged the durable state holds."""
        self.state, self.member, self.lock_ends = Delivery.ACQUIRED, member, lock_ends
        self.count += 1
        self.unsaved = False

    def attributes(self) -> tuple[Delivery, int, str | None, float, int, bool]:
        """All but its offsets."""
        return (self.state, self.count, self.member, self.lock_ends, self.write, self.unsaved)


class Window:
    """Runs without gaps between `start` and `end`. The bound on held records bounds the number of runs."""

    def __init__(self, start: int, batches: Sequence[StateBatch] = ()) -> None:
        """From durable state: records between its batches were acquired and never acknowledged."""
        self.start = start
        self.runs: list[Run] = []
        position = start
        for batch in batches:
            if batch.first_offset > position:
                self.runs.append(Run(position, batch.first_offset - 1, Delivery.AVAILABLE, 0))
            state = Delivery(batch.delivery_state)
            self.runs.append(Run(batch.first_offset, batch.last_offset, state, batch.delivery_count))
            position = batch.last_offset + 1
        self.tidy()

    @property
    def end(self) -> int:
        """The offset after the last record that was read."""
        return self.runs[-1].last + 1 if self.runs else self.start

    def __len__(self) -> int:
        return self.end - self.start

    def next_available(self, offset: int) -> int | None:
        """The first record at or above `offset` that can be acquired."""
        for run in self.runs[self._index(offset) :]:
            if run.is_available and run.last >= offset:
                return max(run.first, offset)
        return None

    # -- cutting -------------------------------------------------------------------------------------------------

    def between(self, first: int, last: int) -> Iterator[Run]:
        """The runs that overlap [first, last], as they are."""
        for run in self.runs[self._index(first) :]:
            if run.first > last:
                return
            if run.last >= first:
                yield run

    def cut(self, first: int, last: int) -> list[Run]:
        """The runs of [first, last] within the window, split at both ends."""
        self._cut_at(first)
        self._cut_at(last + 1)
        return [run for run in self.between(first, last) if run.first >= first and run.last <= last]

    def append(self, run: Run) -> None:
        """Adds records that were read, at the end."""
        assert run.first == self.end
        self.runs.append(run)

    def _index(self, offset: int) -> int:
        return max(0, bisect_right(self.runs, offset, key=_FIRST) - 1)

    def _cut_at(self, offset: int) -> None:
        index = self._index(offset)
        if index >= len(self.runs):
            return
        run = self.runs[index]
        if run.first < offset <= run.last:
            assert run.settled, "a run is not cut while a write says what becomes of it"
            self.runs.insert(index + 1, replace(run, first=offset))
            run.last = offset - 1

    # -- moving on -----------------------------------------------------------------------------------------------

    def tidy(self) -> None:
        """Moves the start over completed records, and joins neighbours with the same state."""
        done = 0
        for run in self.runs:
            if not run.is_done:
                break
            self.start = run.last + 1
            done += 1
        del self.runs[:done]
        kept: list[Run] = []
        for run in self.runs:
            last = kept[-1] if kept else None
            if last is not None and last.settled and last.attributes() == run.attributes():
                last.last = run.last
            else:
                kept.append(run)
        self.runs = kept

    def move_start(self, offset: int) -> None:
        """The log starts at `offset` now: records below it are dropped in any state."""
        if offset <= self.start:
            return
        self.runs = [run for run in self.runs if run.last >= offset]
        if self.runs and self.runs[0].first < offset:
            self.runs[0].first = offset
        self.start = offset
        self.tidy()
