"""Topic configs: one table of every key, its rules and its broker synonym; parsed once into a frozen TopicConfig.

Keys, types, defaults and ranges are Apache Kafka's (TopicConfig, LogConfig). Keys of Kafka that have no effect in
kbroker are accepted, stored and reported, since tools set them unasked (Streams, Connect, Debezium, UIs). Keys of
kbroker's own begin with ``kbroker.``. An unknown key or a bad value is INVALID_CONFIG (40).
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from kbroker.config_values import INT64_MAX, ConfigType, normal_text, parse_value
from kbroker.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

SEGMENT_BYTES_MIN = 1 << 20  # Kafka's since 4.0 (KIP-1030)
VALUE_LENGTH_MAX = 32_767  # a protocol string; also bounds what one topic may keep in the metadata log


# Says what is wrong with a parsed value, or None.
Check = Callable[[Any], str | None]


class ConfigDef(NamedTuple):
    """One config key: how to read it and how to describe it."""

    name: str
    type: ConfigType
    default: str | None
    documentation: str
    check: Check | None = None
    synonym: str | None = None  # the broker config that gives the topic its default
    hidden: bool = False  # removed from Kafka: accepted, and described only if set
    distinct: bool = False  # of equal elements of a list the first is kept

    def parse(self, text: str) -> Any:
        """The typed value. Raises KafkaError INVALID_CONFIG."""
        if len(text) > VALUE_LENGTH_MAX:
            raise _invalid(self.name, text[:64] + "...", "the value is too long")
        try:
            value = parse_value(self.type, text)
        except ValueError as error:
            raise _invalid(self.name, text, str(error)) from None
        if self.distinct:
            value = tuple(dict.fromkeys(value))
        problem = self.check(value) if self.check else None
        if problem:
            raise _invalid(self.name, text, problem)
        return value

    def normal(self, text: str) -> str:
        """The value as Kafka answers it; a text that another version accepted and this one refuses is unchanged."""
        # Up to 0.2 blanks were Unicode's, and underscores could part the digits of a ratio.
        earlier = "".join(" " if letter.isspace() else letter for letter in text)
        for spelling in (text, earlier.replace("_", "") if self.type is ConfigType.DOUBLE else earlier):
            with contextlib.suppress(KafkaError):
                return normal_text(self.parse(spelling))
        return text


def _invalid(name: str, text: str, problem: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, f"Invalid value {text} for configuration {name}: {problem}")


def at_least(lowest: float) -> Check:
    """Values from `lowest` up, and NaN, which is not below it."""
    return lambda value: f"Value must be at least {lowest}" if value < lowest else None


def between(lowest: float, highest: float) -> Check:
    """Values from `lowest` to `highest`, both included, and NaN, as in Kafka."""
    return lambda value: f"Value must be in [{lowest}, {highest}]" if value < lowest or value > highest else None


def one_of(*allowed: str) -> Check:
    """One of some strings."""
    return lambda value: None if value in allowed else f"String must be one of: {', '.join(allowed)}"


def _each_of(*allowed: str) -> Check:
    def check(values: tuple[str, ...]) -> str | None:
        if any(value not in allowed for value in values):
            return f"List values must be one of: {', '.join(allowed)}"
        return None if len(set(values)) == len(values) else "List values must be unique"

    return check


def _gzip_level(level: int) -> str | None:
    return None if level == -1 or 1 <= level <= 9 else "Value must be in [1, 9] or -1"


def _throttled_replicas(values: tuple[str, ...]) -> str | None:
    if values == ("*",) or all(_THROTTLED_REPLICA.fullmatch(value) for value in values):
        return None
    return "must be the literal '*' or a list of replicas as [partitionId]:[brokerId]"


_THROTTLED_REPLICA = re.compile("([0-9]+:[0-9]+)?")  # Kafka takes empty elements too
_BOOLEAN, _STRING, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LONG
_DOUBLE, _LIST = ConfigType.DOUBLE, ConfigType.LIST
_FOREVER = str(INT64_MAX)

_DEFINITIONS = (
    ConfigDef("cleanup.policy", _LIST, "delete", "What happens to old records: delete by age and size, compact by "
              "key, or both.", _each_of("delete", "compact"), "log.cleanup.policy", distinct=True),
    ConfigDef("compression.type", _STRING, "producer", "Codec of stored batches; producer keeps the client's.",
              one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"), "compression.type"),
    ConfigDef("compression.gzip.level", _INT, "-1", "Level where compression.type is gzip.", _gzip_level,
              "compression.gzip.level"),
    ConfigDef("compression.lz4.level", _INT, "9", "Level where compression.type is lz4.", between(1, 17),
              "compression.lz4.level"),
    ConfigDef("compression.zstd.level", _INT, "3", "Level where compression.type is zstd.", between(-131072, 22),
              "compression.zstd.level"),
    ConfigDef("delete.retention.ms", _LONG, "86400000", "How long compaction keeps a tombstone.", at_least(0),
              "log.cleaner.delete.retention.ms"),
    ConfigDef("file.delete.delay.ms", _LONG, "60000", "Delay between dropping data and removing its objects.",
              at_least(0), "log.segment.delete.delay.ms"),
    ConfigDef("flush.messages", _LONG, _FOREVER, "Kept for tools; every acknowledged record is already synced.",
              at_least(1), "log.flush.interval.messages"),
    ConfigDef("flush.ms", _LONG, _FOREVER, "Kept for tools; every acknowledged record is already synced.",
              at_least(0), "log.flush.interval.ms"),
    ConfigDef("index.interval.bytes", _INT, "4096", "Kept for tools; every batch is indexed.", at_least(0),
              "log.index.interval.bytes"),
    ConfigDef("segment.index.bytes", _INT, "10485760", "Kept for tools and for exported segments.", at_least(4),
              "log.index.size.max.bytes"),
    ConfigDef("max.message.bytes", _INT, "1048588", "Largest record batch, after compression.", at_least(0),
              "message.max.bytes"),
    ConfigDef("max.decompressed.message.bytes", _INT, "2147483639", "Largest record of a compressed batch, once it is "
              "decompressed.", between(1, 2147483639), "max.decompressed.message.bytes"),
    ConfigDef("min.compaction.lag.ms", _LONG, "0", "Records younger than this are not compacted.", at_least(0),
              "log.cleaner.min.compaction.lag.ms"),
    ConfigDef("max.compaction.lag.ms", _LONG, _FOREVER, "Records older than this are due for compaction.",
              at_least(1), "log.cleaner.max.compaction.lag.ms"),
    ConfigDef("message.timestamp.type", _STRING, "CreateTime", "Whose clock stamps records: the client's or, as "
              "LogAppendTime, the broker's.", one_of("CreateTime", "LogAppendTime"), "log.message.timestamp.type"),
    ConfigDef("message.timestamp.before.max.ms", _LONG, _FOREVER, "How far a timestamp may lie behind the broker's "
              "clock.", at_least(0), "log.message.timestamp.before.max.ms"),
    ConfigDef("message.timestamp.after.max.ms", _LONG, "3600000", "How far a timestamp may lie ahead of the broker's "
              "clock.", at_least(0), "log.message.timestamp.after.max.ms"),
    ConfigDef("min.cleanable.dirty.ratio", _DOUBLE, "0.5", "Share of new data at which compaction starts.",
              between(0, 1), "log.cleaner.min.cleanable.ratio"),
    ConfigDef("preallocate", _BOOLEAN, "false", "Kept for tools; the write-ahead log is always preallocated.", None,
              "log.preallocate"),
    ConfigDef("min.insync.replicas", _INT, "1", "Kept for tools; durability does not come from replicas.",
              at_least(1), "min.insync.replicas"),
    ConfigDef("unclean.leader.election.enable", _BOOLEAN, "false", "Kept for tools; there is no unclean election.",
              None, "unclean.leader.election.enable"),
    ConfigDef("retention.bytes", _LONG, "-1", "Size of a partition above which its oldest data goes; below 0: "
              "no bound.", None, "log.retention.bytes"),
    ConfigDef("retention.ms", _LONG, "604800000", "Age above which data goes; -1: none.", at_least(-1),
              "log.retention.ms"),
    ConfigDef("segment.bytes", _INT, "1073741824", "Largest append; size of exported segments.",
              at_least(SEGMENT_BYTES_MIN), "log.segment.bytes"),
    ConfigDef("segment.ms", _LONG, "604800000", "Age at which a segment is complete for retention and compaction.",
              at_least(1), "log.roll.ms"),
    ConfigDef("segment.jitter.ms", _LONG, "0", "Kept for tools.", at_least(0), "log.roll.jitter.ms"),
    ConfigDef("remote.storage.enable", _BOOLEAN, "false", "Refused where true, as by a Kafka without tiered storage; "
              "all data is in object storage anyway."),
    ConfigDef("local.retention.ms", _LONG, "-2", "Kept for tools; the local disk holds only the write-ahead log.",
              at_least(-2), "log.local.retention.ms"),
    ConfigDef("local.retention.bytes", _LONG, "-2", "Kept for tools; the local disk holds only the write-ahead log.",
              at_least(-2), "log.local.retention.bytes"),
    ConfigDef("remote.log.copy.disable", _BOOLEAN, "false", "Kept for tools."),
    ConfigDef("remote.log.delete.on.disable", _BOOLEAN, "false", "Kept for tools."),
    ConfigDef("remote.copy.lag.ms", _LONG, "0", "Kept for tools.", at_least(-1), "log.remote.copy.lag.ms"),
    ConfigDef("remote.copy.lag.bytes", _LONG, "-1", "Kept for tools.", at_least(-1), "log.remote.copy.lag.bytes"),
    ConfigDef("leader.replication.throttled.replicas", _LIST, "", "Kept for tools; nothing is replicated.",
              _throttled_replicas),
    ConfigDef("follower.replication.throttled.replicas", _LIST, "", "Kept for tools; nothing is replicated.",
              _throttled_replicas),
    ConfigDef("kbroker.durability", _STRING, "wal", "What an acknowledgement waits for: wal (synced on the local "
              "disk), or object (in the object store too, so that the disk may be lost).", one_of("wal", "object")),
    ConfigDef("kbroker.object.format", _STRING, "klix", "Format of the topic's objects: klix or, chosen when it is "
              "created, kfs (KafScale's; not compacted).", one_of("klix", "kfs")),
    ConfigDef("message.downconversion.enable", _BOOLEAN, "true", "Removed in Kafka 4.0; kept for tools.", hidden=True),
    ConfigDef("message.format.version", _STRING, "3.0-IV1", "Removed in Kafka 4.0; kept for tools.", hidden=True),
    ConfigDef("message.timestamp.difference.max.ms", _LONG, _FOREVER, "Removed in Kafka 4.0; kept for tools.",
              at_least(0), hidden=True),
)  # fmt: skip

TOPIC_CONFIGS: dict[str, ConfigDef] = {definition.name: definition for definition in _DEFINITIONS}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """All configs of one topic, typed; a field is its key with `.` as `_`. Times are ms, sizes bytes."""

    cleanup_policy: tuple[str, ...]
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    index_interval_bytes: int
    segment_index_bytes: int
    max_message_bytes: int
    max_decompressed_message_bytes: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    message_timestamp_type: str
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    min_cleanable_dirty_ratio: float
    preallocate: bool
    min_insync_replicas: int
    unclean_leader_election_enable: bool
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_ms: int
    segment_jitter_ms: int
    remote_storage_enable: bool
    local_retention_ms: int
    local_retention_bytes: int
    remote_log_copy_disable: bool
    remote_log_delete_on_disable: bool
    remote_copy_lag_ms: int
    remote_copy_lag_bytes: int
    leader_replication_throttled_replicas: tuple[str, ...]
    follower_replication_throttled_replicas: tuple[str, ...]
    kbroker_durability: str
    kbroker_object_format: str
    message_downconversion_enable: bool
    message_format_version: str
    message_timestamp_difference_max_ms: int

    @property
    def compacted(self) -> bool:
        """Old values of a key may be removed; null keys are refused."""
        return "compact" in self.cleanup_policy

    @property
    def delete_enabled(self) -> bool:
        """Time and size retention apply."""
        return "delete" in self.cleanup_policy

    @property
    def object_durable(self) -> bool:
        """An acknowledgement waits until the records are in objects that the manifest names."""
        return self.kbroker_durability == "object"

    @property
    def kfs(self) -> bool:
        """Objects are KafScale segments, with keys that carry no topic id."""
        return self.kbroker_object_format == "kfs"

    @property
    def log_append_time(self) -> bool:
        """The broker stamps the records."""
        return self.message_timestamp_type == "LogAppendTime"


def normal_configs(definitions: Mapping[str, ConfigDef], configs: Mapping[str, str]) -> dict[str, str]:
    """Configs in their normal form."""
    return {name: definitions[name].normal(text) if name in definitions else text for name, text in configs.items()}


def without_refused(configs: Mapping[str, str], check: Callable[[str, str], object]) -> dict[str, str]:
    """Stored configs without those for whose name and value `check` raises KafkaError.

    Another version accepted these: the default replaces them, because they must not stop a start.
    """
    kept = {}
    for name, text in configs.items():
        try:
            check(name, text)
        except KafkaError as error:
            logger.error("the stored config %s is ignored: %s", name, error)
        else:
            kept[name] = text
    return kept


def stored_configs(definitions: Mapping[str, ConfigDef], configs: Mapping[str, str]) -> dict[str, str]:
    """Configs from the metadata log in their normal form, without values that this kbroker refuses."""
    return _accepted(definitions, normal_configs(definitions, configs))


def _accepted(definitions: Mapping[str, ConfigDef], stored: Mapping[str, str]) -> dict[str, str]:
    return without_refused(stored, lambda name, text: name in definitions and definitions[name].parse(text))


def stored_topic_configs(configs: Mapping[str, str]) -> dict[str, str]:
    """`stored_configs` of a topic, with what an earlier kbroker accepted: a `segment.bytes` that is too small becomes
    the minimum, `remote.storage.enable` is dropped."""
    stored = normal_configs(TOPIC_CONFIGS, configs)
    if stored.get("remote.storage.enable") == "true":
        del stored["remote.storage.enable"]
    with contextlib.suppress(ValueError):
        if int(stored.get("segment.bytes", SEGMENT_BYTES_MIN)) < SEGMENT_BYTES_MIN:
            stored["segment.bytes"] = str(SEGMENT_BYTES_MIN)
    return _accepted(TOPIC_CONFIGS, stored)


def parse_topic_config(overrides: Mapping[str, str], defaults: Mapping[str, str] | None = None) -> TopicConfig:
    """The typed configs of a topic.

    `overrides` are the topic's own, `defaults` the broker's by topic key where they differ from the table (see
    cluster.config_defs). Raises KafkaError INVALID_CONFIG for an unknown key, a bad value, or values that clash.
    """
    return _parse(frozenset(overrides.items()), frozenset(defaults.items() if defaults else ()))


@lru_cache(maxsize=1024)  # most topics of a cluster share a handful of sets of configs
def _parse(overrides: frozenset[tuple[str, str]], defaults: frozenset[tuple[str, str]]) -> TopicConfig:
    given = {**dict(defaults), **dict(overrides)}
    for name in given:
        if name not in TOPIC_CONFIGS:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
    fields = {}
    for definition in _DEFINITIONS:
        text = given.get(definition.name, definition.default)
        if text is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {definition.name}")
        fields[definition.name.replace(".", "_")] = definition.parse(text)
    config = TopicConfig(**fields)
    _check_together(config)
    return config


def _check_together(config: TopicConfig) -> None:
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"conflict topic config setting min.compaction.lag.ms ({config.min_compaction_lag_ms}) > "
            f"max.compaction.lag.ms ({config.max_compaction_lag_ms})",
        )
    if config.kfs and config.compacted:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, "Topics with kbroker.object.format=kfs cannot have cleanup.policy=compact"
        )
    if config.remote_storage_enable:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage.",
        )
