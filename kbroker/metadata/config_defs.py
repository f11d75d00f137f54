"""Broker configs as DescribeConfigs shows them, and the defaults that they give to topics.

Names, types and defaults are Apache Kafka's. Rows that kbroker has no use for are there because tools read them:
`inter.broker.protocol.version` and `default.replication.factor` decide what UIs and connectors do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from kbroker.topic_config import TOPIC_CONFIGS, ConfigDef, ConfigType

COMPATIBLE_VERSION = "4.0-IV3"  # the Kafka release whose APIs the served versions match best


class ConfigSource(IntEnum):
    """Where a value comes from, by its code in DescribeConfigs and CreateTopics."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """One place a value can come from."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A config as described to a client. `synonyms` holds every place that has a value, the one in force first."""

    definition: ConfigDef
    value: str | None
    source: ConfigSource
    read_only: bool
    synonyms: tuple[ConfigSynonym, ...]

    @property
    def sensitive(self) -> bool:
        """The value is not shown."""
        return self.definition.type is ConfigType.PASSWORD


_BOOLEAN, _STRING, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LONG
_SHORT, _DOUBLE, _LIST = ConfigType.SHORT, ConfigType.DOUBLE, ConfigType.LIST

_BROKER_ROWS: tuple[tuple[str, ConfigType, str | None, str], ...] = (
    ("advertised.listeners", _STRING, None, "Addresses told to clients."),
    ("auto.create.topics.enable", _BOOLEAN, "true", "Create a topic that a client asks for."),
    ("broker.id", _INT, "-1", "Id of this broker."),
    ("broker.rack", _STRING, None, "Rack of this broker."),
    ("compression.type", _STRING, "producer", TOPIC_CONFIGS["compression.type"].documentation),
    ("connections.max.idle.ms", _LONG, "600000", "Quiet connections are closed after this time."),
    ("default.replication.factor", _INT, "1", "Replicas of a topic that does not say."),
    ("delete.topic.enable", _BOOLEAN, "true", "Topics may be deleted."),
    ("fetch.max.bytes", _INT, "57671680", "Most bytes of one fetch response."),
    ("group.consumer.assignors", _LIST, "uniform,range", "Server-side assignors."),
    ("group.consumer.heartbeat.interval.ms", _INT, "5000", "Heartbeat interval of consumer groups."),
    ("group.consumer.session.timeout.ms", _INT, "45000", "Session time-out of consumer groups."),
    ("group.initial.rebalance.delay.ms", _INT, "3000", "Wait for more members before a group's first rebalance."),
    ("group.max.session.timeout.ms", _INT, "1800000", "Longest session time-out of a member."),
    ("group.max.size", _INT, "2147483647", "Most members of a group."),
    ("group.min.session.timeout.ms", _INT, "6000", "Shortest session time-out of a member."),
    ("inter.broker.protocol.version", _STRING, COMPATIBLE_VERSION, "Kafka release that tools may take this for."),
    ("listeners", _LIST, "PLAINTEXT://:9092", "Addresses this broker listens on."),
    ("log.cleaner.backoff.ms", _LONG, "15000", "Pause of the cleaner when nothing is to do."),
    ("log.cleaner.dedupe.buffer.size", _LONG, "134217728", "Memory of the key map of compaction."),
    ("log.cleaner.enable", _BOOLEAN, "true", "Compaction runs."),
    ("log.cleaner.threads", _INT, "1", "Threads of the cleaner."),
    ("log.dirs", _STRING, None, "The data directory."),
    ("log.retention.check.interval.ms", _LONG, "300000", "Interval of retention."),
    ("log.retention.hours", _INT, "168", "Kept for tools; log.retention.ms decides."),
    ("log.retention.minutes", _INT, None, "Kept for tools; log.retention.ms decides."),
    ("log.roll.hours", _INT, "168", "Kept for tools; log.roll.ms decides."),
    ("max.connections", _INT, "20000", "Most connections."),
    ("max.incremental.fetch.session.cache.slots", _INT, "1000", "Most fetch sessions."),
    ("node.id", _INT, "-1", "Id of this broker."),
    ("num.io.threads", _INT, "8", "Kept for tools."),
    ("num.network.threads", _INT, "3", "Kept for tools."),
    ("num.partitions", _INT, "1", "Partitions of a topic that does not say."),
    ("offset.metadata.max.bytes", _INT, "4096", "Longest metadata of an offset commit."),
    ("offsets.retention.check.interval.ms", _LONG, "600000", "Interval of offset expiry."),
    ("offsets.retention.minutes", _INT, "10080", "Offsets of an empty group are kept this long."),
    ("offsets.topic.num.partitions", _INT, "50", "Partitions of __consumer_offsets."),
    ("offsets.topic.replication.factor", _SHORT, "3", "Kept for tools."),
    ("process.roles", _LIST, "broker,controller", "Roles of this process."),
    ("producer.id.expiration.ms", _INT, "86400000", "Quiet producer ids are forgotten after this time."),
    ("queued.max.requests", _INT, "500", "Kept for tools."),
    ("replica.lag.time.max.ms", _LONG, "30000", "Kept for tools."),
    ("request.timeout.ms", _INT, "30000", "Kept for tools."),
    ("socket.request.max.bytes", _INT, "104857600", "Largest request."),
    ("transaction.max.timeout.ms", _INT, "900000", "Longest transaction time-out."),
    ("transaction.partition.verification.enable", _BOOLEAN, "true", "Kept for tools."),
    ("transaction.state.log.min.isr", _INT, "2", "Kept for tools."),
    ("transaction.state.log.num.partitions", _INT, "50", "Partitions of __transaction_state."),
    ("transaction.state.log.replication.factor", _SHORT, "3", "Kept for tools."),
    ("transactional.id.expiration.ms", _INT, "604800000", "Quiet transactional ids are forgotten after this time."),
)


