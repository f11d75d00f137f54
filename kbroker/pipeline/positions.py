"""Which partitions a query reads, and where in them it starts and ends."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kbroker._fast.records.records import first_record_at_or_after
from kbroker.cluster.image import TopicImage
from kbroker.limits import MIB
from kbroker.pipeline.broker_tail import BrokerTail
from kbroker.pipeline.bucket_view import BucketView
from kbroker.pipeline.options import (
    EARLIEST,
    LATEST,
    Limit,
    Offsets,
    OptionError,
    SourceOptions,
    Timestamps,
    TopicPartition,
)
from kbroker.storage.manifest.partition_state import PartitionState
from kbroker.storage.read.object_reader import ObjectReader

LOOK_UP_CACHE_BYTES = 32 * MIB

Positions = dict[TopicPartition, int]


class UnknownTopicError(Exception):
    """A topic or partition that was asked for by name does not exist; the message says in which bucket."""


def selected(view: BucketView, options: SourceOptions) -> list[TopicPartition]:
    """The topic partitions that the options name, in order."""
    names = view.topics.by_name
    if options.pattern is not None:
        matches = re.compile(options.pattern).fullmatch
        topics = [topic for name, topic in sorted(names.items()) if not topic.internal and matches(name)]
        return [(topic.name, number) for topic in topics for number in range(topic.partitions)]
    if options.assigned is not None:
        for topic, partition in options.assigned:
            count = _topic(view, topic).partitions
            if partition >= count:
                raise UnknownTopicError(f"assign: topic {topic} has {count} partitions, no {partition}")
        return list(options.assigned)
    return [(name, number) for name in options.topics or () for number in range(_topic(view, name).partitions)]


def is_named(options: SourceOptions, topic: str) -> bool:
    """Whether the options name this topic, which may exist or not."""
    if options.pattern is not None:
        return re.fullmatch(options.pattern, topic) is not None
    assigned = [name for name, _ in options.assigned or ()]
    return topic in (options.topics or assigned)


def _topic(view: BucketView, name: str) -> TopicImage:
    topic = view.topics.by_name.get(name)
    if topic is None:
        known = sorted(one.name for one in view.topics.by_name.values() if not one.internal)
        listed = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
        raise UnknownTopicError(f"no topic {name} in cluster {view.cluster_id}; there are: {listed or 'none'}")
    return topic


class PositionFinder:
    """Finds earliest, latest and by-timestamp offsets: in the bucket, or at the broker with tail=broker."""

    def __init__(self, view: BucketView, options: SourceOptions, broker: BrokerTail | None) -> None:
        self._view = view
        self._options = options
        self._broker = broker

    def earliest(self, wanted: list[TopicPartition]) -> Positions:
        """Log start offsets."""
        if self._broker is not None:
            return self._broker.offsets(dict.fromkeys(wanted, EARLIEST), read_committed=False)
        states = {pair: self._state(pair) for pair in wanted}
        return {pair: state.log_start_offset if state is not None else 0 for pair, state in states.items()}

    def latest(self, wanted: list[TopicPartition]) -> Positions:
        """End offsets; with read_committed, last stable offsets."""
        if self._broker is not None:
            return self._broker.offsets(dict.fromkeys(wanted, LATEST), read_committed=self._options.read_committed)
        return {pair: bucket_end(self._view, pair, self._options) for pair in wanted}

    def resolve(self, limit: Limit, wanted: list[TopicPartition], *, starting: bool) -> Positions:
        """Resolves a limit to offsets of exactly the partitions `wanted`."""
        if isinstance(limit, int):
            return self.earliest(wanted) if limit == EARLIEST else self.latest(wanted)
        given = limit.by_partition
        if given is not None:
            _check_complete(given, wanted, limit.option)
        if isinstance(limit, Timestamps):
            return self._by_timestamp(limit, wanted, starting)
        assert isinstance(limit, Offsets)
        found = dict(limit.by_partition)
        for special, find in ((EARLIEST, self.earliest), (LATEST, self.latest)):
            found |= find([pair for pair, offset in limit.by_partition.items() if offset == special])
        return found

    def _by_timestamp(self, limit: Timestamps, wanted: list[TopicPartition], starting: bool) -> Positions:
        if limit.by_partition is not None:
            asked = dict(limit.by_partition)
        else:
            assert limit.everywhere is not None
            asked = dict.fromkeys(wanted, limit.everywhere)
        latest = self.latest(wanted)
        if self._broker is not None:
            found = self._broker.offsets(asked, read_committed=self._options.read_committed)
        else:
            reader = ObjectReader(self._view.store, self._view.manifest, LOOK_UP_CACHE_BYTES)
            found = {pair: self._look_up(reader, pair, timestamp, latest[pair]) for pair, timestamp in asked.items()}
        for (topic, partition), offset in found.items():
            if offset < 0 and starting and not self._options.latest_when_no_match:
                raise OptionError(
                    f"No offset matched from request of topic-partition {topic}-{partition} and timestamp "
                    f"{asked[topic, partition]}"
                )
        return {pair: offset if offset >= 0 else latest[pair] for pair, offset in found.items()}

    def _look_up(self, reader: ObjectReader, pair: TopicPartition, timestamp: int, end: int) -> int:
        """The first record at or after a time; -1 for none below `end`."""
        topic = self._view.topics.by_name[pair[0]]
        state = self._state(pair)
        offset = state.log_start_offset if state is not None else 0
        while offset < end:
            batch = reader.timestamps.batch_at(topic.topic_id, pair[1], timestamp, offset)
            if batch is None:
                return -1
            data, next_offset = batch
            found = first_record_at_or_after(data, timestamp, offset)
            if found is not None:
                return int(found[0]) if found[0] < end else -1
            offset = next_offset
        return -1

    def _state(self, pair: TopicPartition) -> PartitionState | None:
        return self._view.manifest.partition(self._view.topics.by_name[pair[0]].topic_id, pair[1])


def bucket_end(view: BucketView, pair: TopicPartition, options: SourceOptions) -> int:
    """Where the bucket's part of a partition ends for this query: its end offset, or last stable offset."""
    state = view.manifest.partition(view.topics.by_name[pair[0]].topic_id, pair[1])
    if state is None:
        return 0
    return state.last_stable_offset if options.read_committed else state.end_offset


def _check_complete(given: Mapping[TopicPartition, int], wanted: list[TopicPartition], option: str) -> None:
    if set(given) != set(wanted):
        name = "starting/endingOffsetsByTimestamp" if "ByTimestamp" in option else option

        def listed(pairs: set[TopicPartition]) -> str:
            return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(pairs))

        raise OptionError(
            f"If {name} contains specific offsets, you must specify all TopicPartitions. Use -1 for latest, -2 for "
            f"earliest. Specified: {listed(set(given))}. Assigned: {listed(set(wanted))}"
        )
