"""Limits a micro-batch to a number of offsets or bytes, in proportion to what each partition has.

Bytes are those of stored objects, assumed to be spread evenly over an object's offsets: only its index, which is not
read here, says more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from kbroker.limits import KIB
from kbroker.pipeline.bucket_view import BucketView
from kbroker.pipeline.options import TopicPartition
from kbroker.storage.manifest.partition_state import COLUMNS, RefRow

_BASE, _END, _LENGTH = map(RefRow._fields.index, ("base_offset", "end_offset", "length"))
UNFLUSHED_RECORD_BYTES = KIB  # assumed for a partition without objects

Positions = Mapping[TopicPartition, int]


def limit_offsets(start: Positions, end: Positions, most: int) -> dict[TopicPartition, int]:
    """`end`, lowered so that about `most` offsets are read. Every partition with something to read advances."""
    available = {pair: max(0, end[pair] - start[pair]) for pair in end}
    total = sum(available.values())
    if total <= most:
        return dict(end)
    # Rounded up: no partition starves.
    return {pair: min(end[pair], start[pair] + -(-most * count // total)) for pair, count in available.items()}


def limit_bytes(view: BucketView, start: Positions, end: Positions, most: int) -> dict[TopicPartition, int]:
    """`end`, lowered so that about `most` bytes are read. Every partition with something to read advances."""
    stored = {pair: _stored(view, pair, start[pair], end[pair]) for pair in end if start[pair] < end[pair]}
    total = sum(one.total for one in stored.values())
    if total <= most:
        return dict(end)
    ends = dict(end)
    for pair, one in stored.items():
        ends[pair] = max(start[pair] + 1, one.reached(most * one.total // total))
    return ends


def bytes_between(view: BucketView, start: Positions, end: Positions) -> int:
    """Estimates the stored bytes between two positions, with a guess for what is not in the bucket yet."""
    starts = {pair: start.get(pair, 0) for pair in end}
    return sum(_stored(view, pair, starts[pair], end[pair]).total for pair in end if starts[pair] < end[pair])


class _Stored(NamedTuple):
    """Ranges of offsets [low, high) and their bytes, in offset order: one per object, then what is not flushed."""

    low: np.ndarray
    high: np.ndarray
    sizes: np.ndarray

    @property
    def total(self) -> int:
        return int(self.sizes.sum())

    def reached(self, budget: int) -> int:
        """The offset at which `budget` bytes, less than all, have been read."""
        ends = self.sizes.cumsum()
        at = int(np.searchsorted(ends, budget, side="right"))
        rest = budget - int(ends[at]) + int(self.sizes[at])
        return int(self.low[at]) + int(self.high[at] - self.low[at]) * rest // int(self.sizes[at])


def _stored(view: BucketView, pair: TopicPartition, first: int, stop: int) -> _Stored:
    topic = view.topics.by_name.get(pair[0])
    state = view.manifest.partition(topic.topic_id, pair[1]) if topic is not None else None
    rows = state.rows(state.index_of(first), state.index_of(stop) + 1) if state is not None else np.empty((0, COLUMNS))
    rows = rows[rows[:, _BASE] < stop].astype(np.int64)
    low, high = np.maximum(rows[:, _BASE], first), np.minimum(rows[:, _END], stop)
    count, length = rows[:, _END] - rows[:, _BASE], rows[:, _LENGTH]
    sizes = length * (high - low) // count
    reached = int(high[-1]) if len(rows) else first
    if reached < stop:
        record_bytes = -(-int(length[-1]) // int(count[-1])) if len(rows) else UNFLUSHED_RECORD_BYTES
        low, high = np.append(low, reached), np.append(high, stop)
        sizes = np.append(sizes, (stop - reached) * record_bytes)
    return _Stored(low, high, sizes)
