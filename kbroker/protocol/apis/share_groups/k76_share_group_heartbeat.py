"""ShareGroupHeartbeat (key 76): the whole membership protocol of share groups.

Version 1, flexible (KIP-932). Null fields mean "unchanged".
"""

from __future__ import annotations

from kbroker.protocol.fields import INT16, INT32, STRING, UUID, F, Message, Struct


class ShareGroupHeartbeatRequest(Message, api_key=76, versions="1", flexible="0+"):
    group_id: str = F(STRING, "0+")
    member_id: str = F(STRING, "0+")
    member_epoch: int = F(INT32, "0+")
    rack_id: str | None = F(STRING, "0+", nullable="0+", default=None)
    subscribed_topic_names: list[str] | None = F([STRING], "0+", nullable="0+", default=None)


class TopicPartitions(Struct):
    topic_id: bytes = F(UUID, "0+")
    partitions: list[int] = F([INT32], "0+")


class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = F([TopicPartitions], "0+")


class ShareGroupHeartbeatResponse(Message, api_key=76, versions="1", flexible="0+"):
    throttle_time_ms: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+", default=None)
    member_id: str | None = F(STRING, "0+", nullable="0+", default=None)
    member_epoch: int = F(INT32, "0+")
    heartbeat_interval_ms: int = F(INT32, "0+")
    assignment: Assignment | None = F(Assignment, "0+", nullable="0+", default=None)
