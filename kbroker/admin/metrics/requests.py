"""Requests by API."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.admin.metrics.declaration import Family, MetricTable, power_of_two_buckets
from kbroker.protocol.api_keys import ApiKey
from kbroker.wire.server import WireServer

TABLE = MetricTable("Requests")
REQUESTS = TABLE.counter("kbroker_requests_total", "Requests answered", "you ask what clients do", "api")
REQUEST_BYTES = TABLE.counter("kbroker_request_bytes_total", "Bytes of requests", "the network is busy", "api")
RESPONSE_BYTES = TABLE.counter("kbroker_response_bytes_total", "Bytes of responses", "the network is busy", "api")
REQUEST_SECONDS = TABLE.histogram(
    "kbroker_request_seconds",
    "Arrival until the answer is queued to be sent; of Fetch with its wait for data",
    "clients report time-outs",
    "api",
)
CONNECTIONS = TABLE.gauge("kbroker_connections", "Open connections", "clients cannot connect")
CONNECTIONS_LIMIT = TABLE.gauge(
    "kbroker_connections_limit", "Most connections at a time; others wait", "kbroker_connections is near it"
)


class RequestMetrics:
    """Of the server of clients."""

    def __init__(self, wire: WireServer) -> None:
        self._wire = wire

    def collect(self) -> Iterator[Family]:
        rows = [(title(key), row) for key, row in self._wire.metrics().items()]
        yield REQUESTS.by(((api,), row[0]) for api, row in rows)
        yield REQUEST_BYTES.by(((api,), row[1]) for api, row in rows)
        yield RESPONSE_BYTES.by(((api,), row[2]) for api, row in rows)
        yield REQUEST_SECONDS.by(((api,), power_of_two_buckets(row[4], row[3] / 1e6)) for api, row in rows)
        yield CONNECTIONS.value(self._wire.connection_count)
        yield CONNECTIONS_LIMIT.value(self._wire.quotas.connections_max)


def title(key: int) -> str:
    """The name of an API, or its key if it has none."""
    try:
        return ApiKey(key).title
    except ValueError:
        return str(key)
