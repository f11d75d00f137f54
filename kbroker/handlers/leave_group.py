"""LeaveGroup (key 13), versions 0-5, classic protocol.

Behaviour: removes members and starts a rebalance for the others. A static member is removed by its instance id with an
empty member id.
Per version: 0-2 one member, its error is the top-level one; 1 throttle; 3 a batch, each with its own error; 4 flexible;
5 reason.
Known gaps: none.
"""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.coordinator.group.requests import Leaver
from kbroker.futures import map_future
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.groups.k13_leave_group import LeaveGroupRequest, LeaveGroupResponse

_BATCH_MIN_VERSION = 3


def handle(context: Context, info: RequestInfo, request: LeaveGroupRequest) -> Future[LeaveGroupResponse]:
    """Leaves."""
    batch = info.api_version >= _BATCH_MIN_VERSION
    if batch:
        leavers = [Leaver(member.member_id, member.group_instance_id) for member in request.members]
    else:
        leavers = [Leaver(request.member_id)]

    def answer(response: LeaveGroupResponse) -> LeaveGroupResponse:
        if batch or response.error_code:
            return response
        return LeaveGroupResponse(error_code=response.members[0].error_code)

    return map_future(context.groups.leave_group(request.group_id, leavers), answer)


HANDLER = Handler(13, 0, 5, handle, inline=True)
