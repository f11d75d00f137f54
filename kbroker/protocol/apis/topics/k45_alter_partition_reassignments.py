"""AlterPartitionReassignments (key 45).

Versions 0-1, flexible. 1 can forbid changing the replication factor (KIP-860).
"""

from __future__ import annotations

from kbroker.protocol.fields import BOOL, INT16, INT32, STRING, F, Message, Struct


class ReassignablePartition(Struct):
    partition_index: int = F(INT32, "0+")
    replicas: list[int] | None = F([INT32], "0+", nullable="0+", default=None)


class ReassignableTopic(Struct):
    name: str = F(STRING, "0+")
    partitions: list[ReassignablePartition] = F([ReassignablePartition], "0+")


class AlterPartitionReassignmentsRequest(Message, api_key=45, versions="0-1", flexible="0+"):
    timeout_ms: int = F(INT32, "0+", default=60000)
    allow_replication_factor_change: bool = F(BOOL, "1+", default=True)
    topics: list[ReassignableTopic] = F([ReassignableTopic], "0+")


class ReassignablePartitionResponse(Struct):
    partition_index: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+")


class ReassignableTopicResponse(Struct):
    name: str = F(STRING, "0+")
    partitions: list[ReassignablePartitionResponse] = F([ReassignablePartitionResponse], "0+")


class AlterPartitionReassignmentsResponse(Message, api_key=45, versions="0-1", flexible="0+"):
    throttle_time_ms: int = F(INT32, "0+")
    allow_replication_factor_change: bool = F(BOOL, "1+", default=True)
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+")
    responses: list[ReassignableTopicResponse] = F([ReassignableTopicResponse], "0+")
