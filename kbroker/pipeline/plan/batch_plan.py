"""Plans a batch query, and the tasks of any query, from the manifest and the metadata alone: opens no object."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np

from kbroker.limits import MIB
from kbroker.pipeline import data_loss
from kbroker.pipeline.batch_choice import is_counted
from kbroker.pipeline.broker_tail import BrokerTail
from kbroker.pipeline.bucket_view import BucketView, current_view
from kbroker.pipeline.options import (
    EARLIEST,
    LATEST,
    Offsets,
    OptionError,
    SourceOptions,
    TopicPartition,
    check_batch,
    parse_options,
)
from kbroker.pipeline.plan.cutting import Pieces, gather
from kbroker.pipeline.plan.object_choice import Chosen, Reading, bytes_between, choose, time_bounds
from kbroker.pipeline.plan.plan_summary import PlanSummary
from kbroker.pipeline.plan.planned_objects import pack
from kbroker.pipeline.plan.splits import Share, Split
from kbroker.pipeline.positions import PositionFinder, bucket_end, selected
from kbroker.pipeline.pushdown import ANY
from kbroker.storage.manifest.partition_state import PartitionState

SPLIT_BYTES_MIN = 4 * MIB
SPLIT_BYTES_MAX = 256 * MIB
MANY_SPLITS = 2_500  # a plan with more tasks has larger ones instead
SPLIT_BYTES_MAX_OF_MANY = 1024 * MIB  # of those
TASKS_MAX = 100_000  # about, whatever minPartitions and splitBytes ask for: the driver holds each of them
SPLITS_PER_CORE = 2  # so that cores finish at about the same time
SPLIT_BYTES_WORTH = 128 * MIB  # smaller tasks are not worth it: each costs Spark some 20 ms
TAIL_COST_BYTES = 8 * MIB

Ranges = dict[TopicPartition, tuple[int, int]]


def plan_batch(
    given: Mapping[str, str], cores: int, bounds: Mapping[str, Any], summary: PlanSummary | None = None
) -> list[Split]:
    """The tasks of a batch query. Fills in `summary`.

    Raises OptionError, UnknownTopicError, StoreError, CorruptionError, BrokerError.
    """
    options = parse_options(given)
    check_batch(options)
    with current_view(options.place) as view:
        if options.bootstrap is None:
            return plan_query(view, options, cores, bounds, None, summary)
        with closing(BrokerTail(options.bootstrap)) as broker:
            broker.check_cluster(view.cluster_id)
            return plan_query(view, options, cores, bounds, broker, summary)


def plan_query(
    view: BucketView,
    options: SourceOptions,
    cores: int,
    bounds: Mapping[str, Any],
    broker: BrokerTail | None,
    summary: PlanSummary | None,
) -> list[Split]:
    """As plan_batch, from a current view and, with tail=broker, the broker."""
    wanted = selected(view, options)
    finder = PositionFinder(view, options, broker)
    starting = options.starting if options.starting is not None else EARLIEST
    ending = options.ending if options.ending is not None else LATEST
    first = finder.resolve(starting, wanted, starting=True)
    stop = finder.resolve(ending, wanted, starting=False)
    ranges = {pair: (first[pair], stop[pair]) for pair in wanted}
    if (starting, ending) != (EARLIEST, LATEST):  # DeleteRecords may be ahead of what is flushed
        hint = ". With tail=broker the query also reads what the broker has not flushed yet"
        _check_order(ranges, "" if isinstance(ending, Offsets) or broker is not None else hint)
    earliest, latest = finder.earliest(wanted), finder.latest(wanted)
    ranges = within(ranges, earliest, latest, options)
    return plan_ranges(view, options, ranges, cores, bounds, summary=summary)


def _check_order(ranges: Ranges, hint: str) -> None:
    """Raises OptionError, in the kafka source's words, if a partition would be read from beyond its end."""
    for (topic, partition), (first, stop) in ranges.items():
        if first > stop:
            raise OptionError(
                f"The resolved start offset {first} is greater than the resolved end offset {stop} for topic {topic} "
                f"partition {partition}{hint}"
            )


def within(
    ranges: Ranges, earliest: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int], options: SourceOptions
) -> Ranges:
    """The part of each range that exists. A missing start is data loss, a missing end a wrong option."""
    kept: Ranges = {}
    for pair, (first, stop) in ranges.items():
        name = f"{pair[0]}-{pair[1]}"
        if stop <= first:
            continue
        if first < earliest[pair]:
            lost = f"offsets {first} to {min(stop, earliest[pair]) - 1} of {name} no longer exist"
            data_loss.report(lost, options.fail_on_data_loss)
            first = min(stop, earliest[pair])
        if stop > latest[pair]:
            tail = "" if options.bootstrap else "; tail=broker reads what the broker has not flushed yet"
            problem = f"the query reads {name} up to offset {stop}, but it ends at {latest[pair]}{tail}"
            if options.fail_on_data_loss:
                raise OptionError(f"{problem}. To read what there is, set option 'failOnDataLoss' to 'false'")
            stop = max(first, latest[pair])
        if first < stop:
            kept[pair] = (first, stop)
    return kept


