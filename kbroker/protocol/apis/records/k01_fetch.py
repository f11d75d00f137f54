"""Fetch (key 1): reads record batches, waiting until there are enough.

Versions 4-18, flexible from 12. 5 adds the log start offset; 7 fetch sessions (KIP-227); 9 the current leader epoch
(KIP-320); 10 allows zstd; 11 adds the rack (KIP-392); 12 the last fetched epoch; 13 names topics by id (KIP-516);
15 moves the replica id into a tagged struct (KIP-903); 16 adds leader endpoints (KIP-951); 17 the replica directory
(KIP-853); 18 the high watermark that the fetcher knows (KIP-1166).
"""

from __future__ import annotations

from kbroker.protocol.fields import (
    INT8,
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    UUID,
    Bytes,
    F,
    Message,
    Struct,
)


class ReplicaState(Struct):
    replica_id: int = F(INT32, "15+", default=-1)
    replica_epoch: int = F(INT64, "15+", default=-1)


class FetchPartition(Struct):
    partition: int = F(INT32, "0+")
    current_leader_epoch: int = F(INT32, "9+", default=-1)
    fetch_offset: int = F(INT64, "0+")
    last_fetched_epoch: int = F(INT32, "12+", default=-1)
    log_start_offset: int = F(INT64, "5+", default=-1)
    partition_max_bytes: int = F(INT32, "0+")
    replica_directory_id: bytes = F(UUID, "17+", tag=0)
    high_watermark: int = F(INT64, "18+", default=9223372036854775807, tag=1)


class FetchTopic(Struct):
    topic: str = F(STRING, "0-12")
    topic_id: bytes = F(UUID, "13+")
    partitions: list[FetchPartition] = F([FetchPartition], "0+")


class ForgottenTopic(Struct):
    topic: str = F(STRING, "7-12")
    topic_id: bytes = F(UUID, "13+")
    partitions: list[int] = F([INT32], "7+")


class FetchRequest(Message, api_key=1, versions="4-18", flexible="12+"):
    cluster_id: str | None = F(STRING, "12+", nullable="12+", default=None, tag=0)
    replica_id: int = F(INT32, "0-14", default=-1)
    replica_state: ReplicaState | None = F(ReplicaState, "15+", tag=1)
    max_wait_ms: int = F(INT32, "0+")
    min_bytes: int = F(INT32, "0+")
    max_bytes: int = F(INT32, "3+", default=0x7FFFFFFF)
    isolation_level: int = F(INT8, "4+")
    session_id: int = F(INT32, "7+")
    session_epoch: int = F(INT32, "7+", default=-1)
    topics: list[FetchTopic] = F([FetchTopic], "0+")
    forgotten_topics_data: list[ForgottenTopic] = F([ForgottenTopic], "7+")
    rack_id: str = F(STRING, "11+")


class EpochEndOffset(Struct):
    epoch: int = F(INT32, "12+", default=-1)
    end_offset: int = F(INT64, "12+", default=-1)


class LeaderIdAndEpoch(Struct):
    leader_id: int = F(INT32, "12+", default=-1)
    leader_epoch: int = F(INT32, "12+", default=-1)


class SnapshotId(Struct):
    end_offset: int = F(INT64, "0+", default=-1)
    epoch: int = F(INT32, "0+", default=-1)


class AbortedTransaction(Struct):
    producer_id: int = F(INT64, "4+")
    first_offset: int = F(INT64, "4+")


class PartitionData(Struct):
    partition_index: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")
    high_watermark: int = F(INT64, "0+")
    last_stable_offset: int = F(INT64, "4+", default=-1)
    log_start_offset: int = F(INT64, "5+", default=-1)
    diverging_epoch: EpochEndOffset | None = F(EpochEndOffset, "12+", tag=0)
    current_leader: LeaderIdAndEpoch | None = F(LeaderIdAndEpoch, "12+", tag=1)
    snapshot_id: SnapshotId | None = F(SnapshotId, "12+", tag=2)
    aborted_transactions: list[AbortedTransaction] | None = F([AbortedTransaction], "4+", nullable="4+")
    preferred_read_replica: int = F(INT32, "11+", default=-1)
    records: Bytes | None = F(RECORDS, "0+", nullable="0+")


class FetchableTopicResponse(Struct):
    topic: str = F(STRING, "0-12")
    topic_id: bytes = F(UUID, "13+")
    partitions: list[PartitionData] = F([PartitionData], "0+")


class NodeEndpoint(Struct):
    node_id: int = F(INT32, "16+")
    host: str = F(STRING, "16+")
    port: int = F(INT32, "16+")
    rack: str | None = F(STRING, "16+", nullable="16+", default=None)


class FetchResponse(Message, api_key=1, versions="4-18", flexible="12+"):
    throttle_time_ms: int = F(INT32, "1+")
    error_code: int = F(INT16, "7+")
    session_id: int = F(INT32, "7+")
    responses: list[FetchableTopicResponse] = F([FetchableTopicResponse], "0+")
    node_endpoints: list[NodeEndpoint] = F([NodeEndpoint], "16+", tag=0)
