"""What the status endpoint says of a broker: alive, ready, metrics. Loaded after the listener has opened."""

from __future__ import annotations

from kbroker.admin.metrics.scrape import BrokerMetrics
from kbroker.admin.readiness import OK, Readiness, State
from kbroker.app.broker import Broker
from kbroker.app.collectors import collectors
from kbroker.clock import let_threads_run


class BrokerStatus:
    """The status of a broker that has started. Any thread may ask."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        series_max = broker.config.metrics_max_series
        self._metrics = BrokerMetrics(collectors(broker, let_threads_run), series_max, broker.clock, let_threads_run)
        self._readiness = Readiness()
        self._readiness.add("broker", self._broker_state)
        self._readiness.add("log", self._log_state)
        self._readiness.add("store", self._store_state)

    def is_alive(self) -> bool:
        """False once the process must end with an error."""
        return self._broker.fatal is None

    def readiness(self) -> tuple[bool, dict[str, object]]:
        """Whether clients can produce, and the state of each part."""
        return self._readiness.report()

    def metrics(self, openmetrics: bool) -> bytes:
        """In OpenMetrics or in Prometheus' text format."""
        return self._metrics.render(openmetrics)

    def _broker_state(self) -> State:
        broker = self._broker
        if broker.fatal is not None:
            return State(broker.fatal, can_produce=False)
        return OK if broker.ready else State("stopping" if broker.stopping.is_set() else "starting", can_produce=False)

    def _log_state(self) -> State:
        reason = self._broker.wal.keeper.shortage.waiting() if self._broker.ready else None
        return OK if reason is None else State(f"appends wait for room: {reason}", can_produce=False)

    def _store_state(self) -> State:
        since = self._broker.store.health.unavailable_since
        if since is None:
            return OK
        return State(f"unavailable since {since}", can_produce=not len(self._broker.wal.object_commits))
