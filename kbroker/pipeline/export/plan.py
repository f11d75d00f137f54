"""Plans which offsets an export takes: from where the last one ended to the end of what the bucket has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kbroker.pipeline import data_loss
from kbroker.pipeline.bucket_view import BucketView
from kbroker.pipeline.export.log import Offsets
from kbroker.pipeline.options import EARLIEST, OptionError, Place, SourceOptions, parse_options
from kbroker.pipeline.plan.batch_plan import Ranges, plan_ranges, within
from kbroker.pipeline.plan.splits import Split
from kbroker.pipeline.positions import PositionFinder, Positions, selected

SPLITS_PER_CORE = 1  # a task ends with a wait for the disk or the bucket, and leaves a file of its own


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """The tasks, and the state after them."""

    splits: list[Split]
    offsets: Offsets
    ranges: Ranges


def source_options(
    place: Place,
    topics: tuple[str, ...],
    columns: tuple[str, ...],
    *,
    isolation: str,
    starting_timestamp: int | None = None,
    split_bytes: int | None = None,
    fail_on_data_loss: bool = True,
) -> dict[str, str]:
    """The options of the reader, as of ``format("kbroker")``."""
    given = {
        "object.store": place.url,
        "cluster.id": place.cluster_id,
        "s3.endpoint": place.endpoint,
        "s3.region": place.region,
        "subscribe": ",".join(topics),
        "columns": ",".join(columns),
        "kafka.isolation.level": isolation,
        "failOnDataLoss": "true" if fail_on_data_loss else "false",
        "startingTimestamp": None if starting_timestamp is None else str(starting_timestamp),
        "startingOffsetsByTimestampStrategy": "latest",
        "splitBytes": None if split_bytes is None else str(split_bytes),
    }
    return {name: value for name, value in given.items() if value is not None}


def plan_export(view: BucketView, given: Mapping[str, str], known: Offsets, cores: Callable[[], int]) -> ExportPlan:
    """Plans what was added since `known`. Raises OptionError, UnknownTopicError, DataLossError, StoreError."""
    options = parse_options(given)
    wanted = selected(view, options)
    finder = PositionFinder(view, options, None)
    ids = {topic: view.topics.by_name[topic].topic_id.hex() for topic, _ in wanted}
    start = _starts(finder, options, wanted, ids, known)
    latest, earliest = finder.latest(wanted), finder.earliest(wanted)
    for pair in wanted:
        if latest[pair] < start[pair] and (pair[0], ids[pair[0]], pair[1]) in known:
            lost = f"{pair[0]}-{pair[1]} ends at offset {latest[pair]}, and was exported up to {start[pair]}"
            data_loss.report(lost, options.fail_on_data_loss)
    ranges = within({pair: (start[pair], latest[pair]) for pair in wanted}, earliest, latest, options)
    splits = plan_ranges(view, options, ranges, cores(), splits_per_core=SPLITS_PER_CORE) if ranges else []
    offsets = dict(known)
    for topic, partition in wanted:
        offsets[topic, ids[topic], partition] = latest[topic, partition]
    return ExportPlan(splits, offsets, ranges)


def _starts(
    finder: PositionFinder,
    options: SourceOptions,
    wanted: list[tuple[str, int]],
    ids: Mapping[str, str],
    known: Offsets,
) -> Positions:
    for topic, topic_id, _ in known:
        if topic in ids and ids[topic] != topic_id:
            raise OptionError(
                f"topic {topic} was deleted and recreated since it was exported; its offsets start again. Export it to "
                "another destination"
            )
    start = {
        pair: known[pair[0], ids[pair[0]], pair[1]] for pair in wanted if (pair[0], ids[pair[0]], pair[1]) in known
    }
    new = [pair for pair in wanted if pair not in start]
    if new:
        start |= finder.resolve(options.starting if options.starting is not None else EARLIEST, new, starting=True)
    return start
