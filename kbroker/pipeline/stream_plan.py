"""The driver's side of a stream: where micro-batches start and end, and their tasks.

An offset, as Spark keeps it in the checkpoint, is the kafka source's JSON: {"topic": {"0": next offset, ...}}.

The driver's JVM asks by `answer`, saying where the query is and whether its limits hold (KbrokerStream.java). Where it
has not got our classes, Spark asks for `latest_offset` without saying either: the position is then known from the last
range that was planned (after a restart Spark plans an empty one at the checkpoint first), and limits are refused.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from kbroker.clock import Clock, SystemClock
from kbroker.pipeline import data_loss
from kbroker.pipeline.batch_plan import Ranges, plan_ranges, within
from kbroker.pipeline.broker_tail import BrokerTail
from kbroker.pipeline.bucket_view import BucketView
from kbroker.pipeline.options import (
    LATEST,
    OptionError,
    TopicPartition,
    check_stream,
    parse_options,
    refuse_limits,
)
from kbroker.pipeline.plan_summary import PlanSummary
from kbroker.pipeline.positions import PositionFinder, Positions, selected
from kbroker.pipeline.pushdown import bounds_of
from kbroker.pipeline.splits import Split
from kbroker.pipeline.stream_limits import limit_bytes, limit_offsets
from kbroker.pipeline.stream_progress import metrics

OffsetJson = dict[str, Any]


def to_json(positions: Mapping[tuple[str, int], int]) -> OffsetJson:
    """Positions as Spark stores them; equal positions are equal text."""
    found: OffsetJson = {}
    for (topic, partition), offset in sorted(positions.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def from_json(value: Any) -> Positions:
    """Positions of a checkpoint. OptionError for one that this source has not written."""
    try:
        return {
            (topic, int(partition)): int(offset)
            for topic, partitions in value.items()
            for partition, offset in partitions.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise OptionError(f"the checkpoint holds an offset that is not of this source: {value!r:.200}") from None


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
        self._position: Positions | None = None  # end of the last range that was planned or announced
        self._topic_ids: dict[str, bytes] = {}  # of what was read last under a name
        self._ends = False  # the query ends where the log ended at its start, which is in _fixed once it is known
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
        """Where a new query starts; the same however often it is asked."""
        return to_json(self._initial_positions(self._finder()))

    def _initial_positions(self, finder: PositionFinder) -> Positions:
        if self._initial is None:
            starting = self._options.starting if self._options.starting is not None else LATEST
            self._initial = finder.resolve(starting, selected(self._view, self._options), starting=True)
        return self._initial

    def answer(self, request: list[Any]) -> dict[str, str]:
        """What the driver's JVM asks: a word, an offset or None, and whether the query's limits hold."""
        what, offset, limited = request
        position = None if offset is None else from_json(offset)
        if what == "latest":
            end = to_json(self._next_end(position or {}, limited))
            return {"end": json.dumps(end), "latest": json.dumps(to_json(self._latest or {}))}
        if what == "metrics":
            return metrics(self._view, self._options, position, self._latest, self._last)
        self._ends = True
        return {}

    def latest_offset(self) -> OffsetJson:
        """Where the next micro-batch ends: never below where the query is."""
        refuse_limits(self._options)
        if self._position is None:
            # Of a new query Spark asks this first and the initial offset after it; of one with a checkpoint it has
            # planned a range before.
            self._position = self._initial_positions(self._finder())
        self._position = self._next_end(self._position, False)
        return to_json(self._position)

    def _next_end(self, known: Positions, limited: bool) -> Positions:
        finder = self._finder()
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
        """The partitions that the query reads now. A topic that it has read and that is gone is left to the caller to
        report: only one that never existed is an UnknownTopicError. A recreated topic is reported here.
        """
        there, read = self._view.topics.by_name, {topic for topic, _ in known} | set(self._topic_ids)
        options = self._options
        if options.topics is not None:
            topics = tuple(name for name in options.topics if name in there or name not in read)
            options = dataclasses.replace(options, topics=topics)
        if options.assigned is not None:
            pairs = tuple(pair for pair in options.assigned if pair[0] in there or pair[0] not in read)
            options = dataclasses.replace(options, assigned=pairs)
        found = selected(self._view, options)
        for name in dict.fromkeys(topic for topic, _ in found):
            before, now = self._topic_ids.get(name), there[name].topic_id
            self._topic_ids[name] = now
            if before not in (None, now):
                data_loss.report(f"topic {name} was deleted and recreated", self._options.fail_on_data_loss)
        return found

    def _check_loss(self, known: Positions, latest: Positions) -> None:
        gone = sorted(set(known) - set(latest))
        if gone:
            names = ", ".join(f"{topic}-{partition}" for topic, partition in gone)
            data_loss.report(f"{names} are gone", self._options.fail_on_data_loss)
        for (topic, partition), offset in latest.items():
            before = known.get((topic, partition), 0)
            if offset < before:  # the topic was recreated
                lost = f"partition {topic}-{partition}'s offset was changed from {before} to {offset}"
                data_loss.report(lost, self._options.fail_on_data_loss)

    def _starts_of_new(self, finder: PositionFinder, new: list[tuple[str, int]]) -> Positions:
        """Partitions that came after the query began are read from their beginning."""
        starts = finder.earliest(new) if new else {}
        for (topic, partition), offset in starts.items():
            if offset > 0:
                lost = f"added partition {topic}-{partition} starts from {offset} instead of 0"
                data_loss.report(lost, self._options.fail_on_data_loss)
        return starts

    def _limit(self, start: Positions, latest: Positions) -> Positions:
        """The limits of the options. A query that ends does not wait for minOffsetsPerTrigger: no more will come."""
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
        """The tasks of a micro-batch; none where it is empty. `filters` as in pushdown.py; `columns`, if given, are
        all that the query uses."""
        start, end = from_json(start_json), from_json(end_json)
        if self._position is None or start == end:
            self._position = end
        if start == end:
            if self._ends and self._fixed is None:
                self._next_end(end, False)
            return []
        finder = self._finder()
        known = set(self._existing([*start, *end]))
        gone = sorted(set(end) - known)
        if gone:
            names = ", ".join(f"{topic}-{partition}" for topic, partition in gone)
            data_loss.report(f"{names} are gone", self._options.fail_on_data_loss)
        pairs = [pair for pair in end if pair in known]
        new = [pair for pair in pairs if pair not in start]
        start |= self._starts_of_new(finder, new)
        ranges: Ranges = {pair: (start[pair], end[pair]) for pair in pairs}
        kept = within(ranges, finder.earliest(pairs), finder.latest(pairs), self._options)
        options = dataclasses.replace(self._options, columns=tuple(columns) or self._options.columns)
        self._last = PlanSummary()
        return plan_ranges(self._view, options, kept, self._cores, bounds_of(filters), summary=self._last)
