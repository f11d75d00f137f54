"""IncrementalAlterConfigs (key 44), versions 0-1: sets, deletes, appends to or subtracts from single configs (KIP-339).

Behaviour:
- Topics, this broker, all brokers (the empty name), groups, client metrics, loggers. All legal changes of a request
  are committed together and take effect before the answer; each other one has its own error.
- Unknown topic UNKNOWN_TOPIC_OR_PARTITION (3), another broker's id INVALID_REQUEST (42). An unknown key, a bad value
  or a list operation on what is no list: INVALID_CONFIG (40). A broker config that is read-only or refused:
  INVALID_REQUEST. A resource or key twice, a null value, an unknown operation or type: INVALID_REQUEST.
- APPEND to a list that has no value of its own begins with the default; values that are there stay once.
- Levels of loggers live as long as the process.
- While the object store is away: NOT_CONTROLLER (41), which is retriable.

Versions: v1 flexible.

Gaps: none.
"""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.cluster.config_changes import ConfigChange, ConfigOperation, Operation, ResourceType
from kbroker.errors import ErrorCode, KafkaError
from kbroker.futures import map_future
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.handlers.config_resources import alter
from kbroker.protocol.apis.configs.k44_incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


def handle(
    context: Context, info: RequestInfo, request: IncrementalAlterConfigsRequest
) -> Future[IncrementalAlterConfigsResponse]:
    """The change runs on the metadata worker, since it waits for the object store."""
    wanted = [_change(resource) for resource in request.resources]

    def answer(errors: list[KafkaError | None]) -> IncrementalAlterConfigsResponse:
        responses = [_response(resource, error) for resource, error in zip(request.resources, errors, strict=True)]
        return IncrementalAlterConfigsResponse(responses=responses)

    return map_future(alter(context, wanted, request.validate_only), answer)


def _change(resource: AlterConfigsResource) -> ConfigChange | KafkaError:
    try:
        operations = [
            ConfigOperation(config.name, Operation(config.config_operation), config.value)
            for config in resource.configs
        ]
    except ValueError:
        return KafkaError(ErrorCode.INVALID_REQUEST, "Unknown operation type of a config.")
    try:
        return ConfigChange(ResourceType(resource.resource_type), resource.resource_name, operations)
    except ValueError:
        return KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.resource_type}")


def _response(resource: AlterConfigsResource, error: KafkaError | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


HANDLER = Handler(44, 0, 1, handle, inline=True)
