"""Requests to the object store."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.admin.metrics.declaration import Family, MetricTable
from kbroker.storage.stores.hedged_put import HedgedStore
from kbroker.storage.stores.store_health import StoreHealth
from kbroker.storage.stores.store_wrappers import OK, StoreCounters

TABLE = MetricTable("Object store")
REQUESTS = TABLE.counter(
    "kbroker_store_requests_total",
    "Requests by operation and result: ok, or the kind of error. Each try counts",
    "the store fails, or its bill is high",
    "operation",
    "result",
)
SECONDS = TABLE.histogram(
    "kbroker_store_request_seconds",
    "Duration of requests; of a listing, of all its pages",
    "the store is slow",
    "operation",
)
SENT = TABLE.counter("kbroker_store_sent_bytes_total", "Bytes sent", "the link is busy", "operation")
RECEIVED = TABLE.counter("kbroker_store_received_bytes_total", "Bytes received", "the link is busy", "operation")
RETRIES = TABLE.counter(
    "kbroker_store_retries_total", "Requests sent again because the store was unavailable", "the store throttles"
)
CONSECUTIVE_FAILURES = TABLE.gauge(
    "kbroker_store_consecutive_failures",
    "Reads or writes, whichever are more, that failed since one succeeded",
    "it is not 0 for long",
)
PROBE_ERRORS = TABLE.counter(
    "kbroker_store_probe_errors_total",
    "Errors of the probe at the start; it provokes some, to learn what the store can do",
    "a start is slow",
    "operation",
    "error",
)
HEDGEABLE = TABLE.counter(
    "kbroker_store_hedgeable_puts_total",
    "PUTs that acknowledgements wait for (kbroker.durability=object), which may be sent twice",
    "you ask how many of them are slow",
)
HEDGED = TABLE.counter(
    "kbroker_store_hedged_puts_total", "Those that were slow and were sent twice", "the store is slow at times"
)
HEDGES_WON = TABLE.counter(
    "kbroker_store_hedges_won_total", "Second PUTs that were answered first", "you ask whether hedges help"
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
        yield REQUESTS.by(
            ((operation, result), count) for operation, sums in totals for result, count in sums.results.items()
        )
        yield SECONDS.by(((operation,), sums.seconds) for operation, sums in totals)
        yield SENT.by(((operation,), sums.bytes_out) for operation, sums in totals)
        yield RECEIVED.by(((operation,), sums.bytes_in) for operation, sums in totals)
        yield RETRIES.value(self._counters.retries)
        yield CONSECUTIVE_FAILURES.value(self._health.consecutive_failures)
        yield PROBE_ERRORS.by(
            ((operation, result), count)
            for operation, sums in self._probe_counters.totals().items()
            for result, count in sums.results.items()
            if result != OK
        )
        yield HEDGEABLE.value(self._hedged.puts)
        yield HEDGED.value(self._hedged.hedges)
        yield HEDGES_WON.value(self._hedged.won)
