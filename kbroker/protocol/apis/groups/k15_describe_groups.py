"""DescribeGroups (key 15): state and members of groups.

Versions 0-6, flexible from 5. 3 adds authorized operations, 4 static members; 6 answers GROUP_ID_NOT_FOUND for an
unknown group, with a message (KIP-1043).
"""

from __future__ import annotations

from kbroker.protocol.fields import BOOL, BYTES, INT16, INT32, STRING, Bytes, F, Message, Struct


class DescribeGroupsRequest(Message, api_key=15, versions="0-6", flexible="5+"):
    groups: list[str] = F([STRING], "0+")
    include_authorized_operations: bool = F(BOOL, "3+")


class DescribedGroupMember(Struct):
    member_id: str = F(STRING, "0+")
    group_instance_id: str | None = F(STRING, "4+", nullable="4+", default=None)
    client_id: str = F(STRING, "0+")
    client_host: str = F(STRING, "0+")
    member_metadata: Bytes = F(BYTES, "0+")
    member_assignment: Bytes = F(BYTES, "0+")


class DescribedGroup(Struct):
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "6+", nullable="6+", default=None)
    group_id: str = F(STRING, "0+")
    group_state: str = F(STRING, "0+")
    protocol_type: str = F(STRING, "0+")
    protocol_data: str = F(STRING, "0+")
    members: list[DescribedGroupMember] = F([DescribedGroupMember], "0+")
    authorized_operations: int = F(INT32, "3+", default=-2147483648)


class DescribeGroupsResponse(Message, api_key=15, versions="0-6", flexible="5+"):
    throttle_time_ms: int = F(INT32, "1+")
    groups: list[DescribedGroup] = F([DescribedGroup], "0+")
