"""JoinGroup (key 11), versions 0-9, classic protocol.

Behaviour: parked until the rebalance completes; the leader's answer lists all members.
Per version: 0 the rebalance timeout is the session timeout; 1 has its own; 2 throttle; 4 a new dynamic member first
gets MEMBER_ID_REQUIRED with its id (KIP-394); 5 static members (KIP-345); 6 flexible; 7 protocol type, null protocol
name; 8 reason; 9 skipAssignment for a static leader that came back (KIP-814).
Known gaps: none.
"""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.coordinator.group.requests import JoinRequest
from kbroker.futures import map_future
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.groups.k11_join_group import JoinGroupRequest, JoinGroupResponse

_MEMBER_ID_REQUIRED_MIN_VERSION = 4
_NULL_PROTOCOL_NAME_MIN_VERSION = 7
_SKIP_ASSIGNMENT_MIN_VERSION = 9


def handle(context: Context, info: RequestInfo, request: JoinGroupRequest) -> Future[JoinGroupResponse]:
    """Joins; copies the metadata, because the request's bytes are not kept while it is parked."""
    rebalance_timeout_ms = request.rebalance_timeout_ms
    join = JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        client_id=info.client_id or "",
        client_host=f"/{info.client_host}",
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms if rebalance_timeout_ms >= 0 else request.session_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=[(protocol.name, bytes(protocol.metadata)) for protocol in request.protocols],
        requires_known_member_id=info.api_version >= _MEMBER_ID_REQUIRED_MIN_VERSION,
        supports_skipping_assignment=info.api_version >= _SKIP_ASSIGNMENT_MIN_VERSION,
        reason=request.reason or "",
    )

    def answer(response: JoinGroupResponse) -> JoinGroupResponse:
        if response.error_code and info.api_version >= _NULL_PROTOCOL_NAME_MIN_VERSION:
            response.protocol_name = None
        return response

    return map_future(context.groups.join_group(join), answer)


HANDLER = Handler(11, 0, 9, handle, inline=True)
