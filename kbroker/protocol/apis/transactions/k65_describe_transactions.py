"""DescribeTransactions (key 65).

Version 0, flexible (KIP-664).
"""

from __future__ import annotations

from kbroker.protocol.fields import INT16, INT32, INT64, STRING, F, Message, Struct


class DescribeTransactionsRequest(Message, api_key=65, versions="0", flexible="0+"):
    transactional_ids: list[str] = F([STRING], "0+")


class TopicData(Struct):
    topic: str = F(STRING, "0+")
    partitions: list[int] = F([INT32], "0+")


class TransactionState(Struct):
    error_code: int = F(INT16, "0+")
    transactional_id: str = F(STRING, "0+")
    transaction_state: str = F(STRING, "0+")
    transaction_timeout_ms: int = F(INT32, "0+")
    transaction_start_time_ms: int = F(INT64, "0+")
    producer_id: int = F(INT64, "0+")
    producer_epoch: int = F(INT16, "0+")
    topics: list[TopicData] = F([TopicData], "0+")


class DescribeTransactionsResponse(Message, api_key=65, versions="0", flexible="0+"):
    throttle_time_ms: int = F(INT32, "0+")
    transaction_states: list[TransactionState] = F([TransactionState], "0+")
