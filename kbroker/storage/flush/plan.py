"""Plans a flush: which batches of the WAL go into which object.

A flush covers a prefix of the WAL, with all partitions. A partition with much data gets its own KLIX objects; the
others go, sorted, into packs. A partition of a topic in KafScale's format always gets segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from kbroker import limits
from kbroker._fast.partition.timestamp_disorder import TimestampDisorder
from kbroker._fast.wal.scan import following_entry
from kbroker.errors import CorruptionError
from kbroker.storage.formats.klix import ENTRY_BYTES, TRAILER_BYTES, footer_length
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.partition_state import KFS, KLIX, PACK

ENTRY_HEADER_BYTES = 72
ENTRY_BYTES_MIN = ENTRY_HEADER_BYTES + 61  # with a batch header
WIDEN_MAX = 8


class FlushPartition(Protocol):
    """What a flush uses of kbroker._fast.partition.partition.Partition."""

    @property
    def topic(self) -> str: ...

    @property
    def topic_id(self) -> bytes: ...

    @property
    def index(self) -> int: ...

    @property
    def deleted(self) -> bool: ...

    @property
    def leader_epoch(self) -> int:
        """-1: this broker does not lead the partition."""
        ...

    @property
    def ended(self) -> bool:
        """This broker has led it: what it appended then is flushed."""
        ...

    @property
    def log_start_offset(self) -> int: ...

    @property
    def unflushed_bytes(self) -> int: ...

    @property
    def disorder(self) -> TimestampDisorder: ...

    def note_flushed(self, offset: int) -> None:
        """Everything below this offset is in committed objects."""
        ...

    def lsn_of(self, offset: int) -> int | None:
        """Where the WAL has the first batch that ends above an offset."""
        ...

    def entries(self, from_lsn: int, to_lsn: int) -> Any:
        """The partition's batches at WAL positions [from_lsn, to_lsn), in order, as an array of INDEX_DTYPE."""
        ...


@dataclass(slots=True)
class PlannedImage:
    """A run of batches of one partition that becomes one KLIX image."""

    topic: str
    topic_id: bytes
    partition: int
    entries: Any  # numpy, INDEX_DTYPE
    body_bytes: int
    disorder_ms: int  # see TimestampDisorder.max_ms_from

    @property
    def base_offset(self) -> int:
        """Offset of the first record."""
        return int(self.entries["base_offset"][0])

    @property
    def end_offset(self) -> int:
        """Offset after the last record."""
        return int(self.entries["base_offset"][-1]) + int(self.entries["last_offset_delta"][-1]) + 1

    @property
    def image_bytes(self) -> int:
        """Size of the whole KLIX image."""
        return self.body_bytes + footer_length(len(self.entries))


@dataclass(slots=True)
class PlannedObject:
    """One object to upload: a KLIX object of one image, a pack of many, or a KafScale segment of one run of batches."""

    kind: str  # KLIX, PACK or KFS
    images: list[PlannedImage]

    @property
    def approximate_bytes(self) -> int:
        """Size without a pack's directory."""
        return sum(image.image_bytes for image in self.images)


@dataclass(slots=True)
class FlushPlan:
    """What of the WAL in [start_lsn, end_lsn) is not in objects yet, with its partitions."""

    start_lsn: int
    end_lsn: int
    objects: list[PlannedObject] = field(default_factory=list)
    partitions: dict[tuple[bytes, int], FlushPartition] = field(default_factory=dict)

    @property
    def total_bytes(self) -> int:
        """Bytes to upload, approximate."""
        return sum(planned.approximate_bytes for planned in self.objects)


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """Bounds of a plan, in bytes unless the name says otherwise."""

    pack_below_bytes: int = 8 * limits.MIB  # 0: no packs
    object_bytes_max: int = limits.FLUSH_OBJECT_BYTES_MAX
    pack_bytes_max: int = limits.PACK_BYTES_MAX
    segment_bytes_max: int = limits.KFS_SEGMENT_BYTES_MAX
    window_bytes_max: int = limits.FLUSH_WINDOW_BYTES_MAX
    window_batches_max: int = limits.FLUSH_WINDOW_BATCHES_MAX


def plan_flush(
    partitions: Iterable[FlushPartition],
    image: ManifestImage,
    start_lsn: int,
    durable_lsn: int,
    bounds: PlanLimits,
    kfs_topics: Set[bytes] = frozenset(),
) -> FlushPlan:
    """Plans the objects of the WAL from start_lsn up to durable_lsn, or of a part of it that fits the bounds.

    Entries of leaderships that ended are in no partition, and are passed over. The plan ends before an entry of a tail
    that this broker has and does not lead yet: what a flush has passed is not kept.

    `partitions` must be listed after durable_lsn was read, so that none with data below it is missed; `kfs_topics`,
    the ids of topics in KafScale's format, after `partitions`.
    """
    partitions = list(partitions)
    durable_lsn = min([durable_lsn, *_unled_tails(partitions, image)])
    runs, end_lsn = _next_window(partitions, image, start_lsn, durable_lsn, bounds)
    plan = FlushPlan(start_lsn, end_lsn)
    plan.partitions = {(run.topic_id, run.partition): partition for run, partition in runs}
    small: list[PlannedImage] = []
    for run, _ in runs:
        if run.topic_id in kfs_topics:
            pieces = _cut(run, bounds.segment_bytes_max)
            plan.objects += [PlannedObject(KFS, [piece]) for piece in pieces]
        elif run.body_bytes < bounds.pack_below_bytes:
            small.append(run)
        else:
            plan.objects += [PlannedObject(KLIX, [piece]) for piece in _cut(run, bounds.object_bytes_max)]
    small.sort(key=lambda run: (run.topic_id, run.partition))
    plan.objects += [PlannedObject(PACK, images) for images in _fill(small, bounds.pack_bytes_max)]
    return plan


