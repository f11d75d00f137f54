"""Changes of AlterConfigs and IncrementalAlterConfigs: validated against the metadata and turned into records.

Rules and error codes are Apache Kafka's: a broker's configs are refused with INVALID_REQUEST where a topic's are
refused with INVALID_CONFIG. No change of a broker's configs may leave a topic without a usable config.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from kbroker.cluster.broker_config_rules import check_together
from kbroker.cluster.client_metrics import CLIENT_METRICS_CONFIGS, check_client_metrics
from kbroker.cluster.config_defs import BROKER_CONFIGS, BrokerConfigs, refusal
from kbroker.cluster.group_configs import GROUP_CONFIGS, check_group_configs
from kbroker.cluster.image import MetadataImage
from kbroker.cluster.records import (
    RESOURCE_NAME_LENGTH_MAX,
    BrokerConfig,
    ClientMetricsConfigs,
    GroupConfigs,
    MetadataRecord,
    TopicConfigs,
)
from kbroker.cluster.topic_rules import existing_topic
from kbroker.config_values import parse_list
from kbroker.errors import ErrorCode, KafkaError
from kbroker.topic_config import TOPIC_CONFIGS, ConfigDef, ConfigType, normal_configs, parse_topic_config

EVERY_BROKER = -1  # node id of the configs of all brokers


class ResourceType(IntEnum):
    """What has configs, by its code in the protocol."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Operation(IntEnum):
    """What to do to one config (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigOperation(NamedTuple):
    """One config to change; a value of None removes it."""

    name: str
    operation: Operation
    value: str | None


class ConfigChange(NamedTuple):
    """A change of one resource. `replace`: configs that it does not name are removed."""

    resource_type: ResourceType
    name: str
    operations: Sequence[ConfigOperation]
    replace: bool = False


_DEFINITIONS: dict[ResourceType, Mapping[str, ConfigDef]] = {
    ResourceType.TOPIC: TOPIC_CONFIGS,
    ResourceType.BROKER: BROKER_CONFIGS,
    ResourceType.CLIENT_METRICS: CLIENT_METRICS_CONFIGS,
    ResourceType.GROUP: GROUP_CONFIGS,
}


def plan_change(change: ConfigChange, image: MetadataImage, broker: BrokerConfigs) -> MetadataRecord | None:
    """The record of a change, or None when it changes nothing. Raises KafkaError."""
    name = change.name
    match change.resource_type:
        case ResourceType.TOPIC:
            return _topic_change(change, image, broker)
        case ResourceType.BROKER:
            node_id = check_broker_name(name, broker)
            before = image.broker_configs.get(node_id, {})
            after = changed(change, before)
            _check_broker_configs(node_id, after, before, image, broker)
            return BrokerConfig(node_id, after) if after != before else None
        case ResourceType.CLIENT_METRICS:
            _check_resource_name(name, "client metrics")
            before = image.client_metrics.get(name, {})
            after = changed(change, before)
            check_client_metrics(after)
            after = normal_configs(CLIENT_METRICS_CONFIGS, after)
            return ClientMetricsConfigs(name, after) if after != before else None
        case ResourceType.GROUP:
            _check_resource_name(name, "group")
            before = image.group_configs.get(name, {})
            after = changed(change, before)
            check_group_configs(after, broker)
            after = normal_configs(GROUP_CONFIGS, after)
            return GroupConfigs(name, after) if after != before else None
        case other:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {other}")


def _topic_change(change: ConfigChange, image: MetadataImage, broker: BrokerConfigs) -> MetadataRecord | None:
    if not change.name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    topic = existing_topic(change.name, image)
    after = changed(change, topic.configs)
    config = parse_topic_config(after, broker.topic_defaults)
    before = parse_topic_config(topic.configs, broker.topic_defaults)
    if config.kbroker_object_format != before.kbroker_object_format:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"kbroker.object.format of topic {topic.name} is {before.kbroker_object_format} since it was created, "
            "and cannot be changed",
        )
    if topic.internal and not config.compacted:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"cleanup.policy of the internal topic {topic.name} must have compact"
        )
    after = normal_configs(TOPIC_CONFIGS, after)
    return TopicConfigs(topic.topic_id, after) if after != topic.configs else None


def changed(change: ConfigChange, before: Mapping[str, str]) -> dict[str, str]:
    """The resource's own configs after a change, not validated yet.

    Raises KafkaError INVALID_CONFIG for an operation on lists where the config is none, INVALID_REQUEST for a value
    that is missing or a key named twice.
    """
    definitions = _DEFINITIONS[change.resource_type]
    names = [item.name for item in change.operations]
    if len(set(names)) < len(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    missing = [item.name for item in change.operations if item.value is None and item.operation != Operation.DELETE]
    if missing:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(missing)}")
    after = {} if change.replace else dict(before)
    for item in change.operations:
        if item.operation == Operation.DELETE:
            after.pop(item.name, None)
        elif item.operation == Operation.SET:
            after[item.name] = item.value or ""
        else:
            after[item.name] = _changed_list(item, definitions.get(item.name), after.get(item.name))
    return after


def _changed_list(item: ConfigOperation, definition: ConfigDef | None, before: str | None) -> str:
    if definition is None or definition.type is not ConfigType.LIST:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Can't {item.operation.name} to key {item.name} because its type is not LIST."
        )
    values = list(parse_list(definition.default or "" if before is None else before))
    for value in parse_list(item.value or ""):
        if item.operation == Operation.APPEND and value not in values:
            values.append(value)
        elif item.operation == Operation.SUBTRACT and value in values:
            values.remove(value)
    return ",".join(values)


def _check_resource_name(name: str, kind: str) -> None:
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Default {kind} resources are not allowed.")
    if len(name) > RESOURCE_NAME_LENGTH_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The name of a {kind} resource is too long.")


def check_broker_name(name: str, broker: BrokerConfigs) -> int:
    """The node id that a broker resource means. Raises KafkaError INVALID_REQUEST for another broker's."""
    if name == "":
        return EVERY_BROKER
    if name != str(broker.node_id):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {broker.node_id} or empty string, but received {name}",
        )
    return broker.node_id


