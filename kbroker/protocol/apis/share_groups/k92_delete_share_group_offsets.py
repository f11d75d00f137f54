"""DeleteShareGroupOffsets (key 92).

Version 0, flexible (KIP-932).
"""

from __future__ import annotations

from kbroker.protocol.fields import INT16, INT32, STRING, UUID, F, Message, Struct


class DeleteShareGroupOffsetsRequestTopic(Struct):
    topic_name: str = F(STRING, "0+")


class DeleteShareGroupOffsetsRequest(Message, api_key=92, versions="0", flexible="0+"):
    group_id: str = F(STRING, "0+")
    topics: list[DeleteShareGroupOffsetsRequestTopic] = F([DeleteShareGroupOffsetsRequestTopic], "0+")


class DeleteShareGroupOffsetsResponseTopic(Struct):
    topic_name: str = F(STRING, "0+")
    topic_id: bytes = F(UUID, "0+")
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+", default=None)


class DeleteShareGroupOffsetsResponse(Message, api_key=92, versions="0", flexible="0+"):
    throttle_time_ms: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+", default=None)
    responses: list[DeleteShareGroupOffsetsResponseTopic] = F([DeleteShareGroupOffsetsResponseTopic], "0+")
