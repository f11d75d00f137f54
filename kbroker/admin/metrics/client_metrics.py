"""Metrics that clients push (KIP-714)."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.admin.metrics.declaration import Family, MetricTable
from kbroker.handlers.client_telemetry import ClientTelemetry

TABLE = MetricTable("Client metrics")
PUSHES = TABLE.counter("kbroker_client_metrics_pushes_total", "Pushes of client metrics", "you use client metrics")
REFUSED = TABLE.counter("kbroker_client_metrics_refused_total", "Pushes refused", "it grows")
BYTES = TABLE.counter("kbroker_client_metrics_bytes_total", "Bytes pushed", "clients push a lot")


class ClientMetrics:
    """Of the pushes. The pushed metrics themselves are only counted."""

    def __init__(self, telemetry: ClientTelemetry) -> None:
        self._telemetry = telemetry

    def collect(self) -> Iterator[Family]:
        yield PUSHES.value(self._telemetry.pushes)
        yield REFUSED.value(self._telemetry.refused)
        yield BYTES.value(self._telemetry.pushed_bytes)
