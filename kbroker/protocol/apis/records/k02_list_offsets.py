"""ListOffsets (key 2): offsets by timestamp.

Versions 1-11, flexible from 6. Timestamps below zero are queries: -1 latest, -2 earliest, -3 highest timestamp (from 7,
KIP-734), -4 earliest local (8, KIP-405), -5 latest tiered (9, KIP-1005), -6 earliest not yet uploaded (11, KIP-1023).
2 adds the isolation level, 4 leader epochs, 10 a time-out for lookups in remote storage (KIP-1075).
"""

from __future__ import annotations

from kbroker.protocol.fields import INT8, INT16, INT32, INT64, STRING, F, Message, Struct

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -4, -5, -6


class ListOffsetsPartition(Struct):
    partition_index: int = F(INT32, "0+")
    current_leader_epoch: int = F(INT32, "4+", default=-1)
    timestamp: int = F(INT64, "0+")


class ListOffsetsTopic(Struct):
    name: str = F(STRING, "0+")
    partitions: list[ListOffsetsPartition] = F([ListOffsetsPartition], "0+")


class ListOffsetsRequest(Message, api_key=2, versions="1-11", flexible="6+"):
    replica_id: int = F(INT32, "0+")
    isolation_level: int = F(INT8, "2+")
    topics: list[ListOffsetsTopic] = F([ListOffsetsTopic], "0+")
    timeout_ms: int = F(INT32, "10+")


class ListOffsetsPartitionResponse(Struct):
    partition_index: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")
    timestamp: int = F(INT64, "1+", default=-1)
    offset: int = F(INT64, "1+", default=-1)
    leader_epoch: int = F(INT32, "4+", default=-1)


class ListOffsetsTopicResponse(Struct):
    name: str = F(STRING, "0+")
    partitions: list[ListOffsetsPartitionResponse] = F([ListOffsetsPartitionResponse], "0+")


class ListOffsetsResponse(Message, api_key=2, versions="1-11", flexible="6+"):
    throttle_time_ms: int = F(INT32, "2+")
    topics: list[ListOffsetsTopicResponse] = F([ListOffsetsTopicResponse], "0+")
