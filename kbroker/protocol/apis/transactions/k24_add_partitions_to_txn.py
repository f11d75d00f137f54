"""AddPartitionsToTxn (key 24).

Versions 0-5, flexible from 3. Up to 3 for clients; 4 and 5 are sent by brokers for many transactions at once (KIP-890).
"""

from __future__ import annotations

from kbroker.protocol.fields import BOOL, INT16, INT32, INT64, STRING, F, Message, Struct


class AddPartitionsToTxnTopic(Struct):
    name: str = F(STRING, "0+")
    partitions: list[int] = F([INT32], "0+")


class AddPartitionsToTxnTransaction(Struct):
    transactional_id: str = F(STRING, "4+")
    producer_id: int = F(INT64, "4+")
    producer_epoch: int = F(INT16, "4+")
    verify_only: bool = F(BOOL, "4+")
    topics: list[AddPartitionsToTxnTopic] = F([AddPartitionsToTxnTopic], "4+")


class AddPartitionsToTxnRequest(Message, api_key=24, versions="0-5", flexible="3+"):
    transactions: list[AddPartitionsToTxnTransaction] = F([AddPartitionsToTxnTransaction], "4+")
    v3_and_below_transactional_id: str = F(STRING, "0-3")
    v3_and_below_producer_id: int = F(INT64, "0-3")
    v3_and_below_producer_epoch: int = F(INT16, "0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = F([AddPartitionsToTxnTopic], "0-3")


class AddPartitionsToTxnPartitionResult(Struct):
    partition_index: int = F(INT32, "0+")
    partition_error_code: int = F(INT16, "0+")


class AddPartitionsToTxnTopicResult(Struct):
    name: str = F(STRING, "0+")
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = F([AddPartitionsToTxnPartitionResult], "0+")


class AddPartitionsToTxnResult(Struct):
    transactional_id: str = F(STRING, "4+")
    topic_results: list[AddPartitionsToTxnTopicResult] = F([AddPartitionsToTxnTopicResult], "4+")


class AddPartitionsToTxnResponse(Message, api_key=24, versions="0-5", flexible="3+"):
    throttle_time_ms: int = F(INT32, "0+")
    error_code: int = F(INT16, "4+")
    results_by_transaction: list[AddPartitionsToTxnResult] = F([AddPartitionsToTxnResult], "4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = F([AddPartitionsToTxnTopicResult], "0-3")
