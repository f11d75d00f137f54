"""SyncGroup (key 14): the leader hands out assignments and members fetch theirs.

Versions 0-5, flexible from 4. 3 adds static members; 5 the protocol type and name, to be checked (KIP-559).
"""

from __future__ import annotations

from kbroker.protocol.fields import BYTES, INT16, INT32, STRING, Bytes, F, Message, Struct


class SyncGroupRequestAssignment(Struct):
    member_id: str = F(STRING, "0+")
    assignment: Bytes = F(BYTES, "0+")


class SyncGroupRequest(Message, api_key=14, versions="0-5", flexible="4+"):
    group_id: str = F(STRING, "0+")
    generation_id: int = F(INT32, "0+")
    member_id: str = F(STRING, "0+")
    group_instance_id: str | None = F(STRING, "3+", nullable="3+", default=None)
    protocol_type: str | None = F(STRING, "5+", nullable="5+", default=None)
    protocol_name: str | None = F(STRING, "5+", nullable="5+", default=None)
    assignments: list[SyncGroupRequestAssignment] = F([SyncGroupRequestAssignment], "0+")


class SyncGroupResponse(Message, api_key=14, versions="0-5", flexible="4+"):
    throttle_time_ms: int = F(INT32, "1+")
    error_code: int = F(INT16, "0+")
    protocol_type: str | None = F(STRING, "5+", nullable="5+", default=None)
    protocol_name: str | None = F(STRING, "5+", nullable="5+", default=None)
    assignment: Bytes = F(BYTES, "0+")
