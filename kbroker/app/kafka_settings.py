"""The broker's settings that have Kafka's names: defaults, bounds, and how each is read from text.

They are given by ``--set NAME=VALUE``, ``KBROKER_SET="a=1,b=2"`` or a ``[kafka]`` table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker.app.memory import PRODUCER_ID_SHARE
from kbroker.limits import CLEANER_IO_BYTES_PER_SECOND, MERGE_IO_BYTES_PER_SECOND, PARTITIONS_PER_TOPIC_MAX
from kbroker.option_values import ConfigError, did_you_mean, parse_bool, parse_int, parse_text
from kbroker.types import parse_address_limits

PRODUCER_SHARE = "kbroker.producer.id.memory.share"


def parse_overrides(text: str) -> str:
    """HOST:COUNT,HOST:COUNT, unchanged. Raises ConfigError."""
    try:
        parse_address_limits(str(text))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return str(text)


# Kafka-named broker settings that kbroker reads, with Kafka's defaults; None: not set.
KAFKA_DEFAULTS: dict[str, Any] = {
    "auto.create.topics.enable": True,
    "delete.topic.enable": True,
    "num.partitions": 1,
    "default.replication.factor": 1,
    "broker.rack": None,
    "message.max.bytes": 1_048_588,
    "fetch.max.bytes": 57_671_680,
    "compression.type": "producer",
    "log.retention.ms": None,  # else the minutes, else the hours
    "log.retention.minutes": None,
    "log.retention.hours": 168,
    "log.retention.bytes": -1,
    "log.retention.check.interval.ms": 300_000,
    "log.segment.delete.delay.ms": 60_000,
    "log.cleanup.policy": "delete",
    "log.segment.bytes": 1_073_741_824,
    "log.message.timestamp.type": "CreateTime",
    "log.message.timestamp.before.max.ms": 9_223_372_036_854_775_807,
    "log.message.timestamp.after.max.ms": 3_600_000,
    "log.cleaner.enable": True,
    "log.cleaner.threads": 1,
    "log.cleaner.io.max.bytes.per.second": CLEANER_IO_BYTES_PER_SECOND,
    "log.cleaner.backoff.ms": 15_000,
    "log.cleaner.dedupe.buffer.size": 134_217_728,
    "log.cleaner.delete.retention.ms": 86_400_000,
    "log.cleaner.min.cleanable.ratio": 0.5,
    "log.cleaner.min.compaction.lag.ms": 0,
    "log.cleaner.max.compaction.lag.ms": 9_223_372_036_854_775_807,
    "kbroker.object.commit.bytes": 8_388_608,
    "kbroker.object.commit.interval.ms": 250,
    "kbroker.merge.enable": True,
    "kbroker.merge.io.max.bytes.per.second": MERGE_IO_BYTES_PER_SECOND,
    PRODUCER_SHARE: PRODUCER_ID_SHARE,
    "kbroker.producer.id.min.idle.ms": 300_000,
    "offsets.topic.num.partitions": 50,
    "offsets.retention.minutes": 10_080,
    "offsets.retention.check.interval.ms": 600_000,
    "offset.metadata.max.bytes": 4_096,
    "group.initial.rebalance.delay.ms": 3_000,
    "group.min.session.timeout.ms": 6_000,
    "group.max.session.timeout.ms": 1_800_000,
    "group.max.size": 2_147_483_647,
    "group.consumer.session.timeout.ms": 45_000,
    "group.consumer.min.session.timeout.ms": 45_000,
    "group.consumer.max.session.timeout.ms": 60_000,
    "group.consumer.heartbeat.interval.ms": 5_000,
    "group.consumer.min.heartbeat.interval.ms": 5_000,
    "group.consumer.max.heartbeat.interval.ms": 15_000,
    "group.consumer.assignment.interval.ms": 1_000,
    "group.consumer.max.size": 2_147_483_647,
    "group.consumer.migration.policy": "bidirectional",
    "group.share.session.timeout.ms": 45_000,
    "group.share.min.session.timeout.ms": 45_000,
    "group.share.max.session.timeout.ms": 60_000,
    "group.share.heartbeat.interval.ms": 5_000,
    "group.share.min.heartbeat.interval.ms": 5_000,
    "group.share.max.heartbeat.interval.ms": 15_000,
    "group.share.max.size": 200,
    "group.share.max.share.sessions": 2_000,
    "group.share.delivery.count.limit": 5,
    "group.share.min.delivery.count.limit": 2,
    "group.share.max.delivery.count.limit": 10,
    "group.share.record.lock.duration.ms": 30_000,
    "group.share.min.record.lock.duration.ms": 15_000,
    "group.share.max.record.lock.duration.ms": 60_000,
    "group.share.partition.max.record.locks": 2_000,
    "group.share.min.partition.max.record.locks": 100,
    "group.share.max.partition.max.record.locks": 4_000,
    "share.coordinator.state.topic.num.partitions": 50,
    "share.coordinator.snapshot.update.records.per.snapshot": 500,
    "producer.id.expiration.ms": 86_400_000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 10_000,
    "transaction.max.timeout.ms": 900_000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 3_600_000,
    "transaction.state.log.num.partitions": 50,
    "transactional.id.expiration.ms": 604_800_000,
    "telemetry.max.bytes": 1_048_576,
    "connections.max.idle.ms": 600_000,
    "max.connections": 20_000,
    "max.connections.per.ip": 2_147_483_647,
    "max.connections.per.ip.overrides": None,  # HOST:COUNT,HOST:COUNT
    "socket.request.max.bytes": 104_857_600,
    "max.incremental.fetch.session.cache.slots": 1_000,
}


# The least value of those that are not simply >= 0, and what the others may be.
KAFKA_MINIMA: dict[str, int] = {
    "num.partitions": 1,
    "default.replication.factor": -1,
    "fetch.max.bytes": 1024,
    "log.retention.ms": -1,
    "log.retention.minutes": -1,
    "log.retention.hours": -1,
    "log.retention.bytes": -1,
    "log.cleaner.max.compaction.lag.ms": 1,
    "log.cleaner.threads": 1,
    "kbroker.object.commit.bytes": 1,
    "log.retention.check.interval.ms": 1,
    "offsets.topic.num.partitions": 1,
    "offsets.retention.minutes": 1,
    "offsets.retention.check.interval.ms": 1,
    "group.max.size": 1,
    "group.consumer.session.timeout.ms": 1,
    "group.consumer.min.session.timeout.ms": 1,
    "group.consumer.max.session.timeout.ms": 1,
    "group.consumer.heartbeat.interval.ms": 1,
    "group.consumer.min.heartbeat.interval.ms": 1,
    "group.consumer.max.heartbeat.interval.ms": 1,
    "group.consumer.max.size": 1,
    "group.share.session.timeout.ms": 1,
    "group.share.min.session.timeout.ms": 1,
    "group.share.max.session.timeout.ms": 1,
    "group.share.heartbeat.interval.ms": 1,
    "group.share.min.heartbeat.interval.ms": 1,
    "group.share.max.heartbeat.interval.ms": 1,
    "group.share.max.size": 1,
    "group.share.max.share.sessions": 1,
    "group.share.delivery.count.limit": 2,
    "group.share.min.delivery.count.limit": 2,
    "group.share.max.delivery.count.limit": 5,
    "group.share.record.lock.duration.ms": 1_000,
    "group.share.min.record.lock.duration.ms": 1_000,
    "group.share.max.record.lock.duration.ms": 30_000,
    "group.share.partition.max.record.locks": 100,
    "group.share.min.partition.max.record.locks": 100,
    "group.share.max.partition.max.record.locks": 2_000,
    "share.coordinator.state.topic.num.partitions": 1,
    "producer.id.expiration.ms": 1,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1,
    "transaction.max.timeout.ms": 1,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 1,
    "transaction.state.log.num.partitions": 1,
    "transactional.id.expiration.ms": 1,
    "telemetry.max.bytes": 1,
    "max.connections": 1,
    "socket.request.max.bytes": 1024,
}
# Each additional partition or thread costs memory from the start on.
KAFKA_MAXIMA: dict[str, int] = {
    "log.cleaner.threads": 64,
    "num.partitions": PARTITIONS_PER_TOPIC_MAX,
    "offsets.topic.num.partitions": PARTITIONS_PER_TOPIC_MAX,
    "share.coordinator.state.topic.num.partitions": PARTITIONS_PER_TOPIC_MAX,
    "transaction.state.log.num.partitions": PARTITIONS_PER_TOPIC_MAX,
}
# The whole numbers that have 64 bits in Kafka; the others have 32.
KAFKA_LONGS: frozenset[str] = frozenset({
    "log.retention.ms",
    "log.retention.bytes",
    "log.retention.check.interval.ms",
    "log.segment.delete.delay.ms",
    "log.message.timestamp.before.max.ms",
    "log.message.timestamp.after.max.ms",
    "log.cleaner.io.max.bytes.per.second",
    "log.cleaner.backoff.ms",
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.delete.retention.ms",
    "log.cleaner.min.compaction.lag.ms",
    "log.cleaner.max.compaction.lag.ms",
    "kbroker.merge.io.max.bytes.per.second",
    "kbroker.producer.id.min.idle.ms",
    "offsets.retention.check.interval.ms",
    "connections.max.idle.ms",
})  # fmt: skip
KAFKA_OPTIONAL: dict[str, Callable[[Any], Any]] = {
    "broker.rack": parse_text,
    "log.retention.ms": parse_int,
    "log.retention.minutes": parse_int,
    "max.connections.per.ip.overrides": parse_overrides,
}
KAFKA_CHOICES: dict[str, tuple[str, ...]] = {
    "log.cleanup.policy": ("delete", "compact", "compact,delete", "delete,compact"),
    "log.message.timestamp.type": ("CreateTime", "LogAppendTime"),
    "compression.type": ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    "group.consumer.migration.policy": ("bidirectional", "disabled", "upgrade", "downgrade"),
}


def parse_kafka_setting(name: str, value: Any) -> Any:
    """One Kafka-named setting, typed as its default. Raises ConfigError."""
    if name not in KAFKA_DEFAULTS:
        raise ConfigError(f"{name} is not a broker setting that kbroker reads{did_you_mean(name, KAFKA_DEFAULTS)}")
    default = KAFKA_DEFAULTS[name]
    try:
        if default is None:
            given = KAFKA_OPTIONAL[name](value)
            return _in_range(name, given) if isinstance(given, int) else given
        if isinstance(default, bool):
            return parse_bool(value)
        if isinstance(default, int):
            return _in_range(name, parse_int(value))
        if isinstance(default, float):
            return _parse_share(value)
        return _one_of(KAFKA_CHOICES[name], str(value).replace(" ", ""))
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


def _in_range(name: str, value: int) -> int:
    minimum = KAFKA_MINIMA.get(name, 0)
    if value < minimum:
        raise ConfigError(f"{value} is less than {minimum}")
    maximum = KAFKA_MAXIMA.get(name, 2**63 - 1 if name in KAFKA_LONGS else 2**31 - 1)
    if value > maximum:
        raise ConfigError(f"{value} is more than {maximum}")
    return value


def _parse_share(value: Any) -> float:
    try:
        share = float("" if isinstance(value, bool) else value)
    except (TypeError, ValueError):
        raise ConfigError(f"{value!r} is not a number") from None
    if not 0 <= share <= 1:
        raise ConfigError(f"{value!r} is not between 0 and 1")
    return share


def _one_of(choices: tuple[str, ...], value: str) -> str:
    if value not in choices:
        raise ConfigError(f"{value!r} is none of {', '.join(choices)}")
    return value
