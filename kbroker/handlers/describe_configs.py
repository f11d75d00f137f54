"""DescribeConfigs (key 32), versions 1-4: configs of topics, brokers, loggers, groups and client metrics.

Behaviour:
- Values in their normal form (kbroker.config_values), whatever was typed; a broker's synonyms as typed.
- Keys null or empty: all. Synonyms in order of precedence when asked for. Sensitive values are null.
- Topic: unknown UNKNOWN_TOPIC_OR_PARTITION (3), illegal name INVALID_TOPIC (17).
- Broker: the own id gives every broker config, read-only where it cannot be altered at run time; the empty name those
  altered for all brokers; another id is INVALID_REQUEST (42). Loggers: the own id only.
- Groups and client metrics: every config, whether the group or resource exists or not. An empty name, or an unknown
  type: INVALID_REQUEST (42).

Versions: v1 synonyms and sources. v3 config type and documentation. v4 flexible.

Gaps: none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kbroker.cluster.client_metrics import describe_client_metrics
from kbroker.cluster.config_changes import EVERY_BROKER, ResourceType, check_broker_name
from kbroker.cluster.config_defs import ConfigEntry, ConfigSource
from kbroker.cluster.group_configs import describe_group
from kbroker.cluster.topic_rules import check_name
from kbroker.errors import ErrorCode, KafkaError
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.handlers.config_resources import check_logger_resource, logger_levels
from kbroker.handlers.lazy_array import LazyArray
from kbroker.protocol.apis.configs.k32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)


def handle(context: Context, info: RequestInfo, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """Each resource by itself."""
    results: Any = LazyArray(lambda resource: _resource(context, request, resource), request.resources)
    return DescribeConfigsResponse(results=results)


def _resource(
    context: Context, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name, configs=[]
    )
    keys = set(resource.configuration_keys or ())
    try:
        if resource.resource_type == ResourceType.BROKER_LOGGER:
            check_logger_resource(context, resource.resource_name)
            result.configs = [
                _logger(name, level) for name, level in logger_levels().items() if not keys or name in keys
            ]
        else:
            result.configs = [
                _config(entry, request)
                for entry in _entries(context, resource)
                if not keys or entry.definition.name in keys
            ]
    except KafkaError as error:
        result.error_code, result.error_message = error.code, error.message
    return result


def _entries(context: Context, resource: DescribeConfigsResource) -> Iterable[ConfigEntry]:
    """The configs of a resource. Raises KafkaError."""
    name = resource.resource_name
    image, broker_configs = context.topics.image, context.topics.broker_configs
    match resource.resource_type:
        case ResourceType.TOPIC:
            check_name(name)
            topic = image.by_name.get(name)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name} does not exist.")
            return broker_configs.describe_topic(topic.configs)
        case ResourceType.BROKER:
            if check_broker_name(name, broker_configs) == EVERY_BROKER:
                return broker_configs.describe_default()
            return broker_configs.describe()
        case ResourceType.CLIENT_METRICS:
            _check_named(name, "Client metrics subscription name")
            return describe_client_metrics(image.client_metrics.get(name, {}))
        case ResourceType.GROUP:
            _check_named(name, "Group name")
            return describe_group(image.group_configs.get(name, {}), broker_configs)
        case other:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {other}")


def _check_named(name: str, what: str) -> None:
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{what} must not be empty")


def _logger(name: str, level: str) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=name, value=level, config_source=ConfigSource.BROKER_LOGGER, synonyms=[], documentation=None
    )


def _config(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=entry.definition.name,
        value=None if entry.sensitive else entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=[
            DescribeConfigsSynonym(
                name=synonym.name, value=None if entry.sensitive else synonym.value, source=synonym.source
            )
            for synonym in entry.synonyms
        ]
        if request.include_synonyms
        else [],
        config_type=entry.definition.type,
        documentation=entry.definition.documentation if request.include_documentation else None,
    )


HANDLER = Handler(32, 1, 4, handle)
