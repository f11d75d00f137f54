"""What log compaction has to do: which part of a partition is dirty, how dirty, and whether a round is due.

Kafka's rules (LogCleanerManager, KIP-58, KIP-354, KIP-534), with objects for segments. Unflushed data is the active
segment. docs/decisions/100-log-compaction.md lists the differences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from kbroker import limits
from kbroker.log.log_table import LogTable
from kbroker.storage.manifest.partition_state import PartitionState


@dataclass(frozen=True, slots=True)
class Cleanable:
    """The part of a partition that the next round may compact: offsets [start, end), counted in whole objects."""

    start: int
    end: int
    clean_bytes: int
    dirty_bytes: int
    dirty_objects: int
    dirty_records: int
    oldest_ms: int  # when the oldest dirty object was written, or the timestamp of its newest record if that is earlier
    oldest_written_ms: int
    horizon_ms: int  # when all tombstones and markers of the clean part may be removed; -1: none

    @property
    def ratio(self) -> float:
        """Share of dirty bytes in what can be compacted."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def overdue(self, config: Any, now_ms: int) -> bool:
        """True when records have waited longer than max.compaction.lag.ms."""
        return self.dirty_bytes > 0 and now_ms - self.oldest_ms > config.max_compaction_lag_ms

    def expired(self, now_ms: int) -> bool:
        """True when the clean part has tombstones or markers that may all be removed."""
        return 0 <= self.horizon_ms <= now_ms

    def aged(self, offset: int, timestamp_ms: int) -> Cleanable:
        """A copy that knows of a record of this age."""
        if not self.start <= offset < self.end:
            return self
        oldest_ms, written_ms = min(self.oldest_ms, timestamp_ms), min(self.oldest_written_ms, timestamp_ms)
        return replace(self, oldest_ms=oldest_ms, oldest_written_ms=written_ms)

    def due(self, config: Any, now_ms: int) -> bool:
        """True when a round is due: the dirty part is large enough, or old enough.

        In Kafka a segment must be full or segment.ms old before the cleaner sees it. Here a flush writes objects of any
        size, so this bound keeps a quiet partition from being rewritten after every flush.
        """
        if self.overdue(config, now_ms) or self.expired(now_ms):
            return True
        if self.dirty_bytes == 0 or not self.ratio > config.min_cleanable_dirty_ratio:  # which may be NaN, as in Kafka
            return False
        return (
            self.dirty_bytes >= min(config.segment_bytes, limits.CLEANER_DIRTY_BYTES_MIN)
            or self.dirty_objects >= limits.CLEANER_DIRTY_OBJECTS_MIN
            or now_ms - self.oldest_written_ms >= config.segment_ms
        )


def compacted_partitions(table: LogTable) -> Iterator[tuple[Any, Any]]:
    """The partitions led here of topics whose cleanup.policy contains compact, each with its topic's config."""
    for topic_log in list(table.by_id.values()):
        if topic_log.config.compacted:
            for partition in topic_log.partitions:
                if partition.leader_epoch >= 0:
                    yield partition, topic_log.config


def cleanable(state: PartitionState, config: Any, now_ms: int, created_ms_of: Callable[[int], int]) -> Cleanable:
    """The dirty part of a partition below its last stable offset. The caller holds the image's lock.

    `created_ms_of` returns the creation time of a file by its number.
    """
    start = max(state.clean_offset, state.log_start_offset)
    upper = min(state.end_offset, state.last_stable_offset)
    lag_ms = config.min_compaction_lag_ms
    dirty_bytes = dirty_records = objects = 0
    oldest_ms = oldest_written_ms = now_ms
    index = state.index_of(start)
    later_bytes = 0
    end = start
    while index < state.object_count:
        row = state.row(index)
        written_ms = created_ms_of(row.file)
        newest_ms = row.max_timestamp if row.max_timestamp >= 0 else written_ms
        if row.base_offset >= upper or (lag_ms > 0 and newest_ms > now_ms - lag_ms):
            later_bytes = sum(state.row(later).length for later in range(index, state.object_count))
            break
        stop = min(upper, row.end_offset)
        if stop <= start:
            index += 1
            continue
        # The dirty part of a partly cleaned object.
        dirty_offsets = stop - max(start, row.base_offset)
        dirty_bytes += row.length * dirty_offsets // (row.end_offset - row.base_offset)
        dirty_records += row.record_count
        objects += 1
        oldest_ms = min(oldest_ms, newest_ms, written_ms)
        oldest_written_ms = min(oldest_written_ms, written_ms)
        end = min(upper, row.end_offset)
        index += 1
    clean_bytes = state.data_bytes - dirty_bytes - later_bytes
    horizon_ms = state.horizon_ms if start == state.clean_offset > state.log_start_offset else -1
    return Cleanable(
        start, end, clean_bytes, dirty_bytes, objects, dirty_records, oldest_ms, oldest_written_ms, horizon_ms
    )
