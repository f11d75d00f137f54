"""Counts by size or duration, for metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

# Bounds of durations, in seconds.
REQUEST_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
WORK_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


class Buckets(NamedTuple):
    """A histogram's counts, not cumulative: up to each bound, then those above the last. `total`: sum of the values."""

    bounds: Sequence[float]
    counts: Sequence[int]
    total: float


class Histogram:
    """Written by one thread at a time; any thread may read."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        """Counts one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def buckets(self) -> Buckets:
        """A copy."""
        return Buckets(self._bounds, self._counts.copy(), self._total)
