"""What ``kbroker consume`` reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reading:
    """What to read: `partitions` from `starts`; for a group from its committed offsets, else as `reset` says.

    A group without `partitions` is joined, and gives the partitions.
    """

    topic: str
    partitions: Sequence[int]
    starts: Mapping[int, int]
    group: str | None = None
    reset: str = "earliest"
    read_committed: bool = False
