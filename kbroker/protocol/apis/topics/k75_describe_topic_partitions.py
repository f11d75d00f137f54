"""DescribeTopicPartitions (key 75): topics page by page.

Version 0, flexible (KIP-966). The Java client fails on null in the two arrays of eligible leader replicas although they
are nullable: send empty ones.
"""

from __future__ import annotations

from kbroker.protocol.fields import BOOL, INT16, INT32, STRING, UUID, F, Message, Struct


class TopicRequest(Struct):
    name: str = F(STRING, "0+")


class Cursor(Struct):
    topic_name: str = F(STRING, "0+")
    partition_index: int = F(INT32, "0+")


class DescribeTopicPartitionsRequest(Message, api_key=75, versions="0", flexible="0+"):
    topics: list[TopicRequest] = F([TopicRequest], "0+")
    response_partition_limit: int = F(INT32, "0+", default=2000)
    cursor: Cursor | None = F(Cursor, "0+", nullable="0+", default=None)


class DescribeTopicPartitionsResponsePartition(Struct):
    error_code: int = F(INT16, "0+")
    partition_index: int = F(INT32, "0+")
    leader_id: int = F(INT32, "0+")
    leader_epoch: int = F(INT32, "0+", default=-1)
    replica_nodes: list[int] = F([INT32], "0+")
    isr_nodes: list[int] = F([INT32], "0+")
    eligible_leader_replicas: list[int] | None = F([INT32], "0+", nullable="0+", default=None)
    last_known_elr: list[int] | None = F([INT32], "0+", nullable="0+", default=None)
    offline_replicas: list[int] = F([INT32], "0+")


class DescribeTopicPartitionsResponseTopic(Struct):
    error_code: int = F(INT16, "0+")
    name: str | None = F(STRING, "0+", nullable="0+")
    topic_id: bytes = F(UUID, "0+")
    is_internal: bool = F(BOOL, "0+")
    partitions: list[DescribeTopicPartitionsResponsePartition] = F([DescribeTopicPartitionsResponsePartition], "0+")
    topic_authorized_operations: int = F(INT32, "0+", default=-2147483648)


class DescribeTopicPartitionsResponse(Message, api_key=75, versions="0", flexible="0+"):
    throttle_time_ms: int = F(INT32, "0+")
    topics: list[DescribeTopicPartitionsResponseTopic] = F([DescribeTopicPartitionsResponseTopic], "0+")
    next_cursor: Cursor | None = F(Cursor, "0+", nullable="0+", default=None)
