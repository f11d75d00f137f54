"""SyncGroup (key 14), versions 0-5, classic protocol.

Behaviour: answered when the leader's assignments are durable; a member that is missing in them gets empty bytes.
Per version: 1 throttle; 3 static members; 4 flexible; 5 protocol type and name, checked and echoed.
Known gaps: none.
"""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.groups.k14_sync_group import SyncGroupRequest, SyncGroupResponse


def handle(context: Context, info: RequestInfo, request: SyncGroupRequest) -> Future[SyncGroupResponse]:
    """Syncs; copies the assignments, because the request's bytes are not kept while it is parked."""
    for entry in request.assignments:
        entry.assignment = bytes(entry.assignment)
    future: Future[SyncGroupResponse] = context.groups.sync_group(request)
    return future


HANDLER = Handler(14, 0, 5, handle, inline=True)
