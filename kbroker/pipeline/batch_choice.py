"""Which batches of an object a task reads, decided on its index (docs/formats/klix.md).

An index entry has a batch's largest timestamp and its number of records. It does not say whether the batch is a
transaction marker, nor whose it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from kbroker.pipeline.pushdown import ANY
from kbroker.storage.formats.klix import TAIL_BYTES
from kbroker.storage.manifest.partition_state import TIMES_UNKNOWN

INDEX_COLUMNS = frozenset({"topic", "partition", "offset"})  # an index can have all that these need
GAP_BYTES = 128 * 1024  # batches that are not needed are read where needed ones are so near: a GET costs as much
MARKER_BYTES_MAX = 128  # of a transaction marker, which has 78

Aborted = tuple[tuple[int, int, int], ...]  # producer id, first offset, last offset


class Batches(NamedTuple):
    """Batches [low, high) of an index."""

    low: int
    high: int


class CountedRows(NamedTuple):
    """Rows that are known without their batches: runs of offsets, in order. Where only rows count, the offsets of a
    run need not be right."""

    firsts: np.ndarray
    counts: np.ndarray


def is_counted(columns: Iterable[str], lowest_timestamp: int, highest_timestamp: int) -> bool:
    """Whether rows of these columns can be told from an index, and need no look at their timestamps."""
    return INDEX_COLUMNS.issuperset(columns) and (lowest_timestamp, highest_timestamp) == ANY


def within_time(entries: np.ndarray, lowest: int, highest: int, min_timestamp: int, late_ms: int) -> np.ndarray:
    """Which batches can have a record within the bounds. `entries` is the whole index of an object.

    `min_timestamp` and `late_ms`: see ObjectRef.
    """
    newest = entries["max_timestamp"].astype(np.int64)
    wanted: np.ndarray = (newest >= lowest) & (entries["record_count"] > 0)
    if highest < ANY[1]:
        wanted &= min_timestamp <= highest
        if late_ms >= 0 and len(entries) > 1:
            # A batch without records has no timestamp; what its entry says instead may be anything.
            newest[entries["record_count"] == 0] = TIMES_UNKNOWN
            before = np.maximum.accumulate(newest)[:-1]
            # before - late_ms <= highest, without overflow
            wanted[1:] &= before <= min(highest + late_ms, ANY[1])
    return wanted


def ranges(entries: np.ndarray, wanted: np.ndarray, window_bytes: int) -> Iterator[Batches]:
    """Ranges to read, each of at most `window_bytes` unless one batch is larger, that have all batches `wanted` (their
    numbers, in order). Batches between two of them are read along where they are small."""
    if not len(wanted):
        return
    starts = entries["position"].astype(np.int64)
    ends = starts + entries["length"]
    breaks = np.flatnonzero(starts[wanted[1:]] - ends[wanted[:-1]] > GAP_BYTES) + 1
    lows = wanted[np.concatenate([[0], breaks])]
    highs = wanted[np.concatenate([breaks - 1, [-1]])] + 1
    for low, high in zip(lows.tolist(), highs.tolist(), strict=True):
        while low < high:
            fitting = int(np.searchsorted(ends[low:high], starts[low] + window_bytes, side="right"))
            end = low + max(1, fitting)
            yield Batches(low, end)
            low = end


class IndexCount:
    """The rows of batches [low, high) of an index, as far as it says them: at offsets [first, stop)."""

    def __init__(
        self, entries: np.ndarray, batches: Batches, first: int, stop: int, *, offsets: bool, aborted: Aborted
    ) -> None:
        """`offsets`: they are needed, not only how many rows there are. `aborted`: transactions to leave out."""
        self._low = batches.low
        entries = entries[batches.low : batches.high]
        bases = entries["base_offset"].astype(np.int64)
        stops = bases + entries["last_offset_delta"] + 1
        records = entries["record_count"].astype(np.int64)
        dense = records == stops - bases
        whole = (bases >= first) & (stops <= stop)
        self._firsts = np.where(dense, np.maximum(bases, first), bases)
        self._counts = np.where(dense, np.minimum(stops, stop) - np.maximum(bases, first), records)
        known = dense | (whole & (not offsets))
        known &= (records > 1) | (entries["length"] > MARKER_BYTES_MAX)
        for _, begin, end in aborted:
            if begin < stops[-1] and end >= bases[0]:
                known &= (stops <= begin) | (bases > end)
        known |= records == 0
        self._known = known

    def unknown(self) -> np.ndarray:
        """The numbers of the batches that have to be read to know their rows."""
        return self._low + np.flatnonzero(~self._known)

    def rows(self, batches: Batches) -> CountedRows:
        """The rows of some batches, of which none is unknown."""
        low, high = batches.low - self._low, batches.high - self._low
        counts = self._counts[low:high]
        some = counts > 0
        return CountedRows(self._firsts[low:high][some], counts[some])


def index_bytes(lengths: np.ndarray) -> np.ndarray:
    """About the bytes of the indexes of images of these lengths, for a first read: 32 for each batch of 4 KiB."""
    return np.minimum(lengths, np.clip(lengths >> 7, 4096, TAIL_BYTES))
