"""ShareFetch (key 78): acquires records for a member of a share group, and takes acknowledgements of earlier ones.

Versions 1-2, flexible (KIP-932). 2 adds the acquire mode (KIP-1206) and renewing acknowledgements (KIP-1222).
"""

from __future__ import annotations

from kbroker.protocol.fields import BOOL, INT8, INT16, INT32, INT64, RECORDS, STRING, UUID, Bytes, F, Message, Struct


class AcknowledgementBatch(Struct):
    first_offset: int = F(INT64, "0+")
    last_offset: int = F(INT64, "0+")
    acknowledge_types: list[int] = F([INT8], "0+")


class FetchPartition(Struct):
    partition_index: int = F(INT32, "0+")
    acknowledgement_batches: list[AcknowledgementBatch] = F([AcknowledgementBatch], "0+")


class FetchTopic(Struct):
    topic_id: bytes = F(UUID, "0+")
    partitions: list[FetchPartition] = F([FetchPartition], "0+")


class ForgottenTopic(Struct):
    topic_id: bytes = F(UUID, "0+")
    partitions: list[int] = F([INT32], "0+")


class ShareFetchRequest(Message, api_key=78, versions="1-2", flexible="0+"):
    group_id: str | None = F(STRING, "0+", nullable="0+", default=None)
    member_id: str | None = F(STRING, "0+", nullable="0+")
    share_session_epoch: int = F(INT32, "0+")
    max_wait_ms: int = F(INT32, "0+")
    min_bytes: int = F(INT32, "0+")
    max_bytes: int = F(INT32, "0+", default=0x7FFFFFFF)
    max_records: int = F(INT32, "1+")
    batch_size: int = F(INT32, "1+")
    share_acquire_mode: int = F(INT8, "2+")
    is_renew_ack: bool = F(BOOL, "2+", default=False)
    topics: list[FetchTopic] = F([FetchTopic], "0+")
    forgotten_topics_data: list[ForgottenTopic] = F([ForgottenTopic], "0+")


class LeaderIdAndEpoch(Struct):
    leader_id: int = F(INT32, "0+")
    leader_epoch: int = F(INT32, "0+")


class AcquiredRecords(Struct):
    first_offset: int = F(INT64, "0+")
    last_offset: int = F(INT64, "0+")
    delivery_count: int = F(INT16, "0+")


class PartitionData(Struct):
    partition_index: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+", default=None)
    acknowledge_error_code: int = F(INT16, "0+")
    acknowledge_error_message: str | None = F(STRING, "0+", nullable="0+", default=None)
    current_leader: LeaderIdAndEpoch = F(LeaderIdAndEpoch, "0+")
    records: Bytes | None = F(RECORDS, "0+", nullable="0")
    acquired_records: list[AcquiredRecords] = F([AcquiredRecords], "0+")


class ShareFetchableTopicResponse(Struct):
    topic_id: bytes = F(UUID, "0+")
    partitions: list[PartitionData] = F([PartitionData], "0+")


class NodeEndpoint(Struct):
    node_id: int = F(INT32, "0+")
    host: str = F(STRING, "0+")
    port: int = F(INT32, "0+")
    rack: str | None = F(STRING, "0+", nullable="0+", default=None)


class ShareFetchResponse(Message, api_key=78, versions="1-2", flexible="0+"):
    throttle_time_ms: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = F(INT32, "1+")
    responses: list[ShareFetchableTopicResponse] = F([ShareFetchableTopicResponse], "0+")
    node_endpoints: list[NodeEndpoint] = F([NodeEndpoint], "0+")
