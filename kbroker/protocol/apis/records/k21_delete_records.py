"""DeleteRecords (key 21): moves the log start offset.

Versions 0-2, flexible from 2.
"""

from __future__ import annotations

from kbroker.protocol.fields import INT16, INT32, INT64, STRING, F, Message, Struct


class DeleteRecordsPartition(Struct):
    partition_index: int = F(INT32, "0+")
    offset: int = F(INT64, "0+")


class DeleteRecordsTopic(Struct):
    name: str = F(STRING, "0+")
    partitions: list[DeleteRecordsPartition] = F([DeleteRecordsPartition], "0+")


class DeleteRecordsRequest(Message, api_key=21, versions="0-2", flexible="2+"):
    topics: list[DeleteRecordsTopic] = F([DeleteRecordsTopic], "0+")
    timeout_ms: int = F(INT32, "0+")


class DeleteRecordsPartitionResult(Struct):
    partition_index: int = F(INT32, "0+")
    low_watermark: int = F(INT64, "0+")
    error_code: int = F(INT16, "0+")


class DeleteRecordsTopicResult(Struct):
    name: str = F(STRING, "0+")
    partitions: list[DeleteRecordsPartitionResult] = F([DeleteRecordsPartitionResult], "0+")


class DeleteRecordsResponse(Message, api_key=21, versions="0-2", flexible="2+"):
    throttle_time_ms: int = F(INT32, "0+")
    topics: list[DeleteRecordsTopicResult] = F([DeleteRecordsTopicResult], "0+")
