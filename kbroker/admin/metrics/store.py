"""Requests to the object store."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.admin.metrics.declaration import Family, MetricTable
from kbroker.storage.stores.hedged_put import HedgedStore
from kbroker.storage.stores.store_health import StoreHealth
from kbroker.storage.stores.store_wrappers import StoreCounters

TABLE = MetricTable("Object store")
REQUESTS = TABLE.counter("kbroker_store_requests_total", "Requests to the store", "the bill is high", "operation")
SENT = TABLE.counter("kbroker_store_sent_bytes_total", "Bytes sent to the store", "the link is busy", "operation")
RECEIVED = TABLE.counter("kbroker_store_received_bytes_total", "Bytes read from it", "the link is busy", "operation")
SECONDS = TABLE.counter("kbroker_store_seconds_total", "Time in requests", "the store is slow", "operation")
ERRORS = TABLE.counter("kbroker_store_errors_total", "Failed requests", "it grows", "operation", "error")
PROBE_ERRORS = TABLE.counter(
    "kbroker_store_probe_errors_total", "Errors of the probe at the start", "a start is slow", "operation", "error"
)
CONSECUTIVE_FAILURES = TABLE.gauge(
    "kbroker_store_consecutive_failures", "Requests that failed since one succeeded", "it is not 0 for long"
)
HEDGEABLE = TABLE.counter("kbroker_store_hedgeable_puts_total", "PUTs that may be sent twice", "the store is slow")
HEDGED = TABLE.counter("kbroker_store_hedged_puts_total", "PUTs that were sent twice", "the store is slow at times")
HEDGES_WON = TABLE.counter(
    "kbroker_store_hedges_won_total", "Second PUTs that were answered first", "the store is slow at times"
)


class StoreMetrics:
    """Of the store's wrappers."""

    def __init__(
        self, counters: StoreCounters, probe_counters: StoreCounters, health: StoreHealth, hedged: HedgedStore
    ) -> None:
        self._counters = counters
        self._probe_counters = probe_counters
        self._health = health
        self._hedged = hedged

    def collect(self) -> Iterator[Family]:
        totals = self._counters.totals().items()
        yield REQUESTS.by(((operation,), sums.requests) for operation, sums in totals)
        yield SENT.by(((operation,), sums.bytes_out) for operation, sums in totals)
        yield RECEIVED.by(((operation,), sums.bytes_in) for operation, sums in totals)
        yield SECONDS.by(((operation,), sums.seconds) for operation, sums in totals)
        yield ERRORS.by(self._counters.errors().items())
        yield PROBE_ERRORS.by(self._probe_counters.errors().items())
        yield CONSECUTIVE_FAILURES.value(self._health.consecutive_failures)
        yield HEDGEABLE.value(self._hedged.puts)
        yield HEDGED.value(self._hedged.hedges)
        yield HEDGES_WON.value(self._hedged.won)
