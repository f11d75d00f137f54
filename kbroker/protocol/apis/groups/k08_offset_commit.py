"""OffsetCommit (key 8): stores the offsets of a group.

Versions 2-10, flexible from 8. 2-4 carry a retention time; 6 adds leader epochs, 7 static members (KIP-345); from 9 the
generation may be a member epoch (KIP-848); 10 names topics by id.
"""

from __future__ import annotations

from kbroker.protocol.fields import INT16, INT32, INT64, STRING, UUID, F, Message, Struct


class OffsetCommitRequestPartition(Struct):
    partition_index: int = F(INT32, "0+")
    committed_offset: int = F(INT64, "0+")
    committed_leader_epoch: int = F(INT32, "6+", default=-1)
    committed_metadata: str | None = F(STRING, "0+", nullable="0+")


class OffsetCommitRequestTopic(Struct):
    name: str = F(STRING, "0-9")
    topic_id: bytes = F(UUID, "10+")
    partitions: list[OffsetCommitRequestPartition] = F([OffsetCommitRequestPartition], "0+")


class OffsetCommitRequest(Message, api_key=8, versions="2-10", flexible="8+"):
    group_id: str = F(STRING, "0+")
    generation_id_or_member_epoch: int = F(INT32, "1+", default=-1)
    member_id: str = F(STRING, "1+")
    group_instance_id: str | None = F(STRING, "7+", nullable="7+", default=None)
    retention_time_ms: int = F(INT64, "2-4", default=-1)
    topics: list[OffsetCommitRequestTopic] = F([OffsetCommitRequestTopic], "0+")


class OffsetCommitResponsePartition(Struct):
    partition_index: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")


class OffsetCommitResponseTopic(Struct):
    name: str = F(STRING, "0-9")
    topic_id: bytes = F(UUID, "10+")
    partitions: list[OffsetCommitResponsePartition] = F([OffsetCommitResponsePartition], "0+")


class OffsetCommitResponse(Message, api_key=8, versions="2-10", flexible="8+"):
    throttle_time_ms: int = F(INT32, "3+")
    topics: list[OffsetCommitResponseTopic] = F([OffsetCommitResponseTopic], "0+")
