"""What a task reads: plain data, small, pickled on the driver and read in a worker.

A split is a list of shares; a share is a range of offsets of one topic partition, either in objects, which it names,
or (tail) in the broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kbroker.limits import MIB
from kbroker.storage.formats.kfs_keys import SEGMENT_SUFFIX
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.partition_state import ObjectRef

OBJECT_COST_BYTES = 256 * 1024  # what opening one more object costs, as bytes
WHOLE_BYTES = 1 * MIB  # a smaller image comes in one GET, with its index


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
class _Splits:
    """Gathers shares into splits of about `target_bytes`."""

    target_bytes: int
    done: list[tuple[Share, ...]] = field(default_factory=list)
    shares: list[Share] = field(default_factory=list)
    room_bytes: int = 0

    def __post_init__(self) -> None:
        self.close()

    def add(self, share: Share) -> None:
        self.shares.append(share)
        self.room_bytes -= share.cost_bytes

    def close(self) -> None:
        if self.shares:
            self.done.append(tuple(self.shares))
        self.shares = []
        self.room_bytes = self.target_bytes


def objects_between(
    manifest: ManifestImage, topic_id: bytes, partition: int, first: int, stop: int
) -> Iterator[ObjectRef]:
    """The objects that hold offsets of [first, stop), in order."""
    for ref in manifest.objects_from(topic_id, partition, first):
        if ref.base_offset >= stop:
            return
        yield ref


def is_read_whole(ref: ObjectRef) -> bool:
    """Whether a task that needs some of an object reads all of it; a segment has its index elsewhere."""
    return ref.length <= WHOLE_BYTES or ref.key.endswith(SEGMENT_SUFFIX)


def _add_in_pieces(share: Share, splits: _Splits) -> None:
    """Adds a share in pieces that fill one split after the other, so that all tasks have about as much to do.

    Pieces end at the borders of objects where these are near, else within an object. Only its index, which is not read
    here, says where an offset lies: offsets are assumed to be spread evenly. A batch that lies across a border is
    read by both tasks, and each takes its own records of it.
    """
    objects: list[ObjectRef] = []
    first, used = share.first, 0

    def end_piece(stop: int) -> None:
        nonlocal first, used, objects
        if objects:
            splits.add(_with(share, first, stop, tuple(objects), used))
        first, used, objects = stop, 0, []

    for ref in share.objects:
        low, high = max(ref.base_offset, share.first), min(ref.end_offset, share.stop)
        size = ref.length * (high - low) // (ref.end_offset - ref.base_offset)
        slack_bytes = splits.target_bytes // (2 if is_read_whole(ref) else 16)
        while size > (room := splits.room_bytes - used) + slack_bytes:
            if room < slack_bytes and (objects or splits.shares):
                end_piece(low)
                splits.close()
                continue
            count = max(1, (high - low) * room // size)
            if count >= high - low:
                break
            taken = size * count // (high - low)
            objects.append(ref)
            low, size, used = low + count, size - taken, used + taken + OBJECT_COST_BYTES
            end_piece(low)
            splits.close()
        objects.append(ref)
        used += size + OBJECT_COST_BYTES
    end_piece(share.stop)


def _with(share: Share, first: int, stop: int, objects: tuple[ObjectRef, ...], cost_bytes: int) -> Share:
    aborted = tuple(entry for entry in share.aborted if entry[1] < stop and entry[2] >= first)
    return Share(share.topic, share.topic_id, share.partition, first, stop, objects, aborted, share.tail, cost_bytes)


def gather(shares: list[Share], target_bytes: int) -> list[tuple[Share, ...]]:
    """Cuts and groups shares, in order, so that each group costs about `target_bytes`. A tail is one task."""
    splits = _Splits(target_bytes)
    for share in shares:
        if share.tail:
            splits.close()
            splits.add(share)
            splits.close()
            continue
        _add_in_pieces(share, splits)
    splits.close()
    return splits.done
