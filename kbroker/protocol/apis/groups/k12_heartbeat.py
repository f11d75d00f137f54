"""Heartbeat (key 12): keeps a member of a classic group alive.

Versions 0-4, flexible from 4. 1 adds the throttle time, 3 static members.
"""

from __future__ import annotations

from kbroker.protocol.fields import INT16, INT32, STRING, F, Message


class HeartbeatRequest(Message, api_key=12, versions="0-4", flexible="4+"):
    group_id: str = F(STRING, "0+")
    generation_id: int = F(INT32, "0+")
    member_id: str = F(STRING, "0+")
    group_instance_id: str | None = F(STRING, "3+", nullable="3+", default=None)


class HeartbeatResponse(Message, api_key=12, versions="0-4", flexible="4+"):
    throttle_time_ms: int = F(INT32, "1+")
    error_code: int = F(INT16, "0+")
