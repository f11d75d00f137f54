"""The shards of the coordinators: a shard is what one partition of a coordinator's topic holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kbroker.admin.metrics.declaration import Family, MetricTable
from kbroker.coordinator.runtime.census import census
from kbroker.coordinator.runtime.shard_runtime import S
from kbroker.coordinator.runtime.shard_set import ShardSet

COUNT_SECONDS = 1.0  # how long a scrape waits for a coordinator's thread

TABLE = MetricTable("Coordinators")
SHARDS = TABLE.gauge(
    "kbroker_coordinator_shards", "Shards by state", "clients get COORDINATOR_LOAD_IN_PROGRESS", "coordinator", "state"
)
LOADED_RECORDS = TABLE.gauge(
    "kbroker_coordinator_loaded_records", "Records read by the last loads of all shards", "loads are slow", "coordinator"
)
QUEUE = TABLE.gauge(
    "kbroker_coordinator_queue_length", "Operations that wait", "requests of groups are slow", "coordinator"
)
REFUSED = TABLE.counter(
    "kbroker_coordinator_refused_total",
    "Operations that found a queue full or waited too long",
    "it grows",
    "coordinator",
)


class ShardMetrics:
    """Of all coordinators."""

    def __init__(self, coordinators: Sequence[ShardSet[Any]]) -> None:
        self._coordinators = [(shards.name.removesuffix("-coordinator"), shards) for shards in coordinators]

    def collect(self) -> Iterator[Family]:
        runtimes = [(name, shards.runtimes) for name, shards in self._coordinators]
        states = Counter((name, runtime.state.value) for name, own in runtimes for runtime in own)
        yield SHARDS.by(states.items())
        yield LOADED_RECORDS.by(((name,), sum(runtime.loaded_records for runtime in own)) for name, own in runtimes)
        yield QUEUE.by(((name,), shards.queue_length) for name, shards in self._coordinators)
        yield REFUSED.by(((name,), sum(runtime.refused for runtime in own)) for name, own in runtimes)


def counted(shards: ShardSet[S], count: Callable[[S], Counter[Any]]) -> Counter[Any]:
    """The sum over all shards; empty when the coordinator does not answer within COUNT_SECONDS."""
    try:
        return census(shards, count).result(COUNT_SECONDS)
    except TimeoutError:
        return Counter()
