"""PushTelemetry (key 72), version 0: a client's metrics (KIP-714).

Behaviour:
- Metrics are decompressed under a bound and counted; their content is not read.
- Another subscription than the client's present one: UNKNOWN_SUBSCRIPTION_ID (117), upon which it asks for it. Before
  the interval is over: THROTTLING_QUOTA_EXCEEDED (89); a last push when a client ends is taken at any time, a further
  one is INVALID_REQUEST (42), as is an id that was not given out.
- Unknown codec: UNSUPPORTED_COMPRESSION_TYPE (76). More than telemetry.max.bytes, or 16 MiB decompressed:
  TELEMETRY_TOO_LARGE (118). Bytes that do not decompress: INVALID_RECORD (87).

Versions: 0.

Gaps: the metrics are not kept or passed on.
"""

from __future__ import annotations

from kbroker.errors import ErrorCode, KafkaError
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.handlers.client_telemetry import Client
from kbroker.handlers.get_telemetry_subscriptions import RESERVED_ID
from kbroker.protocol.apis.cluster.k72_push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from kbroker.protocol.fields import ZERO_UUID


def handle(context: Context, info: RequestInfo, request: PushTelemetryRequest) -> PushTelemetryResponse:
    """Counts them."""
    instance_id = bytes(request.client_instance_id)
    if instance_id in (ZERO_UUID, RESERVED_ID):
        return PushTelemetryResponse(error_code=ErrorCode.INVALID_REQUEST)
    try:
        context.telemetry.push(
            instance_id,
            Client(info.client_host, info.client_id),
            context.topics.image.client_metrics,
            subscription_number=request.subscription_id,
            terminating=request.terminating,
            codec=request.compression_type,
            body=request.metrics,
            bytes_max=context.topics.broker_configs.number("telemetry.max.bytes"),
        )
    except KafkaError as error:
        return PushTelemetryResponse(error_code=error.code)
    return PushTelemetryResponse()


HANDLER = Handler(72, 0, 0, handle)