def _unled_tails(partitions: Iterable[FlushPartition], image: ManifestImage) -> Iterator[int]:
    """Where the tails begin that only a later leadership of this broker may flush (cluster protocol §5)."""
    for partition in partitions:
        if partition.leader_epoch < 0 and not (partition.ended or partition.deleted):
            state = image.partition(partition.topic_id, partition.index)
            lsn = partition.lsn_of(state.end_offset if state is not None else 0)
            if lsn is not None:
                yield lsn - ENTRY_HEADER_BYTES


# What a window has of each partition: a run of its batches.
_Runs = list[tuple[PlannedImage, FlushPartition]]


def _next_window(
    partitions: Sequence[FlushPartition], image: ManifestImage, start_lsn: int, durable_lsn: int, bounds: PlanLimits
) -> tuple[_Runs, int]:
    """The next window's batches of each partition, and the position after it, where an entry starts."""
    from_lsn = start_lsn
    while True:
        limit_lsn = min(durable_lsn, from_lsn + bounds.window_bytes_max)
        to_lsn, runs, end_lsn = _widest(partitions, image, from_lsn, limit_lsn, bounds.window_batches_max)
        if to_lsn == durable_lsn:
            return runs, durable_lsn
        if end_lsn:
            return runs, end_lsn
        from_lsn = to_lsn  # only entries of deleted topics: no entry boundary is known


def _widest(
    partitions: Sequence[FlushPartition], image: ManifestImage, from_lsn: int, limit_lsn: int, batches_max: int
) -> tuple[int, _Runs, int]:
    """A window that ends at limit_lsn, or earlier if that has too many batches, and its result of `_collect`.

    Starts with a range that cannot have too many and widens it: the entries of a backlog of small batches would take
    much more memory than those of a window.
    """
    to_lsn = min(limit_lsn, from_lsn + batches_max * ENTRY_BYTES_MIN)
    runs, end_lsn = _collect(partitions, image, from_lsn, to_lsn)
    while to_lsn < limit_lsn:
        batches = sum(len(run.entries) for run, _ in runs)
        factor = min(batches_max // batches, WIDEN_MAX) if batches else WIDEN_MAX
        if factor < 2:
            break
        wider = min(limit_lsn, from_lsn + (to_lsn - from_lsn) * factor)
        found = _collect(partitions, image, from_lsn, wider)
        if sum(len(run.entries) for run, _ in found[0]) > batches_max:
            break
        to_lsn, (runs, end_lsn) = wider, found
    return to_lsn, runs, end_lsn


def _collect(
    partitions: Sequence[FlushPartition], image: ManifestImage, from_lsn: int, to_lsn: int
) -> tuple[_Runs, int]:
    """The batches of each partition in the window that are not in objects, and the position after the last of all; 0
    if there are none."""
    runs: _Runs = []
    end_lsn = 0
    for partition in partitions:
        if partition.deleted:
            continue
        entries = partition.entries(from_lsn, to_lsn)
        if not len(entries):
            continue
        end_lsn = max(end_lsn, following_entry(int(entries["lsn"][-1]), int(entries["size"][-1])))
        entries = _not_flushed(partition, entries, image)
        if len(entries):
            body_bytes = int(entries["size"].sum(dtype=np.int64))
            disorder_ms = partition.disorder.max_ms_from(int(entries["base_offset"][0]))
            run = PlannedImage(
                partition.topic, partition.topic_id, partition.index, entries, body_bytes, disorder_ms
            )
            runs.append((run, partition))
    return runs, end_lsn


def _not_flushed(partition: FlushPartition, entries: Any, image: ManifestImage) -> Any:
    """The entries above the flushed offset; CorruptionError when offsets are missing before or among them."""
    state = image.partition(partition.topic_id, partition.index)
    ends = entries["base_offset"] + entries["last_offset_delta"] + 1
    if state is not None and int(entries["base_offset"][0]) < state.end_offset:
        first = int(np.searchsorted(ends, state.end_offset, side="right"))
        entries, ends = entries[first:], ends[first:]
    gaps = np.flatnonzero(entries["base_offset"][1:] != ends[:-1])
    if len(gaps):
        at = int(gaps[0])
        raise CorruptionError(
            f"WAL of {partition.topic}-{partition.index}: offset {int(ends[at])} is followed by"
            f" {int(entries['base_offset'][at + 1])} at position {int(entries['lsn'][at + 1])}"
        )
    return np.ascontiguousarray(entries)


def _cut(run: PlannedImage, bytes_max: int) -> list[PlannedImage]:
    """Images of at most bytes_max, cut at batch boundaries; one batch is never too large."""
    pieces = []
    costs = np.cumsum(run.entries["size"].astype(np.int64) + ENTRY_BYTES)
    first = 0
    while first < len(costs):
        before = int(costs[first - 1]) if first else 0
        last = int(np.searchsorted(costs, before + bytes_max - TRAILER_BYTES, side="right"))
        last = max(last, first + 1)
        entries = run.entries[first:last]
        body_bytes = int(costs[last - 1]) - before - ENTRY_BYTES * (last - first)
        pieces.append(replace(run, entries=entries, body_bytes=body_bytes))
        first = last
    return pieces


def _fill(runs: Iterable[PlannedImage], bytes_max: int) -> list[list[PlannedImage]]:
    """Packs of about bytes_max, in order."""
    packs: list[list[PlannedImage]] = []
    room = 0
    for run in runs:
        if not packs or run.image_bytes > room:
            packs.append([])
            room = bytes_max
        packs[-1].append(run)
        room -= run.image_bytes
    return packs
