"""Configs of client metrics resources (KIP-714): which metrics are wanted, how often, and of which clients.

Patterns are in RE2 syntax: matching takes linear time for any pattern and any client.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from kbroker.cluster.config_defs import ConfigEntry, ConfigSource, ConfigSynonym
from kbroker.config_values import parse_list
from kbroker.errors import ErrorCode, KafkaError
from kbroker.topic_config import ConfigDef, ConfigType

INTERVAL_MS_DEFAULT = 300_000
INTERVAL_MS_MIN, INTERVAL_MS_MAX = 100, 3_600_000
ALL_METRICS = "*"
PATTERN_LENGTH_MAX = 256

# What a client can be chosen by.
SELECTORS = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)


def _no_empty(values: tuple[str, ...]) -> str | None:
    return None if all(values) else "Configuration values must not be empty"


CLIENT_METRICS_CONFIGS: dict[str, ConfigDef] = {
    definition.name: definition
    for definition in (
        ConfigDef(
            "metrics",
            ConfigType.LIST,
            "",
            "Prefixes of the names of the metrics that are wanted; *: all.",
            _no_empty,
            distinct=True,
        ),
        ConfigDef("interval.ms", ConfigType.INT, str(INTERVAL_MS_DEFAULT), "How often clients push them."),
        ConfigDef(
            "match",
            ConfigType.LIST,
            "",
            "Clients that are asked, as selector=pattern; empty: all.",
            _no_empty,
            distinct=True,
        ),
    )
}


def check_client_metrics(configs: Mapping[str, str]) -> None:
    """Validates all configs that a resource would have. Raises KafkaError INVALID_REQUEST or INVALID_CONFIG."""
    for name, text in configs.items():
        definition = CLIENT_METRICS_CONFIGS.get(name)
        if definition is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {name}")
        value = definition.parse(text)
        if name == "interval.ms" and not INTERVAL_MS_MIN <= value <= INTERVAL_MS_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Invalid value {value} for interval.ms, interval must be between {INTERVAL_MS_MIN} and "
                f"{INTERVAL_MS_MAX} (1 hour)",
            )
        if name == "match":
            parse_match(text)


@lru_cache(maxsize=1024)
def parse_match(text: str) -> tuple[tuple[str, Any], ...]:
    """The (selector, pattern) pairs of a `match`. Raises KafkaError INVALID_CONFIG."""
    import re2  # on first use: it would slow the start

    options = re2.Options()
    options.log_errors = False
    pairs = []
    for item in parse_list(text):
        selector, equals, pattern = item.partition("=")
        selector = selector.strip()
        if not equals or selector not in SELECTORS:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {item}")
        if len(pattern) > PATTERN_LENGTH_MAX:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"The client matching pattern is too long: {item[:64]}...")
        try:
            pairs.append((selector, re2.compile(pattern.strip(), options)))
        except re2.error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {item}") from None
    return tuple(pairs)


def matches(configs: Mapping[str, str], client: Mapping[str, str]) -> bool:
    """Whether a resource selects the client with these values: all its patterns must match the whole value. Stored
    patterns that this kbroker refuses match no client."""
    try:
        pairs = parse_match(configs.get("match", ""))
    except KafkaError:
        return False
    return all(pattern.fullmatch(client.get(selector, "")) for selector, pattern in pairs)


def interval_ms(configs: Mapping[str, str]) -> int:
    """How often a resource wants its metrics."""
    return int(configs.get("interval.ms", INTERVAL_MS_DEFAULT))


def metrics(configs: Mapping[str, str]) -> tuple[str, ...]:
    """The prefixes a resource asks for."""
    return parse_list(configs.get("metrics", ""))


def describe_client_metrics(configs: Mapping[str, str]) -> Iterator[ConfigEntry]:
    """Every config of a resource."""
    for definition in CLIENT_METRICS_CONFIGS.values():
        own = configs.get(definition.name)
        if own is None:
            yield ConfigEntry(definition, definition.default, ConfigSource.DEFAULT, False, ())
        else:
            synonym = ConfigSynonym(definition.name, own, ConfigSource.CLIENT_METRICS)
            yield ConfigEntry(definition, own, ConfigSource.CLIENT_METRICS, False, (synonym,))
