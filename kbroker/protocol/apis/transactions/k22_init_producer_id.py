"""InitProducerId (key 22): a producer id and epoch, for idempotence and transactions.

Versions 0-6, flexible from 2. 3 passes the current id and epoch in order to resume (KIP-360); 4 may answer
PRODUCER_FENCED, 5 TRANSACTION_ABORTABLE; 6 adds two-phase commit (KIP-939).
"""

from __future__ import annotations

from kbroker.protocol.fields import BOOL, INT16, INT32, INT64, STRING, F, Message


class InitProducerIdRequest(Message, api_key=22, versions="0-6", flexible="2+"):
    transactional_id: str | None = F(STRING, "0+", nullable="0+")
    transaction_timeout_ms: int = F(INT32, "0+")
    producer_id: int = F(INT64, "3+", default=-1)
    producer_epoch: int = F(INT16, "3+", default=-1)
    enable2_pc: bool = F(BOOL, "6+")
    keep_prepared_txn: bool = F(BOOL, "6+")


class InitProducerIdResponse(Message, api_key=22, versions="0-6", flexible="2+"):
    throttle_time_ms: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")
    producer_id: int = F(INT64, "0+", default=-1)
    producer_epoch: int = F(INT16, "0+")
    ongoing_txn_producer_id: int = F(INT64, "6+", default=-1)
    ongoing_txn_producer_epoch: int = F(INT16, "6+", default=-1)
