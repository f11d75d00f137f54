"""ListTransactions (key 66).

Versions 0-2, flexible. 1 filters by duration (KIP-994), 2 by a pattern of the id (KIP-1152).
"""

from __future__ import annotations

from kbroker.protocol.fields import INT16, INT32, INT64, STRING, F, Message, Struct


class ListTransactionsRequest(Message, api_key=66, versions="0-2", flexible="0+"):
    state_filters: list[str] = F([STRING], "0+")
    producer_id_filters: list[int] = F([INT64], "0+")
    duration_filter: int = F(INT64, "1+", default=-1)
    transactional_id_pattern: str | None = F(STRING, "2+", nullable="2+", default=None)


class TransactionState(Struct):
    transactional_id: str = F(STRING, "0+")
    producer_id: int = F(INT64, "0+")
    transaction_state: str = F(STRING, "0+")


class ListTransactionsResponse(Message, api_key=66, versions="0-2", flexible="0+"):
    throttle_time_ms: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")
    unknown_state_filters: list[str] = F([STRING], "0+")
    transaction_states: list[TransactionState] = F([TransactionState], "0+")
