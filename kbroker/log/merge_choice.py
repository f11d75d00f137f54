"""Which partitions have objects to merge: the plan of each partition, looked at again only when it may have changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kbroker import limits
from kbroker.clock import Clock
from kbroker.log.log_table import LogTable, TopicLog
from kbroker.storage.manifest import Manifest
from kbroker.storage.merge_image import Merge
from kbroker.storage.merge_plan import FINAL, NEVER_MS, Candidate, MergeLimits, MergePlan, plan_merges
from kbroker.storage.object_keys import KlixKey, PackKey, parse_key
from kbroker.storage.object_swap import Place
from kbroker.storage.partition_state import PACK, PartitionState, RefRow

LOOK_AGAIN_MS = 600_000  # at the latest
RETENTION_SHARE = 8  # a merged object covers at most this part of what retention keeps: it goes as a whole


@dataclass(frozen=True, slots=True)
class _Look:
    """The last look at a partition that found nothing: until one of these is reached, none will."""

    count: int  # of objects that are not settled
    data_bytes: int
    again_ms: int


class MergeChoice:
    """Finds merges that are due. Used by one thread.

    In a topic that is compacted only what compaction has not been over is merged: its rounds join objects themselves.
    KafScale segments stay as they were flushed.
    """

    def __init__(self, table: LogTable, manifest: Manifest, clock: Clock, bounds: MergeLimits) -> None:
        self.bounds = bounds
        self._table = table
        self._manifest = manifest
        self._clock = clock
        self._looks: dict[Place, _Look] = {}
        self._settled: dict[Place, int] = {}
        self._left_alone: set[tuple[Place, int]] = set()
        self._file_facts: dict[int, tuple[int, bool]] = {}

    def leave_alone(self, place: Place, base_offset: int) -> None:
        """The object that begins there is not to be merged any more: a merge failed for good."""
        self._left_alone.add((place, base_offset))

    def due(self) -> Iterator[Merge]:
        """Merges that are due now, in order of topic id, partition and offset: neighbours in packs are neighbours here.

        Looked up one partition at a time, as they are asked for.
        """
        self._file_facts.clear()
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
        """What Kafka calls a segment: retention and compaction judge it as a whole."""
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

    def _due_of(self, topic_log: TopicLog, partition: Any, bounds: MergeLimits) -> list[Merge]:
        image, place, now_ms = self._manifest.image, (partition.topic_id, partition.index), self._clock.now_ms()
        if partition.deleted or topic_log.config.kfs:
            return []
        with image.lock:
            state = image.partition(*place)
            if state is None:
                return []
            start_offset = self._settled.get(place, 0)
            if topic_log.config.compacted:
                start_offset = max(start_offset, state.clean_offset)
            start = state.index_of(start_offset)
            if start < state.object_count and state.row(start).base_offset < start_offset:
                start += 1  # compaction has been over a part of it
            look = self._looks.get(place)
            if (
                look is not None
                and state.object_count - start < look.count
                and state.data_bytes < look.data_bytes
                and now_ms < look.again_ms
            ):
                return []
            rows = [state.row(index) for index in range(start, state.object_count)]
            candidates = [self._candidate(row, place) for row in rows]
            plan = plan_merges(candidates, bounds, now_ms)
            if not plan.due:
                self._note(place, state, rows, plan, now_ms)
                return []
            # What is due may lie below what is settled, and may fail: the next look begins where this one did.
            self._looks.pop(place, None)
            merges = []
            for first, last in plan.due:
                refs = tuple(image.ref(row) for row in rows[first:last])
                merges.append(
                    Merge(
                        topic_log.name,
                        place,
                        refs,
                        candidates[first].generation + 1,
                        topic_log.config.file_delete_delay_ms,
                        lambda: bool(partition.deleted),
                    )
                )
            return merges

    def _note(self, place: Place, state: PartitionState, rows: list[RefRow], plan: MergePlan, now_ms: int) -> None:
        """Where the next look begins, and when it is worth it."""
        settled = plan.settled
        self._settled[place] = rows[settled].base_offset if settled < len(rows) else state.end_offset
        self._looks[place] = _Look(
            len(rows) - settled + plan.room_count,
            state.data_bytes + plan.room_bytes,
            min(plan.look_again_ms, now_ms + LOOK_AGAIN_MS),
        )

    def _candidate(self, row: RefRow, place: Place) -> Candidate:
        file = self._manifest.image.files[row.file]
        facts = self._file_facts.get(row.file)
        if facts is None:
            parsed = parse_key(file.key)
            generation = parsed.generation if isinstance(parsed, KlixKey | PackKey) else FINAL
            facts = self._file_facts[row.file] = (generation, file.kind == PACK)
        generation, in_pack = facts
        if self._left_alone and (place, row.base_offset) in self._left_alone:
            generation = FINAL
        newest_ms = row.max_timestamp if 0 <= row.max_timestamp < NEVER_MS else file.created_ms
        return Candidate(row.length, generation, in_pack, newest_ms, file.created_ms)
