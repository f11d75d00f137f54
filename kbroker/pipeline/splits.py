"""What a task reads: plain data, small, pickled on the driver and read in a worker.

A split is a list of shares; a share is a range of offsets of one topic partition, either in objects, which it names,
or (tail) in the broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kbroker.storage.manifest_image import ManifestImage
from kbroker.storage.partition_state import ObjectRef

OBJECT_COST_BYTES = 256 * 1024  # what opening one more object costs, as bytes


@dataclass(frozen=True, slots=True)
class Share:
    """Offsets [first, stop) of one topic partition. `objects` are those that hold them, in order; none for a tail."""

    topic: str
    topic_id: bytes
    partition: int
    first: int
    stop: int
    objects: tuple[ObjectRef, ...] = ()
    aborted: tuple[tuple[int, int, int], ...] = ()  # producer id, first offset, last offset
    tail: bool = False
    cost_bytes: int = 0

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Split:
    """One task's work. Timestamps (ms, inclusive) bound what is worth reading; rows outside may be left out."""

    cluster_id: str
    shares: tuple[Share, ...]
    lowest_timestamp: int
    highest_timestamp: int


@dataclass(slots=True)
class _Pile:
    """Shares being gathered into splits of about `target_bytes`."""

    target_bytes: int
    done: list[tuple[Share, ...]] = field(default_factory=list)
    shares: list[Share] = field(default_factory=list)
    used_bytes: int = 0

    def add(self, share: Share) -> None:
        if self.shares and self.used_bytes + share.cost_bytes > self.target_bytes * 5 // 4:
            self.close()
        self.shares.append(share)
        self.used_bytes += share.cost_bytes
        if self.used_bytes >= self.target_bytes:
            self.close()

    def close(self) -> None:
        if self.shares:
            self.done.append(tuple(self.shares))
        self.shares = []
        self.used_bytes = 0


def objects_between(
    manifest: ManifestImage, topic_id: bytes, partition: int, first: int, stop: int
) -> Iterator[ObjectRef]:
    """The objects that hold offsets of [first, stop), in order."""
    for ref in manifest.objects_from(topic_id, partition, first):
        if ref.base_offset >= stop:
            return
        yield ref


def cut(share: Share, target_bytes: int) -> Iterator[Share]:
    """The share in pieces of about `target_bytes`, at the borders of its objects and, in large ones, between.

    Where in an object an offset lies, only its index says, which is not read here: offsets are taken to be spread
    evenly. A batch that lies across a border is read by both tasks, and each takes its own records of it.
    """
    objects: list[ObjectRef] = []
    first, used = share.first, 0

    def piece(stop: int) -> Share:
        return _with(share, first, stop, tuple(objects), used + OBJECT_COST_BYTES * len(objects))

    for ref in share.objects:
        low, high = max(ref.base_offset, share.first), min(ref.end_offset, share.stop)
        size = ref.length * (high - low) // (ref.end_offset - ref.base_offset)
        if objects and used + size > target_bytes:
            yield piece(objects[-1].end_offset)
            first, used, objects = objects[-1].end_offset, 0, []
        parts = min(high - low, -(-size // target_bytes)) if size > target_bytes * 5 // 4 else 1
        for number in range(1, parts):
            objects, used = [ref], size // parts
            stop = low + (high - low) * number // parts
            yield piece(stop)
            first, used, objects = stop, 0, []
        objects.append(ref)
        used += size // parts
    if objects or share.first < share.stop:
        yield piece(share.stop)


def _with(share: Share, first: int, stop: int, objects: tuple[ObjectRef, ...], cost_bytes: int) -> Share:
    aborted = tuple(entry for entry in share.aborted if entry[1] < stop and entry[2] >= first)
    return Share(share.topic, share.topic_id, share.partition, first, stop, objects, aborted, share.tail, cost_bytes)


def gather(shares: list[Share], target_bytes: int) -> list[tuple[Share, ...]]:
    """Shares cut and put together, in order, so that each group costs about `target_bytes`. A tail is one task."""
    pile = _Pile(target_bytes)
    for share in shares:
        if share.tail:
            pile.close()
            pile.add(share)
            pile.close()
            continue
        for piece in cut(share, target_bytes):
            pile.add(piece)
    pile.close()
    return pile.done
