"""ListGroups (key 16): the groups of a coordinator.

Versions 0-5, flexible from 3. 4 adds the state and a filter by it (KIP-518), 5 the same for the type (KIP-848).
"""

from __future__ import annotations

from kbroker.protocol.fields import INT16, INT32, STRING, F, Message, Struct


class ListGroupsRequest(Message, api_key=16, versions="0-5", flexible="3+"):
    states_filter: list[str] = F([STRING], "4+")
    types_filter: list[str] = F([STRING], "5+")


class ListedGroup(Struct):
    group_id: str = F(STRING, "0+")
    protocol_type: str = F(STRING, "0+")
    group_state: str = F(STRING, "4+")
    group_type: str = F(STRING, "5+")


class ListGroupsResponse(Message, api_key=16, versions="0-5", flexible="3+"):
    throttle_time_ms: int = F(INT32, "1+")
    error_code: int = F(INT16, "0+")
    groups: list[ListedGroup] = F([ListedGroup], "0+")
