"""ListConfigResources (key 74), versions 0-1: names of the resources that have configs.

Behaviour: topics, this broker (as broker and as its loggers), groups and client metrics that have configs of their own.
A type that has none: UNSUPPORTED_VERSION (35).

Versions: v0 client metrics only (KIP-714); v1 by type, none named: all (KIP-1142).

Gaps: none.
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.cluster.config_changes import ResourceType
from kbroker.errors import ErrorCode
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.configs.k74_list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)


def handle(context: Context, info: RequestInfo, request: ListConfigResourcesRequest) -> ListConfigResourcesResponse:
    """The resources, by type and name."""
    supported = list(ResourceType) if info.api_version >= 1 else [ResourceType.CLIENT_METRICS]
    wanted = sorted(set(request.resource_types)) or supported
    if not set(wanted) <= set(supported):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind)
            for kind in wanted
            for name in sorted(_names(context, ResourceType(kind)))
        ]
    )


def _names(context: Context, kind: ResourceType) -> Iterable[str]:
    image = context.topics.image
    match kind:
        case ResourceType.TOPIC:
            return image.by_name
        case ResourceType.BROKER | ResourceType.BROKER_LOGGER:
            return (str(context.node_id),)
        case ResourceType.CLIENT_METRICS:
            return image.client_metrics
        case ResourceType.GROUP:
            return image.group_configs


HANDLER = Handler(74, 0, 1, handle)
