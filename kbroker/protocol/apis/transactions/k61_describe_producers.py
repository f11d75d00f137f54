"""DescribeProducers (key 61): the producers active in partitions.

Version 0, flexible (KIP-664).
"""

from __future__ import annotations

from kbroker.protocol.fields import INT16, INT32, INT64, STRING, F, Message, Struct


class TopicRequest(Struct):
    name: str = F(STRING, "0+")
    partition_indexes: list[int] = F([INT32], "0+")


class DescribeProducersRequest(Message, api_key=61, versions="0", flexible="0+"):
    topics: list[TopicRequest] = F([TopicRequest], "0+")


class ProducerState(Struct):
    producer_id: int = F(INT64, "0+")
    producer_epoch: int = F(INT32, "0+")
    last_sequence: int = F(INT32, "0+", default=-1)
    last_timestamp: int = F(INT64, "0+", default=-1)
    coordinator_epoch: int = F(INT32, "0+")
    current_txn_start_offset: int = F(INT64, "0+", default=-1)


class PartitionResponse(Struct):
    partition_index: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+", default=None)
    active_producers: list[ProducerState] = F([ProducerState], "0+")


class TopicResponse(Struct):
    name: str = F(STRING, "0+")
    partitions: list[PartitionResponse] = F([PartitionResponse], "0+")


class DescribeProducersResponse(Message, api_key=61, versions="0", flexible="0+"):
    throttle_time_ms: int = F(INT32, "0+")
    topics: list[TopicResponse] = F([TopicResponse], "0+")
