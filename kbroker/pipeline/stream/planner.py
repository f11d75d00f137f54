"""The driver's side of a stream: where micro-batches start and end, and their tasks.

The driver's JVM calls `answer` with the query's position and whether its limits apply (KbrokerStream.java). Without
those Java classes, Spark calls `latest_offset`, with neither: the position is then the end of the last planned range
(after a restart Spark plans an empty one at the checkpoint first), and limits are refused.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from kbroker.clock import Clock, SystemClock
from kbroker.pipeline import data_loss
from kbroker.pipeline.broker_tail import BrokerTail
from kbroker.pipeline.bucket_view import BucketView
from kbroker.pipeline.options import LATEST, TopicPartition, check_stream, parse_options, refuse_limits
from kbroker.pipeline.plan.batch_plan import Ranges, plan_ranges, within
from kbroker.pipeline.plan.plan_summary import PlanSummary
from kbroker.pipeline.plan.splits import Split
from kbroker.pipeline.positions import PositionFinder, Positions, is_named, selected
from kbroker.pipeline.pushdown import bounds_of
from kbroker.pipeline.stream.limits import limit_bytes, limit_offsets
from kbroker.pipeline.stream.offsets import OffsetJson, from_json, to_json, topic_ids_of
from kbroker.pipeline.stream.progress import metrics


class StreamPlanner:
    """One stream. Used by one thread. Raises as plan_batch does, and DataLossError."""

    def __init__(
        self, given: Mapping[str, str], cores: int, *, view: BucketView | None = None, clock: Clock | None = None
    ) -> None:
        self._options = parse_options(given)
        check_stream(self._options)
        self._cores = cores
        self._clock = clock or SystemClock()
        self._view = view if view is not None else BucketView(self._options.place)
        self._broker: BrokerTail | None = None
        self._initial: Positions | None = None
        self._position: OffsetJson | None = None  # end of the last range that was planned or returned
        self._read: set[str] = set()  # topics
        self._ends = False  # the query ends where the log ended at its start: _fixed, once known
        self._fixed: Positions | None = None
        self._latest: Positions | None = None
        self._last_batch_s: float | None = None
        self._last = PlanSummary()

    def close(self) -> None:
        """Closes the connection to the broker."""
        if self._broker is not None:
            self._broker.close()
            self._broker = None

    def _finder(self) -> PositionFinder:
        """Positions as of now."""
        self._view.refresh()
        if self._options.bootstrap is not None and self._broker is None:
            self._broker = BrokerTail(self._options.bootstrap)
            self._broker.check_cluster(self._view.cluster_id)
        return PositionFinder(self._view, self._options, self._broker)

    def initial_offset(self) -> OffsetJson:
        """Where a new query starts; all calls return the same."""
        return self._to_json(self._initial_positions(self._finder()))

    def _to_json(self, positions: Positions) -> OffsetJson:
        return to_json(positions, {name: topic.topic_id.hex() for name, topic in self._view.topics.by_name.items()})

    def _from_json(self, value: OffsetJson) -> Positions:
        """Leaves out topics that were recreated under the same name: these are read from their beginning."""
        positions, there = from_json(value), self._view.topics.by_name
        for name, topic_id in topic_ids_of(value).items():
            if name in there and there[name].topic_id.hex() != topic_id:
                lost = f"topic {name} was deleted and recreated, or the checkpoint is of another cluster"
                data_loss.report(lost, self._options.fail_on_data_loss)
                positions = {pair: offset for pair, offset in positions.items() if pair[0] != name}
        return positions

    def _initial_positions(self, finder: PositionFinder) -> Positions:
        if self._initial is None:
            starting = self._options.starting if self._options.starting is not None else LATEST
            self._initial = finder.resolve(starting, selected(self._view, self._options), starting=True)
        return self._initial

    def answer(self, request: list[Any]) -> dict[str, str]:
        """Answers the driver's JVM: a command, an offset or None, and whether the query's limits apply."""
        what, offset, limited = request
        if what == "latest":
            end = self._to_json(self._next_end(offset or {}, limited))
            return {"end": json.dumps(end), "latest": json.dumps(self._to_json(self._latest or {}))}
        if what == "metrics":
            consumed = None if offset is None else from_json(offset)
            return metrics(self._view, self._options, consumed, self._latest, self._last)
        self._ends = True
        return {}

    def latest_offset(self) -> OffsetJson:
        """Where the next micro-batch ends: never below where the query is."""
        refuse_limits(self._options)
        # For a new query Spark calls this before initialOffset; for one with a checkpoint it has planned a range
        # before.
        self._position = self._to_json(self._next_end(self._position, False))
        return self._position

    def _next_end(self, position: OffsetJson | None, limited: bool) -> Positions:
        finder = self._finder()
        known = self._initial_positions(finder) if position is None else self._from_json(position)
        latest = finder.latest(self._existing(known))
        self._check_loss(known, latest)
        if self._ends:
            fixed = self._fixed if self._fixed is not None else latest
            self._fixed = fixed
            latest = {pair: min(offset, fixed[pair]) for pair, offset in latest.items() if pair in fixed}
        self._latest = latest
        new = [pair for pair in latest if pair not in known]
        start = {pair: known[pair] for pair in latest if pair in known} | self._starts_of_new(finder, new)
        return self._limit(start, latest) if limited else latest

    def _existing(self, known: Iterable[TopicPartition]) -> list[TopicPartition]:
        """The partitions that the query reads now. Leaves out a topic that it has read and that is gone, for the caller
        to report; one that never existed raises UnknownTopicError.
        """
        there, read = self._view.topics.by_name, {topic for topic, _ in known} | self._read
        options = self._options
        if options.topics is not None:
            topics = tuple(name for name in options.topics if name in there or name not in read)
            options = dataclasses.replace(options, topics=topics)
        if options.assigned is not None:
            pairs = tuple(pair for pair in options.assigned if pair[0] in there or pair[0] not in read)
            options = dataclasses.replace(options, assigned=pairs)
        found = selected(self._view, options)
        self._read |= {topic for topic, _ in found}
        return found

    def _check_loss(self, known: Positions, latest: Positions) -> None:
        self._report_gone(set(known) - set(latest))
        for (topic, partition), offset in latest.items():
            before = known.get((topic, partition), 0)
            if offset < before:  # the topic was recreated
                lost = f"partition {topic}-{partition}'s offset was changed from {before} to {offset}"
                data_loss.report(lost, self._options.fail_on_data_loss)

    def _report_gone(self, gone: set[TopicPartition]) -> None:
        others = sorted({topic for topic, _ in gone if not is_named(self._options, topic)})
        if others:
            lost = f"the checkpoint is of {', '.join(others)}, which this query does not read"
            data_loss.report(lost, self._options.fail_on_data_loss)
        elif gone:
            names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(gone))
            data_loss.report(f"{names} are gone", self._options.fail_on_data_loss)

    def _starts_of_new(self, finder: PositionFinder, new: list[tuple[str, int]]) -> Positions:
        """Partitions added after the query began are read from their beginning."""
        starts = finder.earliest(new) if new else {}
        for (topic, partition), offset in starts.items():
            if offset > 0:
                lost = f"added partition {topic}-{partition} starts from {offset} instead of 0"
                data_loss.report(lost, self._options.fail_on_data_loss)
        return starts

    def _limit(self, start: Positions, latest: Positions) -> Positions:
        """Applies the limits. A query that ends does not wait for minOffsetsPerTrigger: no more offsets will come."""
        options, now_s = self._options, self._clock.monotonic()
        if options.min_offsets_per_trigger is not None and not self._ends:
            total = sum(max(0, latest[pair] - start[pair]) for pair in latest)
            waited_ms = None if self._last_batch_s is None else (now_s - self._last_batch_s) * 1000
            waits = waited_ms is not None and waited_ms < options.max_trigger_delay_ms
            if total < options.min_offsets_per_trigger and waits:
                return start
        self._last_batch_s = now_s
        ends = [latest]
        if options.max_offsets_per_trigger is not None:
            ends.append(limit_offsets(start, latest, options.max_offsets_per_trigger))
        if options.max_bytes_per_trigger is not None:
            ends.append(limit_bytes(self._view, start, latest, options.max_bytes_per_trigger))
        return {pair: min(end[pair] for end in ends) for pair in latest}

    def plan(
        self, start_json: OffsetJson, end_json: OffsetJson, filters: str | None = None, columns: Iterable[str] = ()
    ) -> list[Split]:
        """The tasks of a micro-batch; none if it is empty. `filters` as in pushdown.py; `columns`, if given, are
        all that the query uses."""
        is_empty = from_json(start_json) == from_json(end_json)
        if self._position is None or is_empty:
            self._position = end_json
        if is_empty:
            if self._ends and self._fixed is None:
                self._next_end(end_json, False)
            return []
        finder = self._finder()
        start, end = self._from_json(start_json), self._from_json(end_json)
        known = set(self._existing([*start, *end]))
        self._report_gone(set(end) - known)
        pairs = [pair for pair in end if pair in known]
        new = [pair for pair in pairs if pair not in start]
        start |= self._starts_of_new(finder, new)
        ranges: Ranges = {pair: (start[pair], end[pair]) for pair in pairs}
        kept = within(ranges, finder.earliest(pairs), finder.latest(pairs), self._options)
        options = dataclasses.replace(self._options, columns=tuple(columns) or self._options.columns)
        self._last = PlanSummary()
        return plan_ranges(self._view, options, kept, self._cores, bounds_of(filters), summary=self._last)
