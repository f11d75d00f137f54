"""ShareGroupHeartbeat (key 76), version 1: membership of share groups (KIP-932), with --share-groups.

Behaviour: epoch 0 joins, -1 leaves, others stay. Null fields are unchanged. The assignment is in the answer to a full
request and where it changed. Answered when what it changed is durable; a subscription to topics that the group has not
read before also waits until their share state is created. A group of another type is GROUP_ID_NOT_FOUND.
Known gaps: racks are stored and shown, and play no part in assignments.
"""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.coordinator.group.share.heartbeat import ShareHeartbeat
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.share_groups.k76_share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)


def handle(
    context: Context, info: RequestInfo, request: ShareGroupHeartbeatRequest
) -> Future[ShareGroupHeartbeatResponse]:
    """Passes the heartbeat on; copies what it keeps."""
    names = request.subscribed_topic_names
    heartbeat = ShareHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        client_id=info.client_id or "",
        client_host=f"/{info.client_host}",
        rack_id=request.rack_id,
        topic_names=None if names is None else frozenset(names),
    )
    future: Future[ShareGroupHeartbeatResponse] = context.groups.share_heartbeat(heartbeat)
    return future


HANDLER = Handler(76, 1, 1, handle, inline=True)
