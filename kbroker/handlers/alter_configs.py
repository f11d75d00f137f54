"""AlterConfigs (key 33), versions 0-2: replaces all configs of a resource. Old clients; see IncrementalAlterConfigs.

Behaviour:
- Configs that are not named go back to their defaults. Otherwise as IncrementalAlterConfigs does a SET of each.
- Loggers are refused: INVALID_REQUEST (42).

Versions: v2 flexible.

Gaps: none.
"""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.cluster.config_changes import ConfigChange, ConfigOperation, Operation, ResourceType
from kbroker.errors import ErrorCode, KafkaError
from kbroker.futures import map_future
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.handlers.config_resources import alter
from kbroker.protocol.apis.configs.k33_alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


def handle(context: Context, info: RequestInfo, request: AlterConfigsRequest) -> Future[AlterConfigsResponse]:
    """The change runs on the metadata worker, since it waits for the object store."""
    wanted = [_change(resource) for resource in request.resources]

    def answer(errors: list[KafkaError | None]) -> AlterConfigsResponse:
        responses = [_response(resource, error) for resource, error in zip(request.resources, errors, strict=True)]
        return AlterConfigsResponse(responses=responses)

    return map_future(alter(context, wanted, request.validate_only), answer)


def _change(resource: AlterConfigsResource) -> ConfigChange | KafkaError:
    operations = [ConfigOperation(config.name, Operation.SET, config.value) for config in resource.configs]
    try:
        return ConfigChange(ResourceType(resource.resource_type), resource.resource_name, operations, replace=True)
    except ValueError:
        return KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.resource_type}")


def _response(resource: AlterConfigsResource, error: KafkaError | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


HANDLER = Handler(33, 0, 2, handle, inline=True)
