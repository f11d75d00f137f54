"""What this broker has acknowledged and only its own log holds: said when it ends without having flushed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kbroker._fast.partition.partition import Partition

NAMED_MOST = 20  # partitions in the line of text


class UnflushedRange(NamedTuple):
    """Offsets of one partition, the end exclusive; transaction markers have offsets, too."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    internal: bool

    @property
    def records(self) -> int:
        return self.end_offset - self.start_offset


def unflushed_ranges(partitions: Iterable[Partition]) -> list[UnflushedRange]:
    """From each partition's flushed end to its high watermark; topics of clients first, then internal ones."""
    ranges = []
    for partition in partitions:
        start = max(partition.log.flushed_end, partition.log_start_offset)
        end = partition.high_watermark()
        if end > start:
            ranges.append(UnflushedRange(partition.topic, partition.index, start, end, partition.rules.internal))
    return sorted(ranges, key=lambda each: (each.internal, each.topic, each.partition))


def described(ranges: list[UnflushedRange]) -> str:
    """One line: how many records of which partitions."""
    if not ranges:
        return "no acknowledged records"
    named = [
        f"{each.topic}-{each.partition} (offsets {each.start_offset} to {each.end_offset - 1})"
        for each in ranges[:NAMED_MOST]
    ]
    more = f" and {len(ranges) - NAMED_MOST} more" if len(ranges) > NAMED_MOST else ""
    records = sum(each.records for each in ranges)
    return f"{records} acknowledged records of {len(ranges)} partitions: {', '.join(named)}{more}"
