"""The driver's side of a stream: where micro-batches start and end, and their tasks.

An offset, as Spark keeps it in the checkpoint, is the kafka source's JSON: {"topic": {"0": next offset, ...}}.

Spark 4.1 asks a Python source for the latest offset without saying where the query is; the position is known from the
last range it planned (after a restart Spark plans an empty one at the checkpoint first).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from kbroker.clock import Clock, SystemClock
from kbroker.pipeline import data_loss
from kbroker.pipeline.batch_plan import Ranges, plan_ranges, within
from kbroker.pipeline.broker_tail import BrokerTail
from kbroker.pipeline.bucket_view import BucketView
from kbroker.pipeline.options import LATEST, OptionError, TopicPartition, check_stream, parse_options
from kbroker.pipeline.plan_summary import PlanSummary
from kbroker.pipeline.positions import PositionFinder, Positions, selected
from kbroker.pipeline.splits import Split

logger = logging.getLogger(__name__)

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
        self,
        given: Mapping[str, str],
        cores: int,
        trigger: str | None,
        *,
        view: BucketView | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`trigger`: what the query's is, in the words of the option `trigger`; None where that is not known."""
        self._options = parse_options(given)
        self._limited = check_stream(self._options, trigger)
        self._cores = cores
        self._clock = clock or SystemClock()
        self._view = view if view is not None else BucketView(self._options.place)
        self._broker: BrokerTail | None = None
        self._initial: Positions | None = None
        self._position: Positions | None = None  # end of the last range that was planned or announced
        self._topic_ids: dict[str, bytes] = {}  # of what was read last under a name
        self._last_batch_s = self._clock.monotonic()
        if not self._limited and (self._options.max_offsets_per_trigger or self._options.min_offsets_per_trigger):
            logger.warning("maxOffsetsPerTrigger and minOffsetsPerTrigger are ignored: option trigger is availableNow")

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

    def latest_offset(self) -> OffsetJson:
        """Where the next micro-batch ends: never below where the query is."""
        finder = self._finder()
        # Of a new query Spark asks this first and the initial offset after it; of one with a checkpoint it has planned
        # a range before.
        known = self._position if self._position is not None else self._initial_positions(finder)
        latest = finder.latest(self._existing(known))
        self._check_loss(known, latest)
        new = [pair for pair in latest if pair not in known]
        start = {pair: known[pair] for pair in latest if pair in known} | self._starts_of_new(finder, new)
        end = self._limit(start, latest)
        self._position = end
        return to_json(end)

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

    def _limit(self, start: Positions, end: Positions) -> Positions:
        """maxOffsetsPerTrigger, shared out by what each partition has; minOffsetsPerTrigger and maxTriggerDelay."""
        available = {pair: max(0, end[pair] - start[pair]) for pair in end}
        total = sum(available.values())
        if not self._limited or total == 0:
            return end
        least, most = self._options.min_offsets_per_trigger, self._options.max_offsets_per_trigger
        waited_ms = (self._clock.monotonic() - self._last_batch_s) * 1000
        if least is not None and total < least and waited_ms < self._options.max_trigger_delay_ms:
            return start
        self._last_batch_s = self._clock.monotonic()
        if most is None or total <= most:
            return end
        # Rounded up, so that every partition that has something moves: no partition starves.
        return {pair: min(end[pair], start[pair] + -(-most * count // total)) for pair, count in available.items()}

    def plan(
        self,
        start_json: OffsetJson,
        end_json: OffsetJson,
        bounds: Mapping[str, Any] | None = None,
        summary: PlanSummary | None = None,
    ) -> list[Split]:
        """The tasks of a micro-batch, as far as `bounds` permit; none where it is empty. `summary` is filled in."""
        start, end = from_json(start_json), from_json(end_json)
        if self._position is None or start == end:
            self._position = end
        if start == end:
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
        return plan_ranges(self._view, self._options, kept, self._cores, bounds, summary=summary)
