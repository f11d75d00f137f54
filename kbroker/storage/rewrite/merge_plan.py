"""Which neighbouring objects of one partition become one object, and when. Pure: no store, no clock.

An object or image is of generation 0 when a flush wrote it, 1 or 2 when it was merged once or twice. Only neighbours
of one generation are merged, and never those of generation 2: so no byte is written more than three times, flush
included. Where many small images come in, FAN_IN of them become one, and FAN_IN of those one again; where more comes
in, enough bytes come together sooner. An image in a pack does not wait for ever for neighbours: it would keep the
whole pack alive. Leader epochs and transactions draw no boundary: each batch carries its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kbroker import limits

GENERATIONS = 2  # how often data is merged
FINAL = GENERATIONS  # of what is never merged: foreign kinds, compacted objects, what was merged often enough
NEVER_MS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class MergeLimits:
    """When merging is worth it. Pairs are of generations 0 and 1."""

    fan_in: int = limits.MERGE_FAN_IN
    count_max: int = limits.MERGE_COUNT_MAX  # of objects merged at once
    object_bytes_max: int = limits.KLIX_OBJECT_BYTES_MAX
    below_bytes: tuple[int, int] = limits.MERGE_BELOW_BYTES  # larger ones stay as they are, but not in packs
    enough_bytes: tuple[int, int] = limits.MERGE_ENOUGH_BYTES  # so much is merged, however few objects it is in
    pack_age_ms: tuple[int, int] = limits.MERGE_PACK_AGE_MS  # an older image in a pack is merged, even alone
    span_ms: int = NEVER_MS  # time that one object may cover: retention lets it go as a whole


class Candidate(NamedTuple):
    """What a plan has to know of one object or image, in offset order."""

    length: int
    generation: int
    in_pack: bool
    newest_ms: int  # largest timestamp of its records; when it was written where they have none
    written_ms: int


class MergePlan(NamedTuple):
    """What to do with the objects of one partition.

    Before `look_again_ms`, and unless `room_count` more objects or `room_bytes` more bytes have come, another look
    finds nothing new. Objects at places below `settled` will not be merged any more: the lower one of `tail`, where the
    objects begin that may still get neighbours, and `waiting`, the first that will leave its pack by and by.
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
    """Of objects with more behind them: how many, from the first on, can be planned without those."""
    chunks = _chunks(objects, bounds)
    return chunks[-1][0] if chunks and chunks[-1][1] == len(objects) else len(objects)


def _mergeable(item: Candidate, bounds: MergeLimits) -> bool:
    return item.generation < FINAL and (item.in_pack or item.length < bounds.below_bytes[item.generation])


def _tail_start(objects: Sequence[Candidate], bounds: MergeLimits) -> int:
    """Where the objects begin that may still get neighbours to be merged with."""
    start = len(objects)
    while start and _mergeable(objects[start - 1], bounds):
        start -= 1
    return start


def _chunks(objects: Sequence[Candidate], bounds: MergeLimits) -> list[tuple[int, int, bool]]:
    """Neighbours of one generation that fit into one object: places [first, last), and whether no more fit."""
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
