"""The logs of topics."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

from kbroker._fast.partition.partition import Partition
from kbroker.admin.metrics.declaration import Columns, Family, MetricTable
from kbroker.admin.metrics.slices import Pause, in_slices
from kbroker.errors import CorruptionError
from kbroker.log.log_table import LogTable

logger = logging.getLogger(__name__)

TABLE = MetricTable("Topics")
TOPICS = TABLE.gauge("kbroker_topics", "Topics, internal ones included", "topics are created by accident")
PARTITIONS = TABLE.gauge("kbroker_partitions", "Partitions that this broker leads", "memory grows")
LOG_BYTES = TABLE.gauge(
    "kbroker_topic_log_bytes", "Bytes in objects and in the write-ahead log beyond them", "the bucket grows", "topic"
)
UNFLUSHED = TABLE.gauge(
    "kbroker_topic_unflushed_bytes", "Bytes that are not in objects yet", "kbroker_wal_unflushed_bytes grows", "topic"
)
START = TABLE.gauge(
    "kbroker_topic_start_offset",
    "Sum of the log start offsets of the partitions",
    "retention deletes too much or too little",
    "topic",
)
END = TABLE.gauge(
    "kbroker_topic_end_offset",
    "Sum of the high watermarks of the partitions: its rate is that of new records",
    "you ask how many records come in",
    "topic",
)
BY_TOPIC = (LOG_BYTES, UNFLUSHED, START, END)  # in the order of LogFacts

PARTITION_TABLE = MetricTable("Partitions, with `--metrics-partitions`")
PARTITION_LOG_BYTES = PARTITION_TABLE.gauge(
    "kbroker_partition_log_bytes", "As of the topic", "partitions are uneven", "topic", "partition"
)
PARTITION_UNFLUSHED = PARTITION_TABLE.gauge(
    "kbroker_partition_unflushed_bytes", "As of the topic", "partitions are uneven", "topic", "partition"
)
PARTITION_START = PARTITION_TABLE.gauge(
    "kbroker_partition_start_offset", "Log start offset", "retention deletes too much", "topic", "partition"
)
PARTITION_END = PARTITION_TABLE.gauge(
    "kbroker_partition_end_offset", "High watermark", "partitions are uneven", "topic", "partition"
)
BY_PARTITION = (PARTITION_LOG_BYTES, PARTITION_UNFLUSHED, PARTITION_START, PARTITION_END)


class LogFacts(NamedTuple):
    """Of a partition, or sums of a topic's partitions."""

    log_bytes: int
    unflushed_bytes: int
    start_offset: int
    end_offset: int


class TopicLogMetrics:
    """Of each topic, and of each partition if `by_partition`: of what this broker leads, so that brokers add up."""

    def __init__(self, logs: LogTable, by_partition: bool, pause: Pause) -> None:
        self._logs = logs
        self._by_partition = by_partition
        self._pause = pause

    def collect(self) -> Iterator[Family]:
        logs = list(self._logs.by_id.values())
        yield TOPICS.value(len(logs))
        led_count = 0
        topics, partitions = Columns(BY_TOPIC), Columns(BY_PARTITION)
        for log in in_slices(logs, self._pause):
            led = log.led_partitions()
            if not led:
                continue
            led_count += len(led)
            log_bytes = unflushed_bytes = start_offset = end_offset = 0
            for partition in in_slices(led, self._pause):
                facts = facts_of(partition)
                log_bytes += facts.log_bytes
                unflushed_bytes += facts.unflushed_bytes
                start_offset += facts.start_offset
                end_offset += facts.end_offset
                if self._by_partition:
                    partitions.add((log.name, partition.index), facts)
            total = LogFacts(log_bytes, unflushed_bytes, start_offset, end_offset)
            topics.add((log.name,), total)
        yield PARTITIONS.value(led_count)
        yield from topics.families()
        yield from partitions.families()


def facts_of(partition: Partition) -> LogFacts:
    """Of one partition. A damaged index of the write-ahead log counts as nothing unflushed; its reads report it."""
    state = partition.log.state
    try:
        unflushed_bytes = partition.unflushed_bytes
    except (OSError, CorruptionError) as error:
        logger.debug("unflushed bytes of %s-%d: %s", partition.topic, partition.index, error)
        unflushed_bytes = 0
    log_bytes = unflushed_bytes + (state.data_bytes if state is not None else 0)
    return LogFacts(log_bytes, unflushed_bytes, partition.log_start_offset, partition.high_watermark())
