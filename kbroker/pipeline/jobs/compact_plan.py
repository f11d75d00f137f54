"""Plans the compact job: partitions, cut into slices of whole objects. Turns its tasks' results into swaps.

Same rules as the broker's own rounds (kbroker.background.compaction_round), which keep the map of a partition's keys in
memory and pass over the log in one piece. Here a task of its own passes over each slice, and Spark joins the maps of
all slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kbroker.background.compaction import cleanable
from kbroker.background.compaction_writer import WrittenObject
from kbroker.storage.formats.object_keys import KlixKey, parse_key
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.partition_state import KLIX, ObjectRef, PartitionState, RefRow
from kbroker.storage.manifest.record import FileEntry
from kbroker.storage.rewrite.swap_proposal import Swap, input_of
from kbroker.topic_config import TopicConfig


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """One partition's work: records at offsets [dirty_start, end) supersede older ones in all `inputs`."""

    partition: int
    dirty_start: int
    end: int
    inputs: tuple[ObjectRef, ...]
    aborted: tuple[tuple[int, int, int], ...]  # producer id, first offset, last offset
    last_batches: dict[int, tuple[int, int]]  # of live producers: last data offset or -1, epoch
    generation: int  # of the outputs


@dataclass(frozen=True, slots=True)
class Slice:
    """A run of whole objects of one partition: one task's work in each pass."""

    number: int
    partition: int
    refs: tuple[ObjectRef, ...]

    @property
    def start(self) -> int:
        """First offset of its range."""
        return self.refs[0].base_offset

    @property
    def end(self) -> int:
        """The offset after its range."""
        return self.refs[-1].end_offset

    @property
    def records(self) -> int:
        """Its records, by the manifest."""
        return sum(ref.record_count for ref in self.refs)


@dataclass(frozen=True, slots=True)
class SliceScan:
    """What the first pass finds in a slice, beside its keys."""

    number: int
    next_offset: int  # after its last batch that begins below the plan's end
    producers: dict[int, bool]  # with batches in it: whether a transaction is open after it
    bytes_read: int


@dataclass(frozen=True, slots=True)
class SliceTask:
    """The second pass over a slice. `open_producers` are those with a transaction that began before it."""

    slice: Slice
    map_end: int
    open_producers: tuple[int, ...]
    may_stay: bool  # its one object stays as it is if it loses nothing


@dataclass(frozen=True, slots=True)
class SliceResult:
    """What the second pass stored of a slice."""

    number: int
    written: tuple[WrittenObject, ...]
    seen_aborted: tuple[int, ...]  # last offsets
    changed: bool
    records_read: int
    records_kept: int
    bytes_read: int
    bytes_written: int


def plan_partition(
    image: ManifestImage, state: PartitionState, config: TopicConfig, now_ms: int, producer_id_expiration_ms: int
) -> PartitionPlan | None:
    """The work on one partition; None if nothing of it is dirty."""
    if not state.object_count:
        return None
    target = cleanable(state, config, now_ms, lambda file: image.files[file].created_ms)
    if target.dirty_bytes == 0:
        return None
    inputs = []
    for ref in image.objects_from(state.topic_id, state.partition):
        if ref.base_offset >= target.end:
            break
        inputs.append(ref)
    return PartitionPlan(
        state.partition,
        target.start,
        target.end,
        tuple(inputs),
        tuple((entry[0], entry[1], entry[2]) for entry in state.aborted),
        state.last_batches(now_ms, producer_id_expiration_ms),
        1 + max(_generation(ref, image.root) for ref in inputs),
    )


def _generation(ref: ObjectRef, root: str) -> int:
    parsed = parse_key(ref.key.removeprefix(root))
    return parsed.generation if isinstance(parsed, KlixKey) else 0


def cut_slices(plans: Sequence[PartitionPlan], slice_bytes: int) -> list[Slice]:
    """The objects of all partitions in runs of about `slice_bytes`."""
    slices: list[Slice] = []
    for plan in plans:
        run: list[ObjectRef] = []
        size = 0
        for ref in plan.inputs:
            if run and size + ref.length > slice_bytes:
                slices.append(Slice(len(slices), plan.partition, tuple(run)))
                run, size = [], 0
            run.append(ref)
            size += ref.length
        slices.append(Slice(len(slices), plan.partition, tuple(run)))
    return slices


def plan_second_pass(
    plan: PartitionPlan, slices: Sequence[Slice], scans: dict[int, SliceScan]
) -> tuple[int, list[SliceTask]]:
    """Where the clean part will end, and the tasks; none when no batch is dirty. `slices` are the partition's."""
    map_end = max([plan.dirty_start, *(scans[item.number].next_offset for item in slices)])
    if map_end <= plan.dirty_start:
        return map_end, []
    tasks: list[SliceTask] = []
    open_producers: set[int] = set()
    kept = [_below(item, map_end) for item in slices]
    alone = sum(len(item.refs) for item in kept if item is not None) == 1
    for item in kept:
        if item is None:
            continue
        may_stay = alone and item.refs[0].kind == KLIX
        tasks.append(SliceTask(item, map_end, tuple(sorted(open_producers)), may_stay))
        for producer_id, is_open in scans[item.number].producers.items():
            (open_producers.add if is_open else open_producers.discard)(producer_id)
    return map_end, tasks


def _below(item: Slice, map_end: int) -> Slice | None:
    refs = tuple(ref for ref in item.refs if ref.base_offset < map_end)
    return Slice(item.number, item.partition, refs) if refs else None


def swap_of(
    plan: PartitionPlan,
    map_end: int,
    tasks: Sequence[SliceTask],
    results: dict[int, SliceResult],
    root: str,
) -> Swap:
    """What is proposed of a partition. The first task's slice must have an output, unless the object stays."""
    inputs = tuple(input_of(ref, root) for task in tasks for ref in task.slice.refs)
    seen = {last for task in tasks for last in results[task.slice.number].seen_aborted}
    gone = tuple(entry[2] for entry in plan.aborted if entry[2] < map_end and entry[2] not in seen)
    outputs: list[WrittenObject] = []
    rows: list[RefRow] = []
    for task in tasks:
        written = results[task.slice.number].written
        for output in written:
            rows.append(output.row(len(rows)))
        if rows:  # a slice of which nothing is left: its offsets belong to the output before
            rows[-1] = rows[-1]._replace(end_offset=task.slice.end)
        outputs += written
    files = tuple(FileEntry(output.key, output.meta.size, output.meta.etag, output.crc32c) for output in outputs)
    return Swap(plan.partition, inputs, files, tuple(rows), map_end, gone)