def _check_broker_configs(
    node_id: int, after: Mapping[str, str], before: Mapping[str, str], image: MetadataImage, broker: BrokerConfigs
) -> None:
    touched = [name for name, value in after.items() if before.get(name) != value]
    problem = refusal(touched)
    if problem is not None:
        raise problem
    try:
        for name in touched:
            BROKER_CONFIGS[name].parse(after[name])
        configs = check_broker_layers({**image.broker_configs, node_id: after}, image, broker)
        check_together(touched, altered(broker, image.broker_configs), configs)
    except KafkaError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, error.message) from None


def check_broker_layers(
    layers: Mapping[int, Mapping[str, str]], image: MetadataImage, broker: BrokerConfigs
) -> BrokerConfigs:
    """The broker configs with the run-time changes. Raises KafkaError if they would leave a topic without a usable
    config, or refuse every client."""
    configs = altered(broker, layers)
    if configs.number("max.connections.per.ip") == 0 and not configs.text("max.connections.per.ip.overrides"):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, "max.connections.per.ip can be 0 only if max.connections.per.ip.overrides is set"
        )
    try:
        parse_topic_config({}, configs.topic_defaults)
        for topic in image.by_name.values():
            parse_topic_config(topic.configs, configs.topic_defaults)
    except KafkaError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"a topic refuses these broker configs: {error}") from None
    return configs


def altered(broker: BrokerConfigs, layers: Mapping[int, Mapping[str, str]]) -> BrokerConfigs:
    """The configs of the broker with the run-time ones of an image: its own, and those of all brokers."""
    return broker.altered(layers.get(broker.node_id, {}), layers.get(EVERY_BROKER, {}))
