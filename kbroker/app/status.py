"""What the status endpoint says of a broker: alive, ready, metrics. Loaded after the listener has opened."""

from __future__ import annotations

from dataclasses import asdict

from kbroker.admin.metrics import Metrics, MetricSources
from kbroker.admin.readiness import OK, Readiness, State
from kbroker.app.broker import Broker


class BrokerStatus:
    """The status of a broker that has started. Any thread may ask."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._metrics = Metrics(_metric_sources(broker))
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

    def metrics(self) -> bytes:
        """In Prometheus' text format."""
        return self._metrics.render()

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


def _metric_sources(broker: Broker) -> MetricSources:
    return MetricSources(
        wire=broker.wire,
        wal=broker.wal,
        unflushed_age=broker.unflushed_age,
        flusher=broker.flusher,
        cleaner=broker.cleaner,
        converter=broker.converter,
        proposals=broker.proposals,
        manifest=broker.cluster.manifest,
        store_counters=broker.store.counters,
        probe_counters=broker.store.probe_counters,
        store_health=broker.store.health,
        object_reader=broker.object_reader,
        cold_reader=broker.cold_reader,
        heap=broker.heap,
        pool_bounds=asdict(broker.config.pools),
        producer_pool=broker.logs.producer_pool,
        groups=broker.groups,
        transactions=broker.transactions,
        share_states=broker.share_states,
        share_partitions=broker.share_partitions,
        telemetry=broker.telemetry,
    )
