"""OffsetForLeaderEpoch (key 23): where a leader epoch ends, so that a client can find out that it diverged.

Versions 2-4, flexible from 4. 3 adds the replica id.
"""

from __future__ import annotations

from kbroker.protocol.fields import INT16, INT32, INT64, STRING, F, Message, Struct


class OffsetForLeaderPartition(Struct):
    partition: int = F(INT32, "0+")
    current_leader_epoch: int = F(INT32, "2+", default=-1)
    leader_epoch: int = F(INT32, "0+")


class OffsetForLeaderTopic(Struct):
    topic: str = F(STRING, "0+")
    partitions: list[OffsetForLeaderPartition] = F([OffsetForLeaderPartition], "0+")


class OffsetForLeaderEpochRequest(Message, api_key=23, versions="2-4", flexible="4+"):
    replica_id: int = F(INT32, "3+", default=-2)
    topics: list[OffsetForLeaderTopic] = F([OffsetForLeaderTopic], "0+")


class EpochEndOffset(Struct):
    error_code: int = F(INT16, "0+")
    partition: int = F(INT32, "0+")
    leader_epoch: int = F(INT32, "1+", default=-1)
    end_offset: int = F(INT64, "0+", default=-1)


class OffsetForLeaderTopicResult(Struct):
    topic: str = F(STRING, "0+")
    partitions: list[EpochEndOffset] = F([EpochEndOffset], "0+")


class OffsetForLeaderEpochResponse(Message, api_key=23, versions="2-4", flexible="4+"):
    throttle_time_ms: int = F(INT32, "2+")
    topics: list[OffsetForLeaderTopicResult] = F([OffsetForLeaderTopicResult], "0+")
