"""Flushes that compaction asks for, so that no record waits in the WAL for longer than its topic allows.

Kafka rolls the active segment of a compacted topic at min(segment.ms, max.compaction.lag.ms), with the next append
(KIP-354). Here the active segment is what no object holds yet, and a flush ends it: that needs no append.
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
    """What is used of storage.flush.flusher.Flusher."""

    settings: FlushSettings

    def flush(self, wait: bool = ...) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Asked:
    """Why a flush was asked for."""

    offset: int  # of the oldest batch that no object held
    timestamp_ms: int  # its newest
    end_offset: int  # what was durable


class CompactionDeadlines:
    """Asks for flushes, at most one per `log.cleaner.backoff.ms`. Thread-safe.

    Only partitions are looked at whose limit is below the flush interval: the others are flushed in time anyway.
    `left_alone` tells of partitions that cannot be compacted now.
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
        self._lock = threading.Lock()  # one look at a time
        self._asked: dict[Place, _Asked] = {}  # until compaction has been there
        self._not_before = -math.inf
        self._next_due = math.inf  # monotonic

    def look(self, backoff_ms: int) -> None:
        """Asks for a flush if some partition has reached its limit, and notes when the next one will."""
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
        """Until a partition will have reached its limit, as of the last look; infinite when none is known."""
        return max(self._next_due - self._clock.monotonic(), 0.0)

    @property
    def awaits_flush(self) -> bool:
        """Whether a flush that was asked for is not in the manifest yet."""
        return any(self._flushed_end(place) < asked.end_offset for place, asked in list(self._asked.items()))

    def aged(self, place: Place, found: Cleanable) -> Cleanable:
        """With the age of the record that a flush was asked for: the manifest knows only that of the newest."""
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
        """The oldest durable batch that no object holds and compaction could take; None: there is none."""
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
            return None  # the flusher reads the same bytes, and says so
        if not data:
            return None  # flushed meanwhile
        header, _ = next(iter_batches(data))
        if header.max_timestamp < 0:
            return None
        return _Asked(header.base_offset, header.max_timestamp, partition.high_watermark())

    def _seconds_left(self, oldest: _Asked, partition: Any, config: Any) -> float:
        """Until its limit is reached; not positive: it is, and a flush would bring a round about."""
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
