"""ConsumerGroupHeartbeat (key 68), versions 0-1: membership of consumer groups (KIP-848).

Behaviour: epoch 0 joins, -1 leaves, -2 leaves for a while (static members), others stay. Null fields are unchanged. The
assignment is in the answer to a full request and where it changed. Assignors are uniform and range. A join turns a
classic group of consumers into a consumer group. Answered when what it changed is durable.
Per version: 1 the client makes its member id (KIP-1082); subscription by regular expression, in RE2 syntax.
Known gaps: racks are stored and shown, and play no part in assignments.
"""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.coordinator.group.consumer.heartbeat import ConsumerHeartbeat
from kbroker.coordinator.group.topic_partitions import from_structs
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.groups.k68_consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

_OWN_MEMBER_ID_MIN_VERSION = 1


def handle(
    context: Context, info: RequestInfo, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | Future[ConsumerGroupHeartbeatResponse]:
    """Renews a session, or passes the heartbeat on; copies what it keeps."""
    client_id, client_host = info.client_id or "", f"/{info.client_host}"
    renewed: ConsumerGroupHeartbeatResponse | None = context.groups.renew_consumer_session(
        request, client_id, client_host
    )
    if renewed is not None:
        return renewed
    names, owned = request.subscribed_topic_names, request.topic_partitions
    heartbeat = ConsumerHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        client_id=client_id,
        client_host=client_host,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topic_names=None if names is None else frozenset(names),
        topic_regex=request.subscribed_topic_regex,
        server_assignor=request.server_assignor,
        owned=None if owned is None else from_structs(owned),
        makes_member_id=info.api_version >= _OWN_MEMBER_ID_MIN_VERSION,
    )
    future: Future[ConsumerGroupHeartbeatResponse] = context.groups.consumer_heartbeat(heartbeat)
    return future


HANDLER = Handler(68, 0, 1, handle, inline=True)
