"""Heartbeat (key 12), versions 0-4, classic protocol.

Behaviour: renews the member's session; REBALANCE_IN_PROGRESS asks it to rejoin. While the group's shard is loading the
answer is NONE, as Kafka's: the session restarts with the load.
Per version: 1 throttle; 3 static members; 4 flexible.
Known gaps: none.
"""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.groups.k12_heartbeat import HeartbeatRequest, HeartbeatResponse


def handle(
    context: Context, info: RequestInfo, request: HeartbeatRequest
) -> HeartbeatResponse | Future[HeartbeatResponse]:
    """Renews a session."""
    if context.groups.renew_session(request):
        return HeartbeatResponse()
    future: Future[HeartbeatResponse] = context.groups.heartbeat(request)
    return future


HANDLER = Handler(12, 0, 4, handle, inline=True)
