"""WriteTxnMarkers (key 27): the coordinator ends transactions in partitions.

Versions 1-2, flexible from 1. 2 adds the transaction version (KIP-1228).
"""

from __future__ import annotations

from kbroker.protocol.fields import BOOL, INT8, INT16, INT32, INT64, STRING, F, Message, Struct


class WritableTxnMarkerTopic(Struct):
    name: str = F(STRING, "0+")
    partition_indexes: list[int] = F([INT32], "0+")


class WritableTxnMarker(Struct):
    producer_id: int = F(INT64, "0+")
    producer_epoch: int = F(INT16, "0+")
    transaction_result: bool = F(BOOL, "0+")
    topics: list[WritableTxnMarkerTopic] = F([WritableTxnMarkerTopic], "0+")
    coordinator_epoch: int = F(INT32, "0+")
    transaction_version: int = F(INT8, "2+")


class WriteTxnMarkersRequest(Message, api_key=27, versions="1-2", flexible="1+"):
    markers: list[WritableTxnMarker] = F([WritableTxnMarker], "0+")


class WritableTxnMarkerPartitionResult(Struct):
    partition_index: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")


class WritableTxnMarkerTopicResult(Struct):
    name: str = F(STRING, "0+")
    partitions: list[WritableTxnMarkerPartitionResult] = F([WritableTxnMarkerPartitionResult], "0+")


class WritableTxnMarkerResult(Struct):
    producer_id: int = F(INT64, "0+")
    topics: list[WritableTxnMarkerTopicResult] = F([WritableTxnMarkerTopicResult], "0+")


class WriteTxnMarkersResponse(Message, api_key=27, versions="1-2", flexible="1+"):
    markers: list[WritableTxnMarkerResult] = F([WritableTxnMarkerResult], "0+")
