"""Chooses which batches of an object a task reads, by the object's index (docs/formats/klix.md).

An index entry has a batch's largest timestamp and record count. It does not say whether the batch is a transaction
marker, nor which producer wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from kbroker.pipeline.pushdown import ANY
from kbroker.storage.formats.klix import TAIL_BYTES
from kbroker.storage.manifest.partition_state import TIMES_UNKNOWN

INDEX_COLUMNS = frozenset({"topic", "partition", "offset"})  # an index is enough for these
GAP_BYTES = 128 * 1024  # smaller gaps between needed batches are read too: another GET would cost more
MARKER_BYTES_MAX = 128  # of a transaction marker, which has 78

Aborted = tuple[tuple[int, int, int], ...]  # producer id, first offset, last offset


class Batches(NamedTuple):
    """Batches [low, high) of an index."""

    low: int
    high: int


class CountedRows(NamedTuple):
    """Rows known without reading their batches, as runs of offsets in order. If only their number matters, the offsets
    may be wrong."""

    firsts: np.ndarray
    counts: np.ndarray


def is_counted(columns: Iterable[str], lowest_timestamp: int, highest_timestamp: int) -> bool:
    """Whether an index is enough for rows of these columns, with no bound on timestamps."""
    return INDEX_COLUMNS.issuperset(columns) and (lowest_timestamp, highest_timestamp) == ANY


def within_time(
    entries: np.ndarray, lowest: int, highest: int, min_timestamp: int, late_ms: int, newest_before: int
) -> tuple[np.ndarray, int]:
    """A mask of the batches that can have a record within the bounds, and the newest timestamp of them and before.

    `entries` is a piece of an object's index, `newest_before` the newest timestamp of the pieces before, TIMES_UNKNOWN
    without any; `min_timestamp` and `late_ms`: see ObjectRef.
    """
    newest = entries["max_timestamp"].astype(np.int64)
    wanted: np.ndarray = (newest >= lowest) & (entries["record_count"] > 0)
    if highest < ANY[1]:
        wanted &= min_timestamp <= highest
        # A batch without records has no timestamp: its entry may hold any value.
        newest[entries["record_count"] == 0] = TIMES_UNKNOWN
        before = np.maximum.accumulate(np.concatenate([[newest_before], newest]))
        newest_before = int(before[-1])
        if late_ms >= 0:
            # before - late_ms <= highest, without overflow
            wanted &= before[:-1] <= min(highest + late_ms, ANY[1])
    return wanted, newest_before


def ranges(entries: np.ndarray, wanted: np.ndarray, window_bytes: int) -> Iterator[Batches]:
    """Yields ranges that cover all batches `wanted` (their numbers, in order), each of at most `window_bytes` unless a
    single batch is larger. Small gaps between wanted batches are read too."""
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
    """The rows of batches [low, high) at offsets [first, stop), as far as the index determines them."""

    def __init__(
        self, entries: np.ndarray, batches: Batches, first: int, stop: int, *, offsets: bool, aborted: Aborted
    ) -> None:
        """`offsets`: the rows' offsets are needed, not only their number. `aborted`: transactions to leave out."""
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
        """The numbers of the batches that must be read to know their rows."""
        return self._low + np.flatnonzero(~self._known)

    def rows(self, batches: Batches) -> CountedRows:
        """The rows of some batches, none of them unknown."""
        low, high = batches.low - self._low, batches.high - self._low
        counts = self._counts[low:high]
        some = counts > 0
        return CountedRows(self._firsts[low:high][some], counts[some])


def index_bytes(lengths: np.ndarray) -> np.ndarray:
    """Estimates the index bytes of images of these lengths, for a first read: 32 bytes per batch of 4 KiB."""
    return np.minimum(lengths, np.clip(lengths >> 7, 4096, TAIL_BYTES))
