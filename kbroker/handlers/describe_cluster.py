"""DescribeCluster (key 60), versions 0-2: the brokers, the controller and the cluster id.

Behaviour: this broker is the whole cluster and its own controller; its address is that of the listener the client
came through. The rack is the broker config broker.rack.

Versions:
- v1 endpoint type: 1 brokers; 2 (controllers) is MISMATCHED_ENDPOINT_TYPE (114), any other one
  UNSUPPORTED_ENDPOINT_TYPE (115).
- v2 fenced brokers may be asked for: there are none.

Gaps: none.
"""

from __future__ import annotations

from kbroker.errors import ErrorCode
from kbroker.handlers.authorized_operations import CLUSTER_OPERATIONS, NOT_ASKED
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.cluster.k60_describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

BROKERS, CONTROLLERS = 1, 2


def handle(context: Context, info: RequestInfo, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """The live brokers."""
    if info.api_version >= 1 and request.endpoint_type != BROKERS:
        mismatch = request.endpoint_type == CONTROLLERS
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if mismatch else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="The request was sent to an endpoint of type BROKER, but we wanted another endpoint type.",
        )
    return DescribeClusterResponse(
        cluster_id=context.cluster_id,
        controller_id=context.node_id,
        brokers=[
            DescribeClusterBroker(broker_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in context.leaders.nodes(info.listener)
        ],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


HANDLER = Handler(60, 0, 2, handle, inline=True)
