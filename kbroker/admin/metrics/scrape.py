"""One scrape of all metrics, and what it says of itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kbroker.admin.metrics.declaration import Collector, MetricTable
from kbroker.admin.metrics.exposition import Exposition
from kbroker.clock import Clock

OWN_SERIES = 2

TABLE = MetricTable("Scrapes")
LEFT_OUT = TABLE.gauge(
    "kbroker_metrics_series_left_out",
    "Series over --metrics-max-series that this scrape leaves out",
    "it is not 0: topics or groups at the end of the list have no series; raise --metrics-max-series",
)
SCRAPE_SECONDS = TABLE.gauge(
    "kbroker_metrics_scrape_seconds",
    "Duration of this scrape, with its pauses for other threads",
    "scrapes time out",
)


class BrokerMetrics:
    """All metrics of a broker. Used by one thread at a time.

    The collectors whose series grow with the number of topics and groups come last: they are what is left out.
    """

    def __init__(
        self, collectors: Sequence[Collector], series_max: int, clock: Clock, pause: Callable[[], None]
    ) -> None:
        self._collectors = collectors
        self._series_max = series_max
        self._clock = clock
        self._pause = pause

    def render(self, openmetrics: bool = False) -> bytes:
        """The metrics as of now, in Prometheus' text format or in OpenMetrics."""
        started = self._clock.monotonic()
        exposition = Exposition(openmetrics, self._series_max - OWN_SERIES, self._pause)
        for collector in self._collectors:
            for family in collector.collect():
                exposition.add(family)
        left_out = exposition.left_out
        exposition.reserve(OWN_SERIES)
        exposition.add(LEFT_OUT.value(left_out))
        exposition.add(SCRAPE_SECONDS.value(self._clock.monotonic() - started))
        return exposition.end()
