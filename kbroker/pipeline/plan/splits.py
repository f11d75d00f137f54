"""What a task reads, as small, plain data: pickled on the driver, unpickled in a worker.

A split is a list of shares; a share is a range of offsets of one topic partition, either in objects, which the split
names, or (tail) in the broker.
"""

from __future__ import annotations

from dataclasses import dataclass

from kbroker.limits import MIB
from kbroker.pipeline.plan.planned_objects import PackedObjects, PlannedObject
from kbroker.storage.formats.kfs_keys import SEGMENT_SUFFIX

OBJECT_COST_BYTES = 256 * 1024  # what opening one more object costs, as bytes
ROW_COST_BYTES = 16  # of a row that is counted without reading it
WHOLE_BYTES = 1 * MIB  # a smaller image is read in one GET, with its index


@dataclass(frozen=True, slots=True)
class Share:
    """Offsets [first, stop) of one topic partition, in the split's objects numbered [low, high); none for a tail."""

    topic: str
    topic_id: bytes
    partition: int
    first: int
    stop: int
    low: int = 0
    high: int = 0
    aborted: tuple[tuple[int, int, int], ...] = ()  # producer id, first offset, last offset
    tail: bool = False
    cost_bytes: int = 0

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.topic}-{self.partition}"

    def aborted_by_producer(self) -> dict[int, list[tuple[int, int]]]:
        """First and last offsets of aborted transactions by producer id."""
        found: dict[int, list[tuple[int, int]]] = {}
        for producer_id, first, last in self.aborted:
            found.setdefault(producer_id, []).append((first, last))
        return found


@dataclass(frozen=True, slots=True)
class Split:
    """One task's work. Rows outside the timestamps (ms, inclusive) may be left out."""

    cluster_id: str
    shares: tuple[Share, ...]
    lowest_timestamp: int
    highest_timestamp: int
    objects: PackedObjects | None = None  # None where all shares are tails

    def objects_of(self, share: Share) -> list[PlannedObject]:
        """The objects of one of its shares, in order."""
        return self.objects.between(share.low, share.high) if self.objects is not None else []


def is_read_whole(one: PlannedObject) -> bool:
    """Whether a task that needs some of an object reads all of it; a segment has its index elsewhere."""
    return one.length <= WHOLE_BYTES or one.key.endswith(SEGMENT_SUFFIX)
