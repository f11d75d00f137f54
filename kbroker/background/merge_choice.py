"""Which partitions have objects to merge: each partition is planned again only when the result may have changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kbroker import limits
from kbroker.clock import Clock
from kbroker.log.log_table import LogTable
from kbroker.log.topic_log import TopicLog
from kbroker.storage.manifest.files import FileTable
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.manifest.partition_state import FILE, PartitionState, RefRow
from kbroker.storage.rewrite.merge_image import Merge
from kbroker.storage.rewrite.merge_plan import (
    FINAL,
    NEVER_MS,
    Candidate,
    MergeLimits,
    MergePlan,
    plan_merges,
    whole_chunks,
)
from kbroker.storage.rewrite.object_swap import Place

LOOK_AGAIN_MS = 600_000  # at the latest
WINDOW_ROWS = 8_192  # references per window: more than limits.MERGE_COUNT_MAX
RETENTION_SHARE = 8  # a merged object covers at most this part of retention.ms, because it is deleted as a whole


@dataclass(frozen=True, slots=True)
class _Look:
    """The last plan of a partition that found nothing: until one of these is reached, none will."""

    appended_count: int
    appended_bytes: int
    again_ms: int


class MergeChoice:
    """Finds merges that are due. Used by one thread.

    In a compacted topic only the dirty part is merged: compaction joins objects itself. KafScale segments stay as they
    were flushed. The image's lock is held for WINDOW_ROWS references at a time: planning a million of them blocks no
    other thread for long.
    """

    def __init__(self, table: LogTable, manifest: Manifest, clock: Clock, bounds: MergeLimits) -> None:
        self.bounds = bounds
        self._table = table
        self._manifest = manifest
        self._clock = clock
        self._looks: dict[Place, _Look] = {}
        self._settled: dict[Place, int] = {}
        self._left_alone: dict[Place, set[int]] = {}

    def leave_alone(self, place: Place, base_offset: int) -> None:
        """Excludes the object that begins there: a merge of it can never succeed."""
        self._left_alone.setdefault(place, set()).add(base_offset)

    def due(self) -> Iterator[Merge]:
        """Merges that are due now, in order of topic id, partition and offset, so that images adjacent in packs are
        adjacent.

        Lazy, one partition at a time.
        """
        known: set[Place] = set()
        for topic_id in sorted(self._table.by_id):
            topic_log = self._table.by_id.get(topic_id)
            if topic_log is None:
                continue
            bounds = self._bounds_of(topic_log.config)
            for partition in topic_log.partitions:
                known.add((topic_id, partition.index))
                yield from self._due_of(topic_log, partition, bounds)
        for place in self._settled.keys() - known:
            self._settled.pop(place, None)
            self._looks.pop(place, None)

    def _bounds_of(self, config: Any) -> MergeLimits:
        """Bounds a merged object as a Kafka segment: retention and compaction treat it as a whole."""
        spans = [config.segment_ms]
        sizes = [config.segment_bytes]
        if config.delete_enabled and config.retention_ms >= 0:
            spans.append(config.retention_ms // RETENTION_SHARE)
        if config.delete_enabled and config.retention_bytes >= 0:
            sizes.append(config.retention_bytes // RETENTION_SHARE)
        if config.compacted:
            spans.append(config.max_compaction_lag_ms // RETENTION_SHARE)
        return dataclasses.replace(
            self.bounds,
            span_ms=max(min(spans), limits.MERGE_SPAN_MS_MIN),
            object_bytes_max=min(self.bounds.object_bytes_max, max(min(sizes), limits.CLEANER_OBJECT_BYTES_MIN)),
        )

    def _due_of(self, topic_log: TopicLog, partition: Any, bounds: MergeLimits) -> Iterator[Merge]:
        place, now_ms = (partition.topic_id, partition.index), self._clock.now_ms()
        state = self._manifest.image.partition(*place)
        if state is None or partition.leader_epoch < 0 or topic_log.config.kfs:
            return
        look = self._looks.get(place)
        if (
            look is not None
            and state.appended_count < look.appended_count
            and state.appended_bytes < look.appended_bytes
            and now_ms < look.again_ms
        ):
            return
        appended = state.appended_count, state.appended_bytes
        start_offset = self._settled.get(place, 0)
        if topic_log.config.compacted:
            start_offset = max(start_offset, state.clean_offset)
        found = False
        summary = _Summary(state.end_offset)
        for rows, plan in self._windows(place, state, start_offset, bounds, now_ms):
            for first, last in plan.due:
                if not found:
                    # A due merge may lie below `settled` and may fail: the next plan begins where this one did.
                    self._looks.pop(place, None)
                    found = True
                if merge := self._merge(topic_log, partition, state, rows[first:last]):
                    yield merge
            summary.add(rows, plan)
        if not found:
            self._settled[place] = min(summary.tail_offset, summary.waiting_offset)
            self._looks[place] = _Look(
                appended[0] + summary.room_count,
                appended[1] + summary.room_bytes,
                min(summary.look_again_ms, now_ms + LOOK_AGAIN_MS),
            )

    def _windows(
        self, place: Place, state: PartitionState, offset: int, bounds: MergeLimits, now_ms: int
    ) -> Iterator[tuple[np.ndarray, MergePlan]]:
        """The objects from `offset` on, in windows, with their plans."""
        image = self._manifest.image
        while True:
            with image.lock:
                first = state.index_of(offset)
                if first < state.object_count and state.row(first).base_offset < offset:
                    first += 1  # partly compacted
                rows = state.rows(first, min(first + WINDOW_ROWS, state.object_count))
                more = first + WINDOW_ROWS < state.object_count
                columns = _facts(image.files, rows)
            candidates = self._candidates(place, rows, columns)
            if more:
                whole = whole_chunks(candidates, bounds) or len(rows)
                candidates, rows, next_offset = candidates[:whole], rows[:whole], int(rows[whole - 1, 1])
            yield rows, plan_merges(candidates, bounds, now_ms)
            if not more:
                return
            offset = next_offset

    def _candidates(self, place: Place, rows: np.ndarray, facts: _Facts) -> list[Candidate]:
        generation = facts.generation
        if place in self._left_alone:
            generation = np.where(np.isin(rows[:, 0], list(self._left_alone[place])), FINAL, generation)
        newest = np.where((rows[:, 6] >= 0) & (rows[:, 6] < NEVER_MS), rows[:, 6], facts.created_ms)
        return [
            Candidate(*values)
            for values in zip(
                rows[:, 3].tolist(),
                generation.tolist(),
                facts.in_pack.tolist(),
                newest.tolist(),
                facts.created_ms.tolist(),
                strict=True,
            )
        ]

    def _merge(self, topic_log: TopicLog, partition: Any, state: PartitionState, rows: np.ndarray) -> Merge | None:
        """None when the objects have changed since they were planned."""
        image = self._manifest.image
        with image.lock:
            first = state.index_of(int(rows[0, 0]))
            if not np.array_equal(state.rows(first, first + len(rows)), rows):
                return None
            refs = tuple(image.ref(RefRow(*row)) for row in rows.tolist())
            generation = image.files.keys.generation[int(rows[0, FILE])] >> 1
        return Merge(
            topic_log.name,
            (partition.topic_id, partition.index),
            refs,
            generation + 1,
            topic_log.config.file_delete_delay_ms,
            lambda: partition.leader_epoch < 0,
        )


class _Facts(NamedTuple):
    """Columns of facts about objects, one value for each reference."""

    generation: np.ndarray
    in_pack: np.ndarray
    created_ms: np.ndarray


def _facts(files: FileTable, rows: np.ndarray) -> _Facts:
    """The caller holds the image's lock."""
    places = rows[:, FILE]
    prefix = np.frombuffer(files.keys.prefix, np.int32)[places]
    ours = prefix >= 0
    return _Facts(
        np.where(ours, np.frombuffer(files.keys.generation, np.int32)[places] >> 1, FINAL),
        np.isin(prefix, list(files.keys.pack_prefixes)),
        np.frombuffer(files.created_ms, np.int64)[places],
    )


class _Summary:
    """The combined plan of consecutive windows."""

    def __init__(self, end_offset: int) -> None:
        self.tail_offset = self.waiting_offset = end_offset
        self.room_count, self.room_bytes = 1, 1
        self.look_again_ms = NEVER_MS

    def add(self, rows: np.ndarray, plan: MergePlan) -> None:
        """The plan of the next window."""
        self.room_count, self.room_bytes = plan.room_count, plan.room_bytes
        self.look_again_ms = min(self.look_again_ms, plan.look_again_ms)
        if not len(rows):
            return
        end_offset = int(rows[-1, 1])
        if plan.tail or self.tail_offset >= int(rows[0, 0]):  # else all of them continue the tail before them
            self.tail_offset = int(rows[plan.tail, 0]) if plan.tail < len(rows) else end_offset
        if plan.waiting < len(rows):
            self.waiting_offset = min(self.waiting_offset, int(rows[plan.waiting, 0]))
