"""ListGroups (key 16), versions 0-5.

Behaviour: all groups of this broker; COORDINATOR_LOAD_IN_PROGRESS while any of them is still loading.
Per version: 1 throttle; 3 flexible; 4 states (KIP-518); 5 types (KIP-848).
Known gaps: none.
"""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.errors import ErrorCode
from kbroker.futures import map_future
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.groups.k16_list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse


def handle(context: Context, info: RequestInfo, request: ListGroupsRequest) -> Future[ListGroupsResponse]:
    """Lists groups."""
    states = frozenset(state.lower() for state in request.states_filter)
    types = frozenset(type_.lower() for type_ in request.types_filter)

    def answer(listed: list[ListedGroup] | ErrorCode) -> ListGroupsResponse:
        if isinstance(listed, ErrorCode):
            return ListGroupsResponse(error_code=listed)
        return ListGroupsResponse(groups=listed)

    return map_future(context.groups.list_groups(states, types), answer)


HANDLER = Handler(16, 0, 5, handle, inline=True)
