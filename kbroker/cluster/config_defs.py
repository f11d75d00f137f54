"""The running broker's configs: those given at start, those altered since, and the defaults they give to topics.

A value comes from the first of: altered at run time for this broker, altered for all brokers, given at start, default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from itertools import dropwhile
from typing import Any, NamedTuple

from kbroker.cluster.broker_config_table import BROKER_CONFIGS, COARSER, DYNAMIC
from kbroker.config_values import normal_text
from kbroker.errors import ErrorCode, KafkaError
from kbroker.topic_config import TOPIC_CONFIGS, ConfigDef, ConfigType, normal_configs, without_refused
from kbroker.types import address_text


class ConfigSource(IntEnum):
    """Where a value comes from, by its code in DescribeConfigs and CreateTopics."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class ConfigSynonym(NamedTuple):
    """One source of a value."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """A config as described to a client. `synonyms` holds every source that has a value, the one in force first."""

    definition: ConfigDef
    value: str | None
    source: ConfigSource
    read_only: bool
    synonyms: tuple[ConfigSynonym, ...]

    @property
    def sensitive(self) -> bool:
        """The value is not shown."""
        return self.definition.type is ConfigType.PASSWORD


def entry_of(definition: ConfigDef, synonyms: tuple[ConfigSynonym, ...], *, read_only: bool) -> ConfigEntry:
    """The config whose value comes from the first of `synonyms`, or that has none."""
    if not synonyms:
        return ConfigEntry(definition, None, ConfigSource.DEFAULT, read_only, ())
    nearest = synonyms[0]
    value = None if nearest.value is None else definition.normal(nearest.value)
    return ConfigEntry(definition, value, nearest.source, read_only, synonyms)


class BrokerConfigs:
    """The running broker's configs by Kafka's names. Immutable.

    `static` are the settings the broker runs with (options, file, environment; those equal to the default count as
    default, None as not given); names outside the table are shown as strings. `dynamic` and `dynamic_default` are those
    altered at run time, for this broker and for all.
    """

    def __init__(
        self,
        static: Mapping[str, Any] | None = None,
        dynamic: Mapping[str, str] | None = None,
        dynamic_default: Mapping[str, str] | None = None,
    ) -> None:
        self._static: dict[str, str] = {}
        for name, value in (static or {}).items():
            definition = BROKER_CONFIGS.get(name)
            text = normal_text(value) if definition is None else definition.normal(normal_text(value))
            if value is not None and (definition is None or definition.default != text):
                self._static[name] = text
        self._layers = (
            (ConfigSource.DYNAMIC_BROKER, without_refused(dynamic or {}, _check_dynamic)),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER, without_refused(dynamic_default or {}, _check_dynamic)),
            (ConfigSource.STATIC_BROKER, self._static),
        )
        self._in_force: dict[str, str] = {}
        for _, values in reversed(self._layers):
            self._in_force.update(normal_configs(BROKER_CONFIGS, values))
        self.topic_defaults: dict[str, str] = dict(self._given_topic_defaults())

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
                "listeners": f"PLAINTEXT://{address_text(*listen)}",
                "advertised.listeners": f"PLAINTEXT://{address_text(*advertised)}",
                "log.dirs": data_dir,
            }
        )

    @property
    def node_id(self) -> int:
        """Of this broker; -1 when not given."""
        return self.number("node.id")

    def altered(self, dynamic: Mapping[str, str], dynamic_default: Mapping[str, str]) -> BrokerConfigs:
        """The same start, with these altered at run time and no others. Unusable ones are ignored and logged."""
        return BrokerConfigs(self._static, dynamic, dynamic_default)

    # -- values ------------------------------------------------------------------------------------------------

    def text(self, name: str) -> str | None:
        """The value in force, in its normal form. Raises KeyError for a name that is neither set nor in the table."""
        if name in self._in_force:
            return self._in_force[name]
        definition = BROKER_CONFIGS[name]
        for coarser, factor in COARSER.get(name, ()):
            found = self.text(coarser)
            if found is not None:
                return _scaled(found, factor)
        return definition.default

    def number(self, name: str) -> int:
        """The value in force of an integer config."""
        return int(self.text(name) or 0)

    def enabled(self, name: str) -> bool:
        """The value in force of a boolean config."""
        return self.text(name) == "true"

    def _given_topic_defaults(self) -> Iterator[tuple[str, str]]:
        for topic in TOPIC_CONFIGS.values():
            if topic.synonym is None:
                continue
            names = (topic.synonym, *(name for name, _ in COARSER.get(topic.synonym, ())))
            if any(name in values for _, values in self._layers for name in names):
                text = self.text(topic.synonym)
                if text is not None:
                    yield topic.name, text

    # -- descriptions ------------------------------------------------------------------------------------------

    def describe(self) -> Iterator[ConfigEntry]:
        """Every broker config; read-only are those that cannot be altered at run time."""
        extra = (ConfigDef(name, ConfigType.STRING, None, "") for name in self._static if name not in BROKER_CONFIGS)
        for definition in (*BROKER_CONFIGS.values(), *extra):
            synonyms = self.synonyms(definition.name)
            # Sources in coarser units apply through `text`; they are not this config's own value.
            own = tuple(synonym for synonym in synonyms if synonym.name == definition.name)
            entry = entry_of(definition, own and synonyms, read_only=definition.name not in DYNAMIC)
            yield entry

    def describe_default(self) -> Iterator[ConfigEntry]:
        """The configs altered for all brokers."""
        for name in sorted(self._layers[1][1]):
            synonyms = tuple(s for s in self.synonyms(name) if s.source is ConfigSource.DYNAMIC_DEFAULT_BROKER)
            yield entry_of(BROKER_CONFIGS[name], synonyms, read_only=False)

    def describe_topic(self, overrides: Mapping[str, str]) -> Iterator[ConfigEntry]:
        """Every config of a topic that has `overrides` of its own."""
        for definition in TOPIC_CONFIGS.values():
            own = overrides.get(definition.name)
            if definition.hidden and own is None:
                continue
            synonyms = self._topic_synonyms(definition.synonym) if definition.synonym else ()
            if own is not None:
                synonyms = (ConfigSynonym(definition.name, own, ConfigSource.TOPIC), *synonyms)
            source = synonyms[0].source if synonyms else ConfigSource.DEFAULT
            value = own if own is not None else self.topic_defaults.get(definition.name, definition.default)
            yield ConfigEntry(definition, value, source, False, synonyms)

    def _topic_synonyms(self, name: str) -> tuple[ConfigSynonym, ...]:
        """The synonyms of a topic config, from the first that has its finest name on: Kafka shows none before."""
        return tuple(dropwhile(lambda synonym: synonym.name != name, self.synonyms(name)))

    def synonyms(self, name: str) -> tuple[ConfigSynonym, ...]:
        """Every source that has a value for a broker config, in order of precedence."""
        names = (name, *(coarser for coarser, _ in COARSER.get(name, ())))
        found = [
            ConfigSynonym(candidate, values[candidate], source)
            for source, values in self._layers
            for candidate in names
            if candidate in values
        ]
        for candidate in names:
            definition = BROKER_CONFIGS.get(candidate)
            if definition is not None and definition.default is not None:
                found.append(ConfigSynonym(candidate, definition.default, ConfigSource.DEFAULT))
        return tuple(found)


def _scaled(text: str, factor: int) -> str:
    value = int(text)
    return str(value * factor) if value >= 0 else text


def _check_dynamic(name: str, text: str) -> None:
    problem = refusal((name,))
    if problem is not None:
        raise problem
    BROKER_CONFIGS[name].parse(text)


def refusal(names: Iterable[str]) -> KafkaError | None:
    """Why these broker configs cannot be altered at run time, or None."""
    unknown = sorted(name for name in names if name not in BROKER_CONFIGS)
    if unknown:
        return KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown broker config names: {', '.join(unknown)}")
    fixed = sorted(name for name in names if name not in DYNAMIC)
    if fixed:
        return KafkaError(ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: {', '.join(fixed)}")
    return None
