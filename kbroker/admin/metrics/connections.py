"""Connections of clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kbroker.admin.metrics.declaration import Family, MetricTable
from kbroker.wire.server import WireServer

TABLE = MetricTable("Connections")
OPEN = TABLE.gauge("kbroker_connections", "Open connections", "clients cannot connect")
LIMIT = TABLE.gauge(
    "kbroker_connections_limit", "Most connections at a time; others wait", "kbroker_connections is near it"
)
ACCEPTED = TABLE.counter("kbroker_connections_accepted_total", "Connections accepted", "clients reconnect a lot")
CLOSED = TABLE.counter(
    "kbroker_connections_closed_total",
    "Connections closed: client (it ended or lost the connection), idle, no_progress (a request was not sent, or an"
    " answer not read, to its end), protocol_error, not_authenticated, limit (max.connections has become less),"
    " produce_failed (without acknowledgement), send_failed, no_memory, internal_error, broker_stop",
    "clients lose their connections",
    "reason",
)
REFUSED = TABLE.counter(
    "kbroker_connections_refused_total",
    "Connections closed as soon as they were accepted: address_limit (max.connections.per.ip), broker_stop, no_memory",
    "clients cannot connect",
    "reason",
)
PAUSES = TABLE.counter(
    "kbroker_accept_pauses_total",
    "How often new connections began to wait: limit (as many are open as may be), system (it had no descriptor or no"
    " memory for one)",
    "clients connect slowly",
    "reason",
)
RECEIVED = TABLE.counter("kbroker_received_bytes_total", "Bytes received from clients", "the network is busy")
SENT = TABLE.counter("kbroker_sent_bytes_total", "Bytes sent to clients", "the network is busy")


class ConnectionMetrics:
    """Of all listeners."""

    def __init__(self, wire: WireServer) -> None:
        self._wire = wire

    def collect(self) -> Iterator[Family]:
        reactors = self._wire.reactors
        yield OPEN.value(self._wire.connection_count)
        yield LIMIT.value(self._wire.quotas.connections_max)
        yield ACCEPTED.value(sum(reactor.connections_opened for reactor in reactors))
        for metric, counts in (
            (CLOSED, [reactor.closed_by_cause for reactor in reactors]),
            (REFUSED, [reactor.refused_by_cause for reactor in reactors]),
            (PAUSES, [reactor.pauses_by_cause for reactor in reactors]),
        ):
            sums: Counter[str] = Counter()
            for count in counts:
                sums.update(count)
            yield metric.by(((reason,), total) for reason, total in sums.items())
        yield RECEIVED.value(sum(reactor.socket_bytes[0] for reactor in reactors))
        yield SENT.value(sum(reactor.socket_bytes[1] for reactor in reactors))
