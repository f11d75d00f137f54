"""Chooses the objects of a partition that a query reads, by the manifest's columns: no Python object per reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kbroker.pipeline.batch_choice import index_bytes
from kbroker.pipeline.plan.plan_summary import PlanSummary
from kbroker.pipeline.plan.splits import OBJECT_COST_BYTES, ROW_COST_BYTES, WHOLE_BYTES
from kbroker.pipeline.pushdown import ANY
from kbroker.storage.manifest.files import FileTable
from kbroker.storage.manifest.key_table import PREFIX_OTHER
from kbroker.storage.manifest.partition_state import BLOCK_ROWS, TIMES_UNKNOWN, PartitionState, RefRow

BASE, END, LENGTH, MAX_TIMESTAMP, RECORDS, TIMES, FILE = (
    RefRow._fields.index(name)
    for name in ("base_offset", "end_offset", "length", "max_timestamp", "record_count", "times", "file")
)


class Reading(NamedTuple):
    """What a query reads of every partition. Timestamps are (lowest, highest) in milliseconds, inclusive."""

    timestamps: tuple[int, int] = ANY
    counted: bool = False  # the objects' indexes are enough for the rows
    offsets: bool = False  # with their offsets


@dataclass(frozen=True, slots=True)
class Chosen:
    """Objects of a partition that hold offsets of [first, stop): those at `places` of its state, in offset order."""

    topic: str
    topic_id: bytes
    partition: int
    first: int
    stop: int
    state: PartitionState
    places: range | np.ndarray
    cost_bytes: int

    def rows(self, low: int = 0, high: int | None = None) -> np.ndarray:
        """The chosen objects numbered [low, high), as PartitionState.rows has them."""
        places = self.places[low:high]
        if isinstance(places, range):
            return self.state.rows(places.start, places.stop)
        begin = int(places[0])
        return self.state.rows(begin, int(places[-1]) + 1)[places - begin]


def choose(
    topic: str,
    topic_id: bytes,
    state: PartitionState,
    offsets: tuple[int, int],
    files: FileTable,
    reading: Reading,
    summary: PlanSummary,
) -> Iterator[Chosen]:
    """The objects that can have rows at `offsets` (first, stop); at most BLOCK_ROWS of them at a time."""
    first, stop = offsets
    low, high = state.index_of(first), state.index_of(stop)
    if high < state.object_count and state.row(high).base_offset < stop:
        high += 1
    for begin in range(low, high, BLOCK_ROWS):
        end = min(begin + BLOCK_ROWS, high)
        rows = state.rows(begin, end)
        first, stop = max(offsets[0], int(rows[0, BASE])), min(offsets[1], int(rows[-1, END]))
        if begin == low:
            first = offsets[0]
        if end == high:
            stop = offsets[1]
        sizes = byte_sizes(rows, first, stop)
        kept = _within(rows, reading.timestamps)
        places: range | np.ndarray = range(begin, end)
        if not kept.all():
            summary.skipped_by_time += int(sizes[~kept].sum())
            places, rows, sizes = (begin + np.flatnonzero(kept)).astype(np.int32), rows[kept], sizes[kept]
        if not len(places):
            continue
        costs = sizes
        if reading.counted:
            costs = read_costs(rows, first, stop, files, reading)
            counted = _are_counted(rows, files, reading)
            read = np.where(counted, np.minimum(sizes, index_bytes(rows[:, LENGTH])), sizes)
            summary.skipped_by_column += int((sizes - read).sum())
            sizes = read
        summary.objects += len(places)
        summary.bytes_read += int(sizes.sum())
        summary.rows += int(_at_offsets(rows, rows[:, RECORDS], first, stop).sum())
        cost = int(costs.sum()) + OBJECT_COST_BYTES * len(places)
        yield Chosen(topic, topic_id, state.partition, first, stop, state, places, cost)


def bytes_between(state: PartitionState, first: int, stop: int) -> int:
    """Estimates the bytes of objects at these offsets."""
    if first <= state.log_start_offset and stop >= state.end_offset:
        return state.data_bytes
    rows = state.rows(state.index_of(first), state.index_of(stop) + 1)
    rows = rows[rows[:, BASE] < stop]
    return int(byte_sizes(rows, first, stop).sum())


def byte_sizes(rows: np.ndarray, first: int, stop: int) -> np.ndarray:
    """The bytes of each object that belong to offsets [first, stop), assuming evenly spread offsets."""
    return _at_offsets(rows, rows[:, LENGTH], first, stop)


def read_costs(rows: np.ndarray, first: int, stop: int, files: FileTable, reading: Reading) -> np.ndarray:
    """The cost of reading offsets [first, stop) of each object, as bytes, except that of opening it."""
    sizes = byte_sizes(rows, first, stop)
    if not reading.counted:
        return sizes
    counted = _at_offsets(rows, rows[:, RECORDS], first, stop) * ROW_COST_BYTES
    return np.where(_are_counted(rows, files, reading), counted, sizes)


def are_read_whole(rows: np.ndarray, files: FileTable) -> np.ndarray:
    """As splits.is_read_whole, for every row."""
    return (rows[:, LENGTH] <= WHOLE_BYTES) | _has_no_index(rows, files)


def time_bounds(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Smallest timestamp and lateness of every row, as ObjectRef has them."""
    times = rows[:, TIMES]
    span, late = (times >> 32 & 0xFFFFFFFF) - 1, (times & 0xFFFFFFFF) - 1
    return np.where(span >= 0, rows[:, MAX_TIMESTAMP] - span, TIMES_UNKNOWN), late


def _within(rows: np.ndarray, timestamps: tuple[int, int]) -> np.ndarray:
    """Which objects have a record, and can have one within the time bounds."""
    kept: np.ndarray = rows[:, RECORDS] > 0
    lowest, highest = timestamps
    if lowest > ANY[0]:
        kept &= rows[:, MAX_TIMESTAMP] >= lowest
    if highest < ANY[1]:
        kept &= time_bounds(rows)[0] <= highest
    return kept


def _at_offsets(rows: np.ndarray, values: np.ndarray, first: int, stop: int) -> np.ndarray:
    """The part of each value that belongs to offsets [first, stop). Only the first and the last object can be cut."""
    parts = values.copy()
    for at in (0, len(rows) - 1)[: len(rows)]:
        base, end = int(rows[at, BASE]), int(rows[at, END])
        parts[at] = int(values[at]) * max(0, min(end, stop) - max(base, first)) // (end - base)
    return parts


def _are_counted(rows: np.ndarray, files: FileTable, reading: Reading) -> np.ndarray:
    """The objects whose index is enough for most of their rows."""
    counted = ~_has_no_index(rows, files)
    if reading.offsets:
        counted &= rows[:, RECORDS] == rows[:, END] - rows[:, BASE]  # compaction leaves gaps
    return counted


def _has_no_index(rows: np.ndarray, files: FileTable) -> np.ndarray:
    """Which rows are KafScale segments: hardly any other key is stored as a string."""
    if not files.keys.others:
        return np.zeros(len(rows), bool)
    return np.frombuffer(files.keys.prefix, np.int32)[rows[:, FILE]] == PREFIX_OTHER
