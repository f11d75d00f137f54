"""ConsumerGroupHeartbeat (key 68): the whole membership protocol of consumer groups.

Versions 0-1, flexible (KIP-848). Null fields mean "unchanged". 1 adds subscription by regular expression.
"""

from __future__ import annotations

from kbroker.protocol.fields import INT16, INT32, STRING, UUID, F, Message, Struct


class TopicPartitions(Struct):
    topic_id: bytes = F(UUID, "0+")
    partitions: list[int] = F([INT32], "0+")


class ConsumerGroupHeartbeatRequest(Message, api_key=68, versions="0-1", flexible="0+"):
    group_id: str = F(STRING, "0+")
    member_id: str = F(STRING, "0+")
    member_epoch: int = F(INT32, "0+")
    instance_id: str | None = F(STRING, "0+", nullable="0+", default=None)
    rack_id: str | None = F(STRING, "0+", nullable="0+", default=None)
    rebalance_timeout_ms: int = F(INT32, "0+", default=-1)
    subscribed_topic_names: list[str] | None = F([STRING], "0+", nullable="0+", default=None)
    subscribed_topic_regex: str | None = F(STRING, "1+", nullable="1+", default=None)
    server_assignor: str | None = F(STRING, "0+", nullable="0+", default=None)
    topic_partitions: list[TopicPartitions] | None = F([TopicPartitions], "0+", nullable="0+", default=None)


class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = F([TopicPartitions], "0+")


class ConsumerGroupHeartbeatResponse(Message, api_key=68, versions="0-1", flexible="0+"):
    throttle_time_ms: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+", default=None)
    member_id: str | None = F(STRING, "0+", nullable="0+", default=None)
    member_epoch: int = F(INT32, "0+")
    heartbeat_interval_ms: int = F(INT32, "0+")
    assignment: Assignment | None = F(Assignment, "0+", nullable="0+", default=None)
