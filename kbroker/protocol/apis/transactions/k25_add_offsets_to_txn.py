"""AddOffsetsToTxn (key 25): a transaction will commit offsets of a group.

Versions 0-4, flexible from 3.
"""

from __future__ import annotations

from kbroker.protocol.fields import INT16, INT32, INT64, STRING, F, Message


class AddOffsetsToTxnRequest(Message, api_key=25, versions="0-4", flexible="3+"):
    transactional_id: str = F(STRING, "0+")
    producer_id: int = F(INT64, "0+")
    producer_epoch: int = F(INT16, "0+")
    group_id: str = F(STRING, "0+")


class AddOffsetsToTxnResponse(Message, api_key=25, versions="0-4", flexible="3+"):
    throttle_time_ms: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")
