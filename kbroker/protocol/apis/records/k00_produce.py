"""Produce (key 0): appends record batches.

Versions 3-13, flexible from 9. Versions 0-2 went with Kafka 4.0 but must still be listed in ApiVersions, or old
librdkafka turns compression off (KAFKA-18659). 7 allows zstd; 8 adds per-record errors (KIP-467); 10 adds the current
leader and its endpoint as tagged fields (KIP-951); 11 may answer TRANSACTION_ABORTABLE; 12 adds the partition to the
transaction implicitly (KIP-890); 13 names topics by id (KIP-516). With acks=0 there is no response at all.
"""

from __future__ import annotations

from kbroker.protocol.fields import INT16, INT32, INT64, RECORDS, STRING, UUID, Bytes, F, Message, Struct


class PartitionProduceData(Struct):
    index: int = F(INT32, "0+")
    records: Bytes | None = F(RECORDS, "0+", nullable="0+")


class TopicProduceData(Struct):
    name: str = F(STRING, "0-12")
    topic_id: bytes = F(UUID, "13+")
    partition_data: list[PartitionProduceData] = F([PartitionProduceData], "0+")


class ProduceRequest(Message, api_key=0, versions="3-13", flexible="9+"):
    transactional_id: str | None = F(STRING, "3+", nullable="3+", default=None)
    acks: int = F(INT16, "0+")
    timeout_ms: int = F(INT32, "0+")
    topic_data: list[TopicProduceData] = F([TopicProduceData], "0+")


class BatchIndexAndErrorMessage(Struct):
    batch_index: int = F(INT32, "8+")
    batch_index_error_message: str | None = F(STRING, "8+", nullable="8+", default=None)


class LeaderIdAndEpoch(Struct):
    leader_id: int = F(INT32, "10+", default=-1)
    leader_epoch: int = F(INT32, "10+", default=-1)


class PartitionProduceResponse(Struct):
    index: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")
    base_offset: int = F(INT64, "0+")
    log_append_time_ms: int = F(INT64, "2+", default=-1)
    log_start_offset: int = F(INT64, "5+", default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = F([BatchIndexAndErrorMessage], "8+")
    error_message: str | None = F(STRING, "8+", nullable="8+", default=None)
    current_leader: LeaderIdAndEpoch | None = F(LeaderIdAndEpoch, "10+", tag=0)


class TopicProduceResponse(Struct):
    name: str = F(STRING, "0-12")
    topic_id: bytes = F(UUID, "13+")
    partition_responses: list[PartitionProduceResponse] = F([PartitionProduceResponse], "0+")


class NodeEndpoint(Struct):
    node_id: int = F(INT32, "10+")
    host: str = F(STRING, "10+")
    port: int = F(INT32, "10+")
    rack: str | None = F(STRING, "10+", nullable="10+", default=None)


class ProduceResponse(Message, api_key=0, versions="3-13", flexible="9+"):
    responses: list[TopicProduceResponse] = F([TopicProduceResponse], "0+")
    throttle_time_ms: int = F(INT32, "1+")
    node_endpoints: list[NodeEndpoint] = F([NodeEndpoint], "10+", tag=0)
