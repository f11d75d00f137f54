"""The shards of the coordinators: a shard is what one partition of a coordinator's topic holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from kbroker.admin.metrics.declaration import Family, MetricTable
from kbroker.clock import Clock
from kbroker.coordinator.runtime.request import Request
from kbroker.coordinator.runtime.result import Result
from kbroker.coordinator.runtime.shard_runtime import S
from kbroker.coordinator.runtime.shard_set import ShardSet, identity
from kbroker.errors import ErrorCode

ANSWER_SECONDS = 1.0  # how long a scrape waits for a coordinator's thread

TABLE = MetricTable("Coordinators")
SHARDS = TABLE.gauge(
    "kbroker_coordinator_shards",
    "Shards by state: partitions of a coordinator's topic, with what they hold",
    "clients get COORDINATOR_LOAD_IN_PROGRESS",
    "coordinator",
    "state",
)
LOAD_SECONDS = TABLE.histogram(
    "kbroker_coordinator_load_seconds",
    "Duration of the loads of shards, without their wait for a thread",
    "groups or transactions are away for long after a start",
    "coordinator",
)
LOADED_RECORDS = TABLE.gauge(
    "kbroker_coordinator_loaded_records", "Records that the last loads read", "loads are slow", "coordinator"
)
QUEUE = TABLE.gauge(
    "kbroker_coordinator_queue_length", "Operations that wait", "requests of groups are slow", "coordinator"
)
REFUSED = TABLE.counter(
    "kbroker_coordinator_refused_total",
    "Operations that found a queue full or waited too long",
    "clients see time-outs of coordinators",
    "coordinator",
)

T = TypeVar("T")


class ShardMetrics:
    """Of all coordinators."""

    def __init__(self, coordinators: Sequence[ShardSet[Any]]) -> None:
        self._coordinators = [(shards.name.removesuffix("-coordinator"), shards) for shards in coordinators]

    def collect(self) -> Iterator[Family]:
        runtimes = [(name, shards.runtimes) for name, shards in self._coordinators]
        states = Counter((name, runtime.state.value) for name, own in runtimes for runtime in own)
        yield SHARDS.by(states.items())
        yield LOAD_SECONDS.by(((name,), shards.load_seconds.buckets()) for name, shards in self._coordinators)
        yield LOADED_RECORDS.by(((name,), sum(runtime.loaded_records for runtime in own)) for name, own in runtimes)
        yield QUEUE.by(((name,), shards.queue_length) for name, shards in self._coordinators)
        yield REFUSED.by(((name,), sum(runtime.refused for runtime in own)) for name, own in runtimes)


def each_shard(shards: ShardSet[S], is_empty: Callable[[S], bool], read: Callable[[S], T], clock: Clock) -> Iterator[T]:
    """What `read` says of each shard that is not empty, on the coordinator's thread, which other work gets in between.

    Ends early when the coordinator has not answered within ANSWER_SECONDS in total.
    """
    deadline = clock.monotonic() + ANSWER_SECONDS
    for number, runtime in enumerate(shards.runtimes):
        if is_empty(runtime.shard):
            continue
        request = Request(lambda shard, _: Result(response=read(shard)), identity, is_internal=True)
        answer: Future[T | ErrorCode] = shards.submit_to_partition(number, request)
        try:
            found = answer.result(max(0.0, deadline - clock.monotonic()))
        except TimeoutError:
            return
        if not isinstance(found, ErrorCode):
            yield found
