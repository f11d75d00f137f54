"""Configs of one group (KIP-848, KIP-932): a table of the keys, their bounds in the broker configs, and their values.

They are stored by name, whether the group exists or not, and apply as soon as it does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kbroker.cluster.config_defs import BrokerConfigs, ConfigEntry, ConfigSource, ConfigSynonym, entry_of
from kbroker.config_values import INT64_MAX
from kbroker.errors import ErrorCode, KafkaError
from kbroker.topic_config import ConfigDef, ConfigType, at_least, one_of

# As Java's Duration.parse: any case, signs where it takes them.
_DURATION = re.compile(
    r"([-+]?)P(?:([-+]?[0-9]+)D)?(?:T(?=[-+0-9])(?:([-+]?[0-9]+)H)?(?:([-+]?[0-9]+)M)?"
    r"(?:([-+]?[0-9]+)(?:[.,]([0-9]{0,9}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)
_DURATION_DIGITS = 19  # of a part; Java refuses more than a long holds


def reset_duration_ms(offset_reset: str) -> int | None:
    """How far back a `share.auto.offset.reset` of by_duration goes; None for the other kinds."""
    kind, _, text = offset_reset.partition(":")
    match = _DURATION.fullmatch(text)
    if kind != "by_duration" or match is None or text[-1] in "pPtT":
        return None
    sign, *parts, fraction = match.groups()
    if any(len(part) > _DURATION_DIGITS for part in parts if part):
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in parts)
    part_ms = int((fraction or "").ljust(9, "0")) // 1_000_000
    milliseconds = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
    milliseconds += -part_ms if (parts[3] or "").startswith("-") else part_ms
    milliseconds *= -1 if sign == "-" else 1
    return milliseconds if 0 <= milliseconds <= INT64_MAX else None


def _offset_reset(value: str) -> str | None:
    if value in ("latest", "earliest") or reset_duration_ms(value) is not None:
        return None
    return "String must be one of: latest, earliest, by_duration:PnDTnHnMn.nS"


_BOOLEAN, _STRING, _INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
_SESSION = "Time without a heartbeat after which a member is taken for gone."
_HEARTBEAT = "How often members send heartbeats."

_DEFINITIONS = (
    ConfigDef("consumer.session.timeout.ms", _INT, "45000", _SESSION, at_least(1), "group.consumer.session.timeout.ms"),
    ConfigDef("consumer.heartbeat.interval.ms", _INT, "5000", _HEARTBEAT, at_least(1),
              "group.consumer.heartbeat.interval.ms"),
    ConfigDef("consumer.assignment.interval.ms", _INT, "1000",
              "Least time between two target assignments of the group.", at_least(0),
              "group.consumer.assignment.interval.ms"),
    ConfigDef("share.session.timeout.ms", _INT, "45000", _SESSION, at_least(1), "group.share.session.timeout.ms"),
    ConfigDef("share.heartbeat.interval.ms", _INT, "5000", _HEARTBEAT, at_least(1),
              "group.share.heartbeat.interval.ms"),
    ConfigDef("share.assignment.interval.ms", _INT, "1000", "Kept for tools.", at_least(0),
              "group.share.assignment.interval.ms"),
    ConfigDef("share.record.lock.duration.ms", _INT, "30000", "How long a consumer holds a record.", at_least(1000),
              "group.share.record.lock.duration.ms"),
    ConfigDef("share.delivery.count.limit", _INT, "5", "Deliveries of a record before it is given up.", at_least(2),
              "group.share.delivery.count.limit"),
    ConfigDef("share.partition.max.record.locks", _INT, "2000", "Records of a partition held at a time.",
              at_least(100), "group.share.partition.max.record.locks"),
    ConfigDef("share.auto.offset.reset", _STRING, "latest", "Where the group starts in a partition.", _offset_reset),
    ConfigDef("share.isolation.level", _STRING, "read_uncommitted", "Which records the group is given.",
              one_of("read_uncommitted", "read_committed")),
    ConfigDef("share.renew.acknowledge.enable", _BOOLEAN, "true", "Locks of records may be renewed."),
    ConfigDef("streams.session.timeout.ms", _INT, "45000", "Kept for tools.", at_least(1),
              "group.streams.session.timeout.ms"),
    ConfigDef("streams.heartbeat.interval.ms", _INT, "5000", "Kept for tools.", at_least(1),
              "group.streams.heartbeat.interval.ms"),
    ConfigDef("streams.assignment.interval.ms", _INT, "1000", "Kept for tools.", at_least(0),
              "group.streams.assignment.interval.ms"),
    ConfigDef("streams.initial.rebalance.delay.ms", _INT, "3000", "Kept for tools.", at_least(0),
              "group.streams.initial.rebalance.delay.ms"),
    ConfigDef("streams.num.standby.replicas", _INT, "0", "Kept for tools.", at_least(0),
              "group.streams.num.standby.replicas"),
)  # fmt: skip

GROUP_CONFIGS: dict[str, ConfigDef] = {definition.name: definition for definition in _DEFINITIONS}


class _Bounds(NamedTuple):
    """The broker configs that bound a group config; None: there is none."""

    lowest: str | None
    highest: str | None


def _between(stem: str) -> _Bounds:
    protocol, _, rest = stem.partition(".")
    return _Bounds(f"group.{protocol}.min.{rest}", f"group.{protocol}.max.{rest}")


_BOUNDS: dict[str, _Bounds] = {
    name: _between(name)
    for name in (
        "consumer.session.timeout.ms",
        "consumer.heartbeat.interval.ms",
        "consumer.assignment.interval.ms",
        "share.session.timeout.ms",
        "share.heartbeat.interval.ms",
        "share.assignment.interval.ms",
        "share.record.lock.duration.ms",
        "share.delivery.count.limit",
        "share.partition.max.record.locks",
        "streams.session.timeout.ms",
        "streams.heartbeat.interval.ms",
        "streams.assignment.interval.ms",
    )
} | {"streams.num.standby.replicas": _Bounds(None, "group.streams.max.standby.replicas")}


def check_group_configs(own: Mapping[str, str], broker: BrokerConfigs) -> None:
    """Validates all configs that a group would have of its own. Raises KafkaError INVALID_CONFIG."""
    for name, text in own.items():
        definition = GROUP_CONFIGS.get(name)
        if definition is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {name}")
        value = definition.parse(text)
        bounds = _BOUNDS.get(name)
        if bounds is None:
            continue
        if bounds.lowest is not None and value < broker.number(bounds.lowest):
            raise _out_of_bounds(name, "greater", bounds.lowest)
        if bounds.highest is not None and value > broker.number(bounds.highest):
            raise _out_of_bounds(name, "less", bounds.highest)
    values = group_config_values(own, broker)
    for protocol in ("consumer", "share", "streams"):
        session, heartbeat = f"{protocol}.session.timeout.ms", f"{protocol}.heartbeat.interval.ms"
        if values[session] <= values[heartbeat] and (session in own or heartbeat in own):
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{session} must be greater than {heartbeat}")


def _out_of_bounds(name: str, relation: str, bound: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, f"{name} must be {relation} than or equal to {bound}")


def group_config_values(own: Mapping[str, str], broker: BrokerConfigs) -> dict[str, Any]:
    """The typed value of every group config: the group's own, else the broker's.

    The group's value is clamped to the broker's bounds, which may have changed since.
    """
    values = {}
    for definition in GROUP_CONFIGS.values():
        text = own.get(definition.name)
        if text is None:
            text = broker.text(definition.synonym) if definition.synonym else definition.default
        value = definition.parse(text or "")
        bounds = _BOUNDS.get(definition.name)
        if bounds is not None and definition.name in own:
            if bounds.lowest is not None:
                value = max(value, broker.number(bounds.lowest))
            if bounds.highest is not None:
                value = min(value, broker.number(bounds.highest))
        values[definition.name] = value
    return values


def describe_group(own: Mapping[str, str], broker: BrokerConfigs) -> Iterator[ConfigEntry]:
    """Every config of a group that has `own` of its own."""
    for definition in GROUP_CONFIGS.values():
        synonyms = broker.synonyms(definition.synonym) if definition.synonym else ()
        text = own.get(definition.name)
        if text is not None:
            synonyms = (ConfigSynonym(definition.name, text, ConfigSource.GROUP), *synonyms)
        if synonyms:
            yield entry_of(definition, synonyms, read_only=False)
        else:
            yield ConfigEntry(definition, definition.default, ConfigSource.DEFAULT, False, ())
