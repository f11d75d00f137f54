"""Merging state batches: the known state of records and that of a write (KIP-932)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from kbroker.coordinator.share_state.store import UNKNOWN_START_OFFSET, StateBatch

Batches = tuple[StateBatch, ...]


def combine(old: Sequence[StateBatch], new: Iterable[StateBatch], start_offset: int) -> Batches:
    """One sorted list without overlaps, and nothing below the start offset.

    If two cover the same record, the higher delivery count wins, then the higher state: deliveries are
    only ever added, and acknowledged and archived are final.
    """
    batches = [*old, *new]
    if start_offset != UNKNOWN_START_OFFSET:
        batches = [
            batch if batch.first_offset >= start_offset else batch._replace(first_offset=start_offset)
            for batch in batches
            if batch.last_offset >= start_offset
        ]
    batches.sort()
    if any(before.last_offset >= batch.first_offset for before, batch in pairwise(batches)):
        batches = _without_overlaps(batches)
    return merged(batches)


def merged(batches: Iterable[StateBatch]) -> Batches:
    """Joins neighbours of the same state. In offset order, without overlaps."""
    result: list[StateBatch] = []
    for batch in batches:
        last = result[-1] if result else None
        if last is not None and last.last_offset + 1 == batch.first_offset and last[2:] == batch[2:]:
            result[-1] = last._replace(last_offset=batch.last_offset)
        else:
            result.append(batch)
    return tuple(result)


def _without_overlaps(batches: Sequence[StateBatch]) -> list[StateBatch]:
    """Cuts sorted batches at every edge and keeps the best of each piece."""
    edges = sorted({edge for batch in batches for edge in (batch.first_offset, batch.last_offset + 1)})
    result: list[StateBatch] = []
    covering: list[StateBatch] = []
    following = iter(batches)
    next_batch = next(following, None)
    for first, end in pairwise(edges):
        covering = [batch for batch in covering if batch.last_offset >= first]
        while next_batch is not None and next_batch.first_offset <= first:
            covering.append(next_batch)
            next_batch = next(following, None)
        if covering:
            best = max(covering, key=lambda batch: (batch.delivery_count, batch.delivery_state))
            result.append(StateBatch(first, end - 1, best.delivery_state, best.delivery_count))
    return result
