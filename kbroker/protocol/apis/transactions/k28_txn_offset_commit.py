"""TxnOffsetCommit (key 28): offsets that become visible when the transaction commits.

Versions 0-6, flexible from 3. 2 adds leader epochs, 3 the member; 5 implies AddOffsetsToTxn (KIP-890); 6 names topics
by id (KIP-1319).
"""

from __future__ import annotations

from kbroker.protocol.fields import INT16, INT32, INT64, STRING, UUID, F, Message, Struct


class TxnOffsetCommitRequestPartition(Struct):
    partition_index: int = F(INT32, "0+")
    committed_offset: int = F(INT64, "0+")
    committed_leader_epoch: int = F(INT32, "2+", default=-1)
    committed_metadata: str | None = F(STRING, "0+", nullable="0+")


class TxnOffsetCommitRequestTopic(Struct):
    name: str = F(STRING, "0-5")
    topic_id: bytes = F(UUID, "6+")
    partitions: list[TxnOffsetCommitRequestPartition] = F([TxnOffsetCommitRequestPartition], "0+")


class TxnOffsetCommitRequest(Message, api_key=28, versions="0-6", flexible="3+"):
    transactional_id: str = F(STRING, "0+")
    group_id: str = F(STRING, "0+")
    producer_id: int = F(INT64, "0+")
    producer_epoch: int = F(INT16, "0+")
    generation_id_or_member_epoch: int = F(INT32, "3+", default=-1)
    member_id: str = F(STRING, "3+")
    group_instance_id: str | None = F(STRING, "3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = F([TxnOffsetCommitRequestTopic], "0+")


class TxnOffsetCommitResponsePartition(Struct):
    partition_index: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")


class TxnOffsetCommitResponseTopic(Struct):
    name: str = F(STRING, "0-5")
    topic_id: bytes = F(UUID, "6+")
    partitions: list[TxnOffsetCommitResponsePartition] = F([TxnOffsetCommitResponsePartition], "0+")


class TxnOffsetCommitResponse(Message, api_key=28, versions="0-6", flexible="3+"):
    throttle_time_ms: int = F(INT32, "0+")
    topics: list[TxnOffsetCommitResponseTopic] = F([TxnOffsetCommitResponseTopic], "0+")