def plan_ranges(
    view: BucketView,
    options: SourceOptions,
    ranges: Ranges,
    cores: int,
    bounds: Mapping[str, Any] | None = None,
    *,
    splits_per_core: int | None = None,
    summary: PlanSummary | None = None,
) -> list[Split]:
    """Tasks that together read exactly these offsets, within `bounds`; by default SPLITS_PER_CORE if there is enough
    to read. Fills in `summary`."""
    bounds = bounds or {}
    timestamps = bounds.get("timestamp", ANY)
    counted = is_counted(options.columns, *timestamps)
    reading = Reading(timestamps, counted, offsets="offset" in options.columns)
    summary = summary if summary is not None else PlanSummary()
    chosen: list[Chosen | Share] = []
    for pair, offsets in ranges.items():
        first, stop = _within_bounds(pair, offsets, bounds)
        if (first, stop) != offsets:
            summary.skipped_by_offset += _bytes_excluded(view, pair, offsets, (first, stop))
        if first < stop:
            chosen += _chosen(view, options, pair, (first, stop), reading, summary)
    total = sum(one.cost_bytes for one in chosen)
    if splits_per_core is None:
        splits_per_core = SPLITS_PER_CORE if total >= cores * SPLITS_PER_CORE * SPLIT_BYTES_WORTH else 1
    least = max(1, total // TASKS_MAX)
    target = max(least, _target_bytes(options, cores * splits_per_core, total))
    files = view.manifest.files
    groups = gather(chosen, target, files, reading)
    while len(groups) < (options.min_partitions or 0) and target > least:  # opening dominates the cost of small objects
        target = max(least, target // 2)
        groups = gather(chosen, target, files, reading)
    return [_split(view, options, group, reading) for group in groups]


def _target_bytes(options: SourceOptions, splits: int, total: int) -> int:
    if options.split_bytes is not None:
        return options.split_bytes
    target = min(SPLIT_BYTES_MAX, max(SPLIT_BYTES_MIN, -(-total // splits)))
    target = max(target, min(SPLIT_BYTES_MAX_OF_MANY, total // MANY_SPLITS))
    if options.min_partitions is not None:
        target = min(target, max(1, total // options.min_partitions))
    return target


def _within_bounds(pair: TopicPartition, offsets: tuple[int, int], bounds: Mapping[str, Any]) -> tuple[int, int]:
    """The part of [first, stop) that the bounds of topic, partition and offset leave; it may be empty."""
    first, stop = offsets
    if pair[0] not in bounds.get("topic", (pair[0],)) or pair[1] not in bounds.get("partition", (pair[1],)):
        return first, first
    low, high = bounds.get("offset", ANY)
    first = min(max(first, low), stop)
    return first, max(first, min(stop, high + 1))


def _bytes_excluded(view: BucketView, pair: TopicPartition, offsets: tuple[int, int], kept: tuple[int, int]) -> int:
    state = _state(view, pair)
    if state is None:
        return 0
    inside = bytes_between(state, *kept) if kept[0] < kept[1] else 0
    return max(0, bytes_between(state, *offsets) - inside)


def _chosen(
    view: BucketView,
    options: SourceOptions,
    pair: TopicPartition,
    offsets: tuple[int, int],
    reading: Reading,
    summary: PlanSummary,
) -> list[Chosen | Share]:
    """The part in the bucket, and the rest from the broker."""
    first, stop = offsets
    topic_id = view.topics.by_name[pair[0]].topic_id
    border = min(stop, max(first, bucket_end(view, pair, options)))
    state = _state(view, pair)
    found: list[Chosen | Share] = []
    if state is not None and first < border:
        found += choose(pair[0], topic_id, state, (first, border), view.manifest.files, reading, summary)
    if border < stop and options.bootstrap is not None:
        summary.tail_offsets += stop - border
        found.append(Share(pair[0], topic_id, pair[1], border, stop, tail=True, cost_bytes=TAIL_COST_BYTES))
    return found


def _split(view: BucketView, options: SourceOptions, pieces: Pieces, reading: Reading) -> Split:
    """One task: its shares, and their objects packed together."""
    shares: list[Share] = []
    rows: list[np.ndarray] = []
    low = 0
    for piece in pieces:
        if isinstance(piece, Share):
            shares.append(piece)
            continue
        chosen, high = piece.chosen, low + piece.high - piece.low
        rows.append(chosen.rows(piece.low, piece.high))
        aborted = chosen.state.aborted if options.read_committed else ()
        shares.append(
            Share(
                chosen.topic,
                chosen.topic_id,
                chosen.partition,
                piece.first,
                piece.stop,
                low,
                high,
                aborted=tuple(entry[:3] for entry in aborted if entry[1] < piece.stop and entry[2] >= piece.first),
                cost_bytes=piece.cost_bytes,
            )
        )
        low = high
    packed = None
    if rows:
        matrix = np.concatenate(rows)
        packed = pack(view.manifest, matrix, time_bounds(matrix) if reading.timestamps[1] < ANY[1] else ())
    return Split(view.cluster_id, tuple(shares), *reading.timestamps, packed)


def _state(view: BucketView, pair: TopicPartition) -> PartitionState | None:
    return view.manifest.partition(view.topics.by_name[pair[0]].topic_id, pair[1])
