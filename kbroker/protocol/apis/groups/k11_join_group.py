"""JoinGroup (key 11): a member joins a classic group or rejoins it.

Versions 0-9, flexible from 6. 1 adds the rebalance time-out; from 4 a first join without member id is answered with
MEMBER_ID_REQUIRED and an id (KIP-394); 5 adds static members (KIP-345), 7 the protocol type in the response (KIP-559),
8 a reason (KIP-800), 9 skip_assignment (KIP-814). The metadata of a protocol is opaque bytes.
"""

from __future__ import annotations

from kbroker.protocol.fields import BOOL, BYTES, INT16, INT32, STRING, Bytes, F, Message, Struct


class JoinGroupRequestProtocol(Struct):
    name: str = F(STRING, "0+")
    metadata: Bytes = F(BYTES, "0+")


class JoinGroupRequest(Message, api_key=11, versions="0-9", flexible="6+"):
    group_id: str = F(STRING, "0+")
    session_timeout_ms: int = F(INT32, "0+")
    rebalance_timeout_ms: int = F(INT32, "1+", default=-1)
    member_id: str = F(STRING, "0+")
    group_instance_id: str | None = F(STRING, "5+", nullable="5+", default=None)
    protocol_type: str = F(STRING, "0+")
    protocols: list[JoinGroupRequestProtocol] = F([JoinGroupRequestProtocol], "0+")
    reason: str | None = F(STRING, "8+", nullable="8+", default=None)


class JoinGroupResponseMember(Struct):
    member_id: str = F(STRING, "0+")
    group_instance_id: str | None = F(STRING, "5+", nullable="5+", default=None)
    metadata: Bytes = F(BYTES, "0+")


class JoinGroupResponse(Message, api_key=11, versions="0-9", flexible="6+"):
    throttle_time_ms: int = F(INT32, "2+")
    error_code: int = F(INT16, "0+")
    generation_id: int = F(INT32, "0+", default=-1)
    protocol_type: str | None = F(STRING, "7+", nullable="7+", default=None)
    protocol_name: str | None = F(STRING, "0+", nullable="7+")
    leader: str = F(STRING, "0+")
    skip_assignment: bool = F(BOOL, "9+")
    member_id: str = F(STRING, "0+")
    members: list[JoinGroupResponseMember] = F([JoinGroupResponseMember], "0+")
