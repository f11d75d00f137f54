"""Flushes that compaction requests, so that no record stays in the WAL for longer than its topic allows.

Kafka rolls the active segment of a compacted topic at min(segment.ms, max.compaction.lag.ms), with the next append
(KIP-354). Here the active segment is the unflushed data, and a flush ends it: that needs no append.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from kbroker._fast.records.records import iter_batches
from kbroker.background.compaction import Cleanable, cleanable, compacted_partitions
from kbroker.clock import Clock
from kbroker.errors import CorruptionError
from kbroker.log.log_table import LogTable
from kbroker.storage.flush.schedule import FlushSettings
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.rewrite.object_swap import Place


class DeadlineFlusher(Protocol):
    """What CompactionDeadlines uses of storage.flush.flusher.Flusher."""

    settings: FlushSettings

    def flush(self, wait: bool = ...) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Asked:
    """A requested flush and its reason."""

    offset: int  # of the oldest unflushed batch
    timestamp_ms: int  # its max timestamp
    end_offset: int  # durable end at the request


class CompactionDeadlines:
    """Requests flushes, at most one per `log.cleaner.backoff.ms`. Thread-safe.

    Only partitions with a limit below the flush interval are checked: the others are flushed in time anyway.
    `left_alone` returns whether a partition cannot be compacted now.
    """

    def __init__(
        self,
        table: LogTable,
        manifest: Manifest,
        clock: Clock,
        flusher: DeadlineFlusher,
        left_alone: Callable[[Place], bool],
    ) -> None:
        self._table = table
        self._manifest = manifest
        self._clock = clock
        self._flusher = flusher
        self._left_alone = left_alone
        self._lock = threading.Lock()  # one check at a time
        self._asked: dict[Place, _Asked] = {}  # until compaction has passed it
        self._not_before = -math.inf
        self._next_due = math.inf  # monotonic

    def look(self, backoff_ms: int) -> None:
        """Requests a flush if a partition has reached its limit, and notes when the next one will."""
        with self._lock:
            now = self._clock.monotonic()
            self._asked = {place: asked for place, asked in self._asked.items() if self._is_dirty(place, asked)}
            self._next_due = math.inf
            found: dict[Place, _Asked] = {}
            for partition, config in compacted_partitions(self._table):
                oldest = self._oldest_unflushed(partition, config)
                if oldest is None:
                    continue
                place = (partition.topic_id, partition.index)
                seconds = self._seconds_left(oldest, partition, config)
                if seconds > 0:
                    self._next_due = min(self._next_due, now + seconds)
                elif place not in self._asked:
                    found[place] = oldest
            if not found:
                return
            if now < self._not_before:
                self._next_due = min(self._next_due, self._not_before)
                return
            self._not_before = now + backoff_ms / 1000
            self._asked |= found
            self._flusher.flush(wait=False)

    @property
    def seconds_to_next(self) -> float:
        """Seconds until a partition reaches its limit, as of the last check; infinite when none will."""
        return max(self._next_due - self._clock.monotonic(), 0.0)

    @property
    def awaits_flush(self) -> bool:
        """Whether a requested flush is not committed yet."""
        return any(self._flushed_end(place) < asked.end_offset for place, asked in list(self._asked.items()))

    def aged(self, place: Place, found: Cleanable) -> Cleanable:
        """Adds the age of the record that a flush was requested for: the manifest has only that of the newest one."""
        asked = self._asked.get(place)
        return found if asked is None else found.aged(asked.offset, asked.timestamp_ms)

    # -- one partition -----------------------------------------------------------------------------------------

    def _is_dirty(self, place: Place, asked: _Asked) -> bool:
        state = self._manifest.image.partition(*place)
        return place[0] in self._table.by_id and (state is None or state.clean_offset <= asked.offset)

    def _flushed_end(self, place: Place) -> int:
        state = self._manifest.image.partition(*place)
        return state.end_offset if state is not None else 0

    def _oldest_unflushed(self, partition: Any, config: Any) -> _Asked | None:
        """The oldest unflushed durable batch that can be compacted; None if there is none."""
        limit_ms = min(config.segment_ms, config.max_compaction_lag_ms)
        place = (partition.topic_id, partition.index)
        if limit_ms >= self._flusher.settings.flush_seconds * 1000 or partition.deleted or self._left_alone(place):
            return None
        offset = max(self._flushed_end(place), partition.log_start_offset)
        upper = partition.last_stable_offset()
        if offset >= upper:
            return None
        try:
            data = partition.read_bytes(offset, upper, 1)
        except (OSError, CorruptionError):
            return None  # the flusher reads the same bytes and reports it
        if not data:
            return None  # flushed since
        header, _ = next(iter_batches(data))
        if header.max_timestamp < 0:
            return None
        return _Asked(header.base_offset, header.max_timestamp, partition.high_watermark())

    def _seconds_left(self, oldest: _Asked, partition: Any, config: Any) -> float:
        """Seconds until its limit; not positive: reached, and a flush makes a round due."""
        now_ms = self._clock.now_ms()
        late_ms = oldest.timestamp_ms + config.max_compaction_lag_ms + 1 - now_ms
        if late_ms <= 0:
            return 0.0
        rolled_ms = oldest.timestamp_ms + config.segment_ms - now_ms
        if rolled_ms <= 0:
            return 0.0 if self._is_dirty_enough(partition, config, now_ms) else late_ms / 1000
        return min(late_ms, rolled_ms) / 1000

    def _is_dirty_enough(self, partition: Any, config: Any, now_ms: int) -> bool:
        image = self._manifest.image
        clean_bytes, dirty_bytes = 0, partition.unflushed_bytes
        with image.lock:
            state = image.partition(partition.topic_id, partition.index)
            if state is not None:
                found = cleanable(state, config, now_ms, lambda file: image.files[file].created_ms)
                clean_bytes, dirty_bytes = found.clean_bytes, dirty_bytes + found.dirty_bytes
        return bool(dirty_bytes > config.min_cleanable_dirty_ratio * (clean_bytes + dirty_bytes))
