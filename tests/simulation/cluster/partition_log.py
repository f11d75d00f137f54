"""The log of a led partition, as thin as it can be: the real one is the business of the other simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.storage.manifest import tails
from kbroker.storage.manifest.leadership import Mode
from kbroker.storage.manifest.partition_state import PartitionState
from tests.simulation.cluster.records import Entry, LogState, Place, named

if TYPE_CHECKING:
    from kbroker.cluster.protocol.led_partition import LedPartition
    from tests.simulation.cluster.clients import Waiter


class PartitionLog:
    """A partition that a process leads, under one leader epoch. `state` is that at its end."""

    def __init__(self, led: LedPartition, row: PartitionState, tail: list[Entry]) -> None:
        self.led = led
        self.place: Place = (row.topic_id, row.partition)
        self.base = tails.first_offset(row, tail)
        self.entries = tail = [entry for entry in tail if entry.offset >= self.base]  # from `base` on
        self.sent = self.base  # windows are cut up to here
        self.follows = row.end_offset  # the row's end once they are committed
        self.state = LogState.of_row(row).after(tail)
        # What the tail has may have been acknowledged from the log.
        self.high_watermark = self.end if row.mode is not Mode.OBJECT else self.base
        self.waiters: dict[int, list[Waiter]] = {}

    def __repr__(self) -> str:
        return named(self.place)

    @property
    def end(self) -> int:
        """End offset."""
        return self.base + len(self.entries)

    def entry(self, offset: int) -> Entry:
        """One that was appended here, or found in the tail."""
        return self.entries[offset - self.base]

    def append(self, entry: Entry) -> None:
        """Adds the next entry."""
        self.entries.append(entry)
        self.state = self.state.after((entry,))

    def wait(self, offset: int, waiter: Waiter) -> None:
        """`waiter` is acknowledged once the high watermark is above `offset`."""
        self.waiters.setdefault(offset, []).append(waiter)
