"""EndTxn (key 26): commits or aborts a transaction.

Versions 0-5, flexible from 3. 5 answers with the producer id and epoch for the next transaction (KIP-890).
"""

from __future__ import annotations

from kbroker.protocol.fields import BOOL, INT16, INT32, INT64, STRING, F, Message


class EndTxnRequest(Message, api_key=26, versions="0-5", flexible="3+"):
    transactional_id: str = F(STRING, "0+")
    producer_id: int = F(INT64, "0+")
    producer_epoch: int = F(INT16, "0+")
    committed: bool = F(BOOL, "0+")


class EndTxnResponse(Message, api_key=26, versions="0-5", flexible="3+"):
    throttle_time_ms: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")
    producer_id: int = F(INT64, "5+", default=-1)
    producer_epoch: int = F(INT16, "5+", default=-1)
