"""DeleteGroups (key 42).

Versions 0-3, flexible from 2. 3 adds an error message.
"""

from __future__ import annotations

from kbroker.protocol.fields import INT16, INT32, STRING, F, Message, Struct


class DeleteGroupsRequest(Message, api_key=42, versions="0-3", flexible="2+"):
    groups_names: list[str] = F([STRING], "0+")


class DeletableGroupResult(Struct):
    group_id: str = F(STRING, "0+")
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "3+", nullable="3+", default=None)


class DeleteGroupsResponse(Message, api_key=42, versions="0-3", flexible="2+"):
    throttle_time_ms: int = F(INT32, "0+")
    results: list[DeletableGroupResult] = F([DeletableGroupResult], "0+")