def _broker_table() -> dict[str, ConfigDef]:
    table = {name: ConfigDef(name, kind, default, text) for name, kind, default, text in _BROKER_ROWS}
    for topic in TOPIC_CONFIGS.values():
        if topic.synonym and topic.synonym not in table:
            table[topic.synonym] = ConfigDef(
                topic.synonym, topic.type, topic.default, f"Default of {topic.name}: {topic.documentation}", topic.check
            )
    return dict(sorted(table.items()))


BROKER_CONFIGS: dict[str, ConfigDef] = _broker_table()


def config_text(value: Any) -> str:
    """A value as Kafka writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


class BrokerConfigs:
    """The running broker's configs by Kafka's names. Immutable.

    `static` are the settings the broker runs with (options, file, environment; those equal to the default count as
    default); names outside the table are shown as strings.
    """

    def __init__(self, static: Mapping[str, Any] | None = None) -> None:
        self._static: dict[str, str] = {}
        for name, value in (static or {}).items():
            text = config_text(value)
            definition = BROKER_CONFIGS.get(name)
            if definition is None or definition.default != text:
                self._static[name] = text
        self.topic_defaults: dict[str, str] = {
            topic.name: self._static[topic.synonym]
            for topic in TOPIC_CONFIGS.values()
            if topic.synonym is not None and topic.synonym in self._static
        }

    @classmethod
    def of_broker(
        cls,
        kafka: Mapping[str, Any],
        *,
        node_id: int,
        listen: tuple[str, int],
        advertised: tuple[str, int],
        data_dir: object,
    ) -> BrokerConfigs:
        """The configs of a running broker: its Kafka-named settings, and what its own options say in Kafka's names."""
        return cls(
            {
                **kafka,
                "node.id": node_id,
                "broker.id": node_id,
                "listeners": "PLAINTEXT://{}:{}".format(*listen),
                "advertised.listeners": "PLAINTEXT://{}:{}".format(*advertised),
                "log.dirs": data_dir,
            }
        )

    def text(self, name: str) -> str | None:
        """The value in force, as text. Raises KeyError for a name that is neither set nor in the table."""
        return self._static[name] if name in self._static else BROKER_CONFIGS[name].default

    def number(self, name: str) -> int:
        """The value in force of an integer config."""
        return int(self.text(name) or 0)

    def enabled(self, name: str) -> bool:
        """The value in force of a boolean config."""
        return self.text(name) == "true"

    def describe(self) -> Iterator[ConfigEntry]:
        """Every broker config. All are read-only: they are set at start."""
        extra = (ConfigDef(name, _STRING, None, "") for name in self._static if name not in BROKER_CONFIGS)
        for definition in (*BROKER_CONFIGS.values(), *extra):
            synonyms = self._broker_synonyms(definition.name, definition.default)
            yield _entry(definition, synonyms, read_only=True)

    def describe_topic(self, overrides: Mapping[str, str]) -> Iterator[ConfigEntry]:
        """Every config of a topic that has `overrides` of its own."""
        for definition in TOPIC_CONFIGS.values():
            own = overrides.get(definition.name)
            if definition.hidden and own is None:
                continue
            synonyms = self._broker_synonyms(definition.synonym or definition.name, definition.default)
            if own is not None:
                synonyms = (ConfigSynonym(definition.name, own, ConfigSource.TOPIC), *synonyms)
            yield _entry(definition, synonyms, read_only=False)

    def _broker_synonyms(self, name: str, default: str | None) -> tuple[ConfigSynonym, ...]:
        fallback = (ConfigSynonym(name, default, ConfigSource.DEFAULT),) if default is not None else ()
        if name not in self._static:
            return fallback
        return (ConfigSynonym(name, self._static[name], ConfigSource.STATIC_BROKER), *fallback)


def _entry(definition: ConfigDef, synonyms: tuple[ConfigSynonym, ...], *, read_only: bool) -> ConfigEntry:
    if not synonyms:
        return ConfigEntry(definition, None, ConfigSource.DEFAULT, read_only, ())
    return ConfigEntry(definition, synonyms[0].value, synonyms[0].source, read_only, synonyms)
