"""DeleteTopics (key 20).

Versions 1-6, flexible from 4. 5 adds error messages; 6 takes names or ids.
"""

from __future__ import annotations

from kbroker.protocol.fields import INT16, INT32, STRING, UUID, F, Message, Struct


class DeleteTopicState(Struct):
    name: str | None = F(STRING, "6+", nullable="6+", default=None)
    topic_id: bytes = F(UUID, "6+")


class DeleteTopicsRequest(Message, api_key=20, versions="1-6", flexible="4+"):
    topics: list[DeleteTopicState] = F([DeleteTopicState], "6+")
    topic_names: list[str] = F([STRING], "0-5")
    timeout_ms: int = F(INT32, "0+")


class DeletableTopicResult(Struct):
    name: str | None = F(STRING, "0+", nullable="6+")
    topic_id: bytes = F(UUID, "6+")
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "5+", nullable="5+", default=None)


class DeleteTopicsResponse(Message, api_key=20, versions="1-6", flexible="4+"):
    throttle_time_ms: int = F(INT32, "1+")
    responses: list[DeletableTopicResult] = F([DeletableTopicResult], "0+")
