"""What clients write to topics and read of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kbroker._fast.partition.partition import traffic
from kbroker.admin.metrics.declaration import Columns, Family, LabelValues, Metric, MetricTable
from kbroker.admin.metrics.slices import Pause, in_slices
from kbroker.log.log_table import LogTable

PRODUCED_HELP = "appended to a topic, by producers and by the broker itself"
CONSUMED_HELP = "in answers to consumers, of share groups too"
RECORDS_HELP = (
    "; counted by offsets from where the consumer asks, and where objects are read as the batches' headers say"
)

TABLE = MetricTable("Traffic of topics")
PRODUCED_BYTES = TABLE.counter(
    "kbroker_topic_produced_bytes_total", f"Bytes of batches {PRODUCED_HELP}", "you look for the busiest topic", "topic"
)
PRODUCED_RECORDS = TABLE.counter(
    "kbroker_topic_produced_records_total", f"Records {PRODUCED_HELP}", "you look for the busiest topic", "topic"
)
CONSUMED_BYTES = TABLE.counter(
    "kbroker_topic_consumed_bytes_total", f"Bytes of batches {CONSUMED_HELP}", "you look for the busiest topic", "topic"
)
CONSUMED_RECORDS = TABLE.counter(
    "kbroker_topic_consumed_records_total",
    f"Records {CONSUMED_HELP}{RECORDS_HELP}",
    "you look for the busiest topic",
    "topic",
)

PARTITION_TABLE = MetricTable("Traffic of partitions, with `--metrics-partitions`")
PARTITION_PRODUCED_BYTES = PARTITION_TABLE.counter(
    "kbroker_partition_produced_bytes_total", "As of the topic", "keys are skewed", "topic", "partition"
)
PARTITION_PRODUCED_RECORDS = PARTITION_TABLE.counter(
    "kbroker_partition_produced_records_total", "As of the topic", "keys are skewed", "topic", "partition"
)
PARTITION_CONSUMED_BYTES = PARTITION_TABLE.counter(
    "kbroker_partition_consumed_bytes_total", "As of the topic", "a partition lags", "topic", "partition"
)
PARTITION_CONSUMED_RECORDS = PARTITION_TABLE.counter(
    "kbroker_partition_consumed_records_total", "As of the topic", "a partition lags", "topic", "partition"
)
BY_TOPIC = (PRODUCED_BYTES, PRODUCED_RECORDS, CONSUMED_BYTES, CONSUMED_RECORDS)
BY_PARTITION = (
    PARTITION_PRODUCED_BYTES,
    PARTITION_PRODUCED_RECORDS,
    PARTITION_CONSUMED_BYTES,
    PARTITION_CONSUMED_RECORDS,
)


class TopicTraffic:
    """Of all topics that there are now. One has no series before its first traffic, as in Kafka."""

    def __init__(self, logs: LogTable, by_partition: bool, pause: Pause) -> None:
        self._logs = logs
        self._by_partition = by_partition
        self._pause = pause

    def collect(self) -> Iterator[Family]:
        topics = list(self._logs.by_name.values())
        rows = (((topic.name,), traffic(topic.partitions)) for topic in in_slices(topics, self._pause))
        yield from _with_traffic(BY_TOPIC, rows)
        if self._by_partition:
            partitions = [partition for topic in topics for partition in topic.partitions]
            each = in_slices(partitions, self._pause)
            yield from _with_traffic(
                BY_PARTITION, (((partition.topic, partition.index), traffic([partition])) for partition in each)
            )


def _with_traffic(metrics: Sequence[Metric], rows: Iterable[tuple[LabelValues, Sequence[int]]]) -> Iterator[Family]:
    columns = Columns(metrics)
    for labels, counts in rows:
        if any(counts):
            columns.add(labels, counts)
    yield from columns.families()
