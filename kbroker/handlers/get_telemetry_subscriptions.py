"""GetTelemetrySubscriptions (key 71), version 0: which of its metrics a client is to push (KIP-714).

Behaviour:
- A client without an id is given one. It is asked for the metrics of all client metrics resources that match it, at the
  shortest of their intervals; for none, to ask again in five minutes, where none matches.
- A second request before the interval is over: THROTTLING_QUOTA_EXCEEDED (89), unless the subscription has changed.
- A reserved id: INVALID_REQUEST (42).

Versions: 0.

Gaps: client_source_port matches nothing but the empty text; client_software_name and _version are those of the
last connection of the same host and client id.
"""

from __future__ import annotations

import uuid

from kbroker.errors import ErrorCode, KafkaError
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.handlers.client_telemetry import ACCEPTED_CODECS, Client
from kbroker.protocol.apis.cluster.k71_get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from kbroker.protocol.fields import ZERO_UUID

RESERVED_ID = bytes(15) + b"\x01"  # of the metadata topic


def handle(
    context: Context, info: RequestInfo, request: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    """The client's subscription."""
    instance_id = bytes(request.client_instance_id)
    if instance_id == RESERVED_ID:
        return GetTelemetrySubscriptionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    if instance_id == ZERO_UUID:
        instance_id = uuid.uuid4().bytes
    try:
        client = Client(info.client_host, info.client_id)
        wanted = context.telemetry.subscribe(instance_id, client, context.topics.image.client_metrics)
    except KafkaError as error:
        return GetTelemetrySubscriptionsResponse(error_code=error.code, client_instance_id=instance_id)
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance_id,
        subscription_id=wanted.number,
        accepted_compression_types=list(ACCEPTED_CODECS),
        push_interval_ms=wanted.interval_ms,
        telemetry_max_bytes=context.topics.broker_configs.number("telemetry.max.bytes"),
        delta_temporality=True,
        requested_metrics=list(wanted.metrics),
    )


HANDLER = Handler(71, 0, 0, handle)
