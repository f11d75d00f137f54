"""LeaveGroup (key 13): members leave a classic group.

Versions 0-5, flexible from 4. From 3 one request names many members, also by instance id; 5 adds a reason.
"""

from __future__ import annotations

from kbroker.protocol.fields import INT16, INT32, STRING, F, Message, Struct


class MemberIdentity(Struct):
    member_id: str = F(STRING, "3+")
    group_instance_id: str | None = F(STRING, "3+", nullable="3+", default=None)
    reason: str | None = F(STRING, "5+", nullable="5+", default=None)


class LeaveGroupRequest(Message, api_key=13, versions="0-5", flexible="4+"):
    group_id: str = F(STRING, "0+")
    member_id: str = F(STRING, "0-2")
    members: list[MemberIdentity] = F([MemberIdentity], "3+")


class MemberResponse(Struct):
    member_id: str = F(STRING, "3+")
    group_instance_id: str | None = F(STRING, "3+", nullable="3+")
    error_code: int = F(INT16, "3+")


class LeaveGroupResponse(Message, api_key=13, versions="0-5", flexible="4+"):
    throttle_time_ms: int = F(INT32, "1+")
    error_code: int = F(INT16, "0+")
    members: list[MemberResponse] = F([MemberResponse], "3+")
