"""Which adjacent objects of one partition are merged, and when. Pure: no store, no clock.

An object or image is of generation 0 when a flush wrote it, 1 or 2 when it was merged once or twice. Only adjacent ones
of one generation are merged, and never those of generation 2: so no byte is written more than three times, flush
included. FAN_IN small images become one object, and FAN_IN of those one again; with more data, enough bytes are there
sooner. An image in a pack does not wait without end: it would keep the whole pack alive. Leader epochs and transactions
are no boundaries: each batch carries its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kbroker import limits

GENERATIONS = 2  # how often data is merged
FINAL = GENERATIONS  # never merged again: other kinds, compacted objects, objects merged twice
NEVER_MS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class MergeLimits:
    """When a merge is due. Pairs are of generations 0 and 1."""

    fan_in: int = limits.MERGE_FAN_IN
    count_max: int = limits.MERGE_COUNT_MAX  # of objects merged at once
    object_bytes_max: int = limits.KLIX_OBJECT_BYTES_MAX
    below_bytes: tuple[int, int] = limits.MERGE_BELOW_BYTES  # larger objects stay, but not in packs
    enough_bytes: tuple[int, int] = limits.MERGE_ENOUGH_BYTES  # so many bytes are merged, however few the objects
    pack_age_ms: tuple[int, int] = limits.MERGE_PACK_AGE_MS  # an older image in a pack is merged, even alone
    span_ms: int = NEVER_MS  # time that one object may cover, because retention deletes whole objects


class Candidate(NamedTuple):
    """One object or image, for a plan; in offset order."""

    length: int
    generation: int
    in_pack: bool
    newest_ms: int  # largest timestamp of its records; without one, when it was written
    written_ms: int


class MergePlan(NamedTuple):
    """The merges of one partition that are due, and when to plan again.

    Before `look_again_ms`, and unless `room_count` more objects or `room_bytes` more bytes have come, a new plan finds
    nothing more. Objects at places below `settled` will never be merged: it is the lower one of `tail`, where objects
    begin that may still be merged with later ones, and `waiting`, the first that will leave its pack later.
    """

    due: list[tuple[int, int]]  # places [first, last)
    settled: int
    room_count: int
    room_bytes: int
    look_again_ms: int
    tail: int
    waiting: int


def plan_merges(objects: Sequence[Candidate], bounds: MergeLimits, now_ms: int) -> MergePlan:
    """The merges that are due among all objects of a partition, or those from some place on."""
    due: list[tuple[int, int]] = []
    look_again_ms = NEVER_MS
    tail = _tail_start(objects, bounds)
    waiting = len(objects)
    room_count, room_bytes = bounds.fan_in, bounds.enough_bytes[0]
    for first, last, full in _chunks(objects, bounds):
        chunk = objects[first:last]
        generation = chunk[0].generation
        total = sum(item.length for item in chunk)
        packed = [item.written_ms for item in chunk if item.in_pack]
        old_ms = min(packed) + bounds.pack_age_ms[generation] if packed else NEVER_MS
        if (
            len(chunk) >= bounds.fan_in
            or (len(chunk) > 1 and (full or total >= bounds.enough_bytes[generation]))
            or old_ms <= now_ms
        ):
            due.append((first, last))
            continue
        if packed:
            waiting = min(waiting, first)
            look_again_ms = min(look_again_ms, old_ms)
        if last == len(objects) and generation == 0:
            room_count, room_bytes = bounds.fan_in - len(chunk), bounds.enough_bytes[0] - total
    return MergePlan(due, min(tail, waiting), room_count, room_bytes, look_again_ms, tail, waiting)


def whole_chunks(objects: Sequence[Candidate], bounds: MergeLimits) -> int:
    """How many objects, from the first on, can be planned without the ones that follow."""
    chunks = _chunks(objects, bounds)
    return chunks[-1][0] if chunks and chunks[-1][1] == len(objects) else len(objects)


def _mergeable(item: Candidate, bounds: MergeLimits) -> bool:
    return item.generation < FINAL and (item.in_pack or item.length < bounds.below_bytes[item.generation])


def _tail_start(objects: Sequence[Candidate], bounds: MergeLimits) -> int:
    """Where the objects begin that may still be merged with later ones."""
    start = len(objects)
    while start and _mergeable(objects[start - 1], bounds):
        start -= 1
    return start


def _chunks(objects: Sequence[Candidate], bounds: MergeLimits) -> list[tuple[int, int, bool]]:
    """Adjacent objects of one generation that fit into one: places [first, last), and whether no more fit."""
    chunks: list[tuple[int, int, bool]] = []
    first = 0
    while first < len(objects):
        if not _mergeable(objects[first], bounds):
            first += 1
            continue
        last, total = first + 1, objects[first].length
        oldest_ms = newest_ms = objects[first].newest_ms
        full = False
        while last < len(objects):
            item = objects[last]
            if item.generation != objects[first].generation or not _mergeable(item, bounds):
                break
            oldest_ms, newest_ms = min(oldest_ms, item.newest_ms), max(newest_ms, item.newest_ms)
            full = (
                total + item.length > bounds.object_bytes_max
                or newest_ms - oldest_ms > bounds.span_ms
                or last - first >= bounds.count_max
            )
            if full:
                break
            total += item.length
            last += 1
        chunks.append((first, last, full))
        first = last
    return chunks
