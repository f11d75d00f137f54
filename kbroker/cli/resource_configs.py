"""Configs of topics, brokers and groups, as a cluster describes and alters them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kbroker.cli.failure import CommandFailed, check, reason, unknown
from kbroker.client.cluster_client import ClusterClient
from kbroker.errors import ErrorCode
from kbroker.option_values import nearest
from kbroker.protocol.apis.configs.k32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from kbroker.protocol.apis.configs.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

# What has configs: its code in the protocol by the word for it.
KINDS = {"topic": 2, "broker": 4, "broker-logger": 8, "client-metrics": 16, "group": 32}
OF_ONE_BROKER = ("broker", "broker-logger")
EVERY_BROKER = "default"  # names the configs of all brokers, which have the empty name in the protocol
SET, DELETE = 0, 1
DEFAULT_CONFIG = 5
UNITS_MS = {"hours": 3_600_000, "minutes": 60_000}
# Configs of brokers that give a topic's time its default, in order of precedence.
BROKER_TIMES = {
    "retention.ms": ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    "segment.ms": ("log.roll.ms", "log.roll.hours"),
    "segment.jitter.ms": ("log.roll.jitter.ms", "log.roll.jitter.hours"),
}
SOURCES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    DEFAULT_CONFIG: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "DYNAMIC_CLIENT_METRICS_CONFIG",
    8: "DYNAMIC_GROUP_CONFIG",
}


def describe_configs(client: ClusterClient, kind: str, name: str) -> list[DescribeConfigsResourceResult]:
    """Every config of one resource, in order of name, with where its value comes from. Raises CommandFailed."""
    (result,) = _described(client, kind, [name], None)
    check(result.error_code, resource_text(kind, name), result.error_message)
    if kind == "topic":
        _add_broker_defaults(client, result.configs)
    return sorted(result.configs, key=lambda config: config.name)


def _add_broker_defaults(client: ClusterClient, configs: Iterable[DescribeConfigsResourceResult]) -> None:
    """Adds what a broker has instead of a topic's times, which it does not say if it has the default itself."""
    unsaid = [
        config for config in configs
        if config.name in BROKER_TIMES and config.config_source != DEFAULT_CONFIG and value_without(config) is None
    ]  # fmt: skip
    if not unsaid:
        return
    names = [name for config in unsaid for name in BROKER_TIMES[config.name]]
    (result,) = _described(client, "broker", [str(min(client.brokers()))], names)
    found = {each.name: each for each in result.configs if each.value is not None}
    for config in unsaid:
        default = next((found[name] for name in BROKER_TIMES[config.name] if name in found), None)
        if default is not None:
            config.synonyms.append(
                DescribeConfigsSynonym(name=default.name, value=default.value, source=default.config_source)
            )


def value_without(config: DescribeConfigsResourceResult) -> str | None:
    """The value that a config would have if it were deleted, where the broker says."""
    if config.config_source == DEFAULT_CONFIG:
        return config.value
    synonym = next((each for each in config.synonyms if each.source != config.config_source), None)
    if synonym is None or synonym.value is None:
        return None
    unit_ms = UNITS_MS.get(synonym.name.rpartition(".")[2])
    if (
        unit_ms is not None and config.name.endswith(".ms") and synonym.value.isdecimal()
    ):  # as log.retention.hours for retention.ms
        return str(int(synonym.value) * unit_ms)
    return synonym.value


def topic_config(client: ClusterClient, topics: Sequence[str], config: str) -> dict[str, str]:
    """The value of one config of each topic; topics that were deleted meanwhile are left out."""
    return {
        result.resource_name: result.configs[0].value or ""
        for result in (_described(client, "topic", topics, [config]) if topics else ())
        if result.configs
    }


def alter_configs(
    client: ClusterClient, kind: str, name: str, values: Mapping[str, str], deleted: Sequence[str]
) -> None:
    """Sets configs to values and deletes others, all or none. Raises CommandFailed, with the nearest known name."""
    _check_known(client, kind, name, deleted)
    changes = [AlterableConfig(name=key, config_operation=SET, value=value) for key, value in values.items()]
    changes += [AlterableConfig(name=key, config_operation=DELETE, value=None) for key in deleted]
    resource = AlterConfigsResource(
        resource_type=KINDS[kind], resource_name=_resource_name(kind, name), configs=changes
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    node_id = _broker_of(client, kind, name)
    if node_id is None:
        response = client.controller(request, lambda response: [each.error_code for each in response.responses])
    else:
        response = client.broker(node_id, request)
    (result,) = response.responses
    if result.error_code in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST):
        known = [config.name for config in describe_configs(client, kind, name)]
        hint = nearest_config([change.name for change in changes], known)
        why = reason(result.error_code, result.error_message)
        raise CommandFailed(f"{resource_text(kind, name)}: {why}{hint}")
    check(result.error_code, resource_text(kind, name), result.error_message)


def _check_known(client: ClusterClient, kind: str, name: str, deleted: Sequence[str]) -> None:
    """Brokers accept the deletion of what does not exist. Raises CommandFailed for it."""
    known = [config.name for config in describe_configs(client, kind, name)] if deleted else []
    for config in deleted:
        if config not in known:
            raise unknown(f"{kind} config", config, known)


def nearest_config(names: Iterable[str], known: Iterable[str]) -> str:
    """``; did you mean X?`` for the first of the names that is not known but like one that is, else nothing."""
    all_known = list(known)
    near = next((near for name in names if name not in all_known and (near := nearest(name, all_known))), None)
    return f"; did you mean {near}?" if near else ""


def _described(
    client: ClusterClient, kind: str, names: Sequence[str], keys: list[str] | None
) -> list[DescribeConfigsResult]:
    resources = [
        DescribeConfigsResource(
            resource_type=KINDS[kind], resource_name=_resource_name(kind, name), configuration_keys=keys
        )
        for name in names
    ]
    request = DescribeConfigsRequest(resources=resources, include_synonyms=True)
    node_id = _broker_of(client, kind, names[0])
    response: Any = client.any_broker(request) if node_id is None else client.broker(node_id, request)
    results: list[DescribeConfigsResult] = response.results
    return results


def resource_text(kind: str, name: str) -> str:
    """What messages call a resource."""
    return "all brokers" if kind == "broker" and name == EVERY_BROKER else f"{kind} {name}"


def _resource_name(kind: str, name: str) -> str:
    return "" if kind == "broker" and name == EVERY_BROKER else name


def _broker_of(client: ClusterClient, kind: str, name: str) -> int | None:
    """The broker that alone knows the configs of a resource, or None if any does. Raises CommandFailed."""
    if kind not in OF_ONE_BROKER or not _resource_name(kind, name):
        return None
    brokers = client.brokers()
    if not name.isascii() or not name.isdecimal() or int(name) not in brokers:
        raise unknown("broker", name, map(str, sorted(brokers)))
    return int(name)
