"""DescribeConfigs (key 32), versions 1-4: configs of topics and of this broker.

Behaviour:
- Keys null or empty: all. Synonyms in order of precedence when asked for. Sensitive values are null.
- Topic: unknown UNKNOWN_TOPIC_OR_PARTITION (3), illegal name INVALID_TOPIC (17).
- Broker: the own id gives every broker config, all read-only; the empty name (defaults of all brokers, altered at run
  time) gives none; another id is INVALID_REQUEST (42).
- Client metrics and groups have no configs: an empty list. Broker loggers and unknown types: INVALID_REQUEST (42).

Versions: v1 synonyms and sources. v3 config type and documentation. v4 flexible.

Gaps: configs of groups and of client metrics.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from kbroker.errors import ErrorCode, KafkaError
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.metadata.config_defs import ConfigEntry
from kbroker.metadata.topic_rules import check_name
from kbroker.protocol.apis.k32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)


class ResourceType(IntEnum):
    """What has configs."""

    TOPIC = 2
    BROKER = 4
    CLIENT_METRICS = 16
    GROUP = 32


def handle(context: Context, info: RequestInfo, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """Each resource by itself."""
    return DescribeConfigsResponse(results=[_resource(context, request, resource) for resource in request.resources])


def _resource(
    context: Context, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name, configs=[]
    )
    keys = set(resource.configuration_keys or ())
    try:
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
    match resource.resource_type:
        case ResourceType.TOPIC:
            check_name(name)
            topic = context.topics.image.by_name.get(name)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name} does not exist.")
            return context.topics.broker_configs.describe_topic(topic.configs)
        case ResourceType.BROKER:
            if name == "":
                return ()
            if name != str(context.node_id):
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"Unexpected broker id, expected {context.node_id} or empty string, but received {name}",
                )
            return context.topics.broker_configs.describe()
        case ResourceType.CLIENT_METRICS | ResourceType.GROUP:
            return ()
        case other:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {other}")


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
