"""GetTelemetrySubscriptions (key 71): which metrics the broker wants from a client.

Version 0, flexible (KIP-714).
"""

from __future__ import annotations

from kbroker.protocol.fields import BOOL, INT8, INT16, INT32, STRING, UUID, F, Message


class GetTelemetrySubscriptionsRequest(Message, api_key=71, versions="0", flexible="0+"):
    client_instance_id: bytes = F(UUID, "0+")


class GetTelemetrySubscriptionsResponse(Message, api_key=71, versions="0", flexible="0+"):
    throttle_time_ms: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")
    client_instance_id: bytes = F(UUID, "0+")
    subscription_id: int = F(INT32, "0+")
    accepted_compression_types: list[int] = F([INT8], "0+")
    push_interval_ms: int = F(INT32, "0+")
    telemetry_max_bytes: int = F(INT32, "0+")
    delta_temporality: bool = F(BOOL, "0+")
    requested_metrics: list[str] = F([STRING], "0+")
