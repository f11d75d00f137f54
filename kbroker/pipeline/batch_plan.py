"""Plans a batch query, and the tasks of any query: from the manifest and the metadata alone, no object is opened."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from kbroker.limits import MIB
from kbroker.pipeline import data_loss
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
from kbroker.pipeline.positions import PositionFinder, bucket_end, selected
from kbroker.pipeline.pushdown import ANY
from kbroker.pipeline.splits import OBJECT_COST_BYTES, Share, Split, gather, objects_between

SPLIT_BYTES_MIN = 4 * MIB
SPLIT_BYTES_MAX = 256 * MIB
SPLITS_PER_CORE = 2  # so that cores finish at about the same time, unless tasks become smaller than
SPLIT_BYTES_WORTH = 128 * MIB  # since a task costs Spark some 20 ms
TAIL_COST_BYTES = 8 * MIB

Ranges = dict[TopicPartition, tuple[int, int]]


def plan_batch(given: Mapping[str, str], cores: int, bounds: Mapping[str, Any]) -> list[Split]:
    """The tasks of a batch query. Raises OptionError, UnknownTopicError, StoreError, CorruptionError, BrokerError."""
    options = parse_options(given)
    check_batch(options)
    with current_view(options.place) as view:
        if options.bootstrap is None:
            return _plan(view, options, cores, bounds, None)
        with closing(BrokerTail(options.bootstrap)) as broker:
            broker.check_cluster(view.cluster_id)
            return _plan(view, options, cores, bounds, broker)


def _plan(
    view: BucketView, options: SourceOptions, cores: int, bounds: Mapping[str, Any], broker: BrokerTail | None
) -> list[Split]:
    wanted = selected(view, options)
    finder = PositionFinder(view, options, broker)
    starting = options.starting if options.starting is not None else EARLIEST
    ending = options.ending if options.ending is not None else LATEST
    first = finder.resolve(starting, wanted, starting=True)
    stop = finder.resolve(ending, wanted, starting=False)
    ranges = {pair: (first[pair], stop[pair]) for pair in wanted}
    if (starting, ending) != (EARLIEST, LATEST):  # DeleteRecords may be ahead of what is flushed
        hint = ". What the broker has not flushed yet, tail=broker reads"
        _check_order(ranges, "" if isinstance(ending, Offsets) or broker is not None else hint)
    earliest, latest = finder.earliest(wanted), finder.latest(wanted)
    ranges = within(ranges, earliest, latest, options)
    return plan_ranges(view, options, ranges, cores, bounds)


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
) -> list[Split]:
    """Tasks that together read exactly these offsets, as far as `bounds` permit; by default SPLITS_PER_CORE if
    there is enough to read."""
    bounds = bounds or {}
    timestamps = bounds.get("timestamp", ANY)
    shares: list[Share] = []
    for pair, (first, stop) in ranges.items():
        if pair[0] in bounds.get("topic", (pair[0],)) and pair[1] in bounds.get("partition", (pair[1],)):
            low, high = bounds.get("offset", ANY)
            first, stop = max(first, low), min(stop, high + 1)
            if first < stop:
                shares += _shares(view, options, pair, first, stop, timestamps[0])
    total = sum(share.cost_bytes for share in shares)
    if splits_per_core is None:
        splits_per_core = SPLITS_PER_CORE if total >= cores * SPLITS_PER_CORE * SPLIT_BYTES_WORTH else 1
    target = _target_bytes(options, cores * splits_per_core, total)
    groups = gather(shares, target)
    while len(groups) < (options.min_partitions or 0) and target > 1:  # of small objects most of the cost is opening
        target //= 2
        groups = gather(shares, target)
    return [Split(view.cluster_id, group, *timestamps) for group in groups]


def _target_bytes(options: SourceOptions, splits: int, total: int) -> int:
    if options.split_bytes is not None:
        return options.split_bytes
    target = min(SPLIT_BYTES_MAX, max(SPLIT_BYTES_MIN, -(-total // splits)))
    if options.min_partitions is not None:
        target = min(target, max(1, total // options.min_partitions))
    return target


def _shares(
    view: BucketView, options: SourceOptions, pair: TopicPartition, first: int, stop: int, lowest_timestamp: int
) -> list[Share]:
    """At most two: what the bucket has, and the broker's rest."""
    topic_id = view.topics.by_name[pair[0]].topic_id
    border = min(stop, max(first, bucket_end(view, pair, options)))
    shares: list[Share] = []
    if first < border:
        objects = tuple(
            ref
            for ref in objects_between(view.manifest, topic_id, pair[1], first, border)
            if ref.max_timestamp >= lowest_timestamp and ref.record_count > 0
        )
        if objects:
            state = view.manifest.partition(topic_id, pair[1])
            aborted = state.aborted if state is not None and options.read_committed else ()
            ranges = tuple(entry[:3] for entry in aborted if entry[1] < border and entry[2] >= first)
            cost = sum(ref.length for ref in objects) + OBJECT_COST_BYTES * len(objects)
            shares.append(Share(*pair[:1], topic_id, pair[1], first, border, objects, ranges, cost_bytes=cost))
    if border < stop and options.bootstrap is not None:
        shares.append(Share(pair[0], topic_id, pair[1], border, stop, tail=True, cost_bytes=TAIL_COST_BYTES))
    return shares
