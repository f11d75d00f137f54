"""PushTelemetry (key 72): a client sends metrics.

Version 0, flexible (KIP-714).
"""

from __future__ import annotations

from kbroker.protocol.fields import BOOL, BYTES, INT8, INT16, INT32, UUID, Bytes, F, Message


class PushTelemetryRequest(Message, api_key=72, versions="0", flexible="0+"):
    client_instance_id: bytes = F(UUID, "0+")
    subscription_id: int = F(INT32, "0+")
    terminating: bool = F(BOOL, "0+")
    compression_type: int = F(INT8, "0+")
    metrics: Bytes = F(BYTES, "0+")


class PushTelemetryResponse(Message, api_key=72, versions="0", flexible="0+"):
    throttle_time_ms: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")
