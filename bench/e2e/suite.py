"""The workloads by name: what each does to a broker that has just started, and what it reports."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from bench.e2e import workloads
from bench.e2e.servers import Server
from bench.e2e.workloads import Result

IDLE_SECONDS = 20.0
PARKED_PARTITIONS = 10_000
Workload = Callable[[Server], Result]
numbers = itertools.count()


def _topic(server: Server, partitions: int) -> str:
    topic = f"bench-{next(numbers)}"
    workloads.create_topic(server, topic, partitions)
    return topic


def _produce(run: Callable[..., Result], count: int, size: int, partitions: int, **options: bool) -> Workload:
    def workload(server: Server) -> Result:
        return run(server, _topic(server, partitions), count, size, **options)

    return workload


def _single(connections: int, count: int) -> Workload:
    def workload(server: Server) -> Result:
        return workloads.single_records(server, _topic(server, connections), connections, connections, count)

    return workload


def _consume(count: int, size: int, partitions: int) -> Workload:
    def workload(server: Server) -> Result:
        topic = _topic(server, partitions)
        workloads.rdkafka_produce(server, topic, count, size)
        return workloads.rdkafka_consume(server, topic, partitions, count, size)

    return workload


def _consume_java(count: int, size: int, partitions: int) -> Workload:
    def workload(server: Server) -> Result:
        topic = _topic(server, partitions)
        workloads.rdkafka_produce(server, topic, count, size)
        return workloads.java_consume(server, topic, count, size)

    return workload


def _paced(rate: int, count: int) -> Workload:
    def workload(server: Server) -> Result:
        return workloads.paced_latency(server, _topic(server, 1), rate, count)

    return workload


def _paced_beside_uploads(rate: int, count: int, bulk_records: int, mb_per_second: int) -> Workload:
    def workload(server: Server) -> Result:
        bulk, paced = _topic(server, 12), _topic(server, 1)
        workloads.rdkafka_produce(server, bulk, bulk_records, 1024)
        with workloads.steady_ingest(server, bulk, mb_per_second):
            return workloads.paced_latency(server, paced, rate, count)

    return workload


def _beside_parked(connections: int, count: int) -> Workload:
    """Producing beside parked connections; with_over_without compares it with the same just before, without them."""

    def workload(server: Server) -> Result:
        alone = workloads.rdkafka_produce(server, _topic(server, 12), count, 1024)
        quiet = _topic(server, PARKED_PARTITIONS)
        with workloads.parked(server, quiet, PARKED_PARTITIONS, connections):
            cpu = server.cpu_seconds()
            time.sleep(IDLE_SECONDS)
            idle = (server.cpu_seconds() - cpu) / IDLE_SECONDS
            result = workloads.rdkafka_produce(server, _topic(server, 12), count, 1024)
        result.extra["with_over_without"] = result.mb_per_second / alone.mb_per_second
        result.extra["idle_cpu_percent"] = 100 * idle
        return result

    return workload


WORKLOADS: dict[str, Workload] = {
    "paced": _paced(1000, 20_000),
    "paced_busy": _paced_beside_uploads(1000, 20_000, 5_000_000, 50),
    "b_rdk": _produce(workloads.rdkafka_produce, 1_500_000, 1024, 12),
    "a_rdk": _produce(workloads.rdkafka_produce, 1_500_000, 1024, 1),
    "c_rdk": _produce(workloads.rdkafka_produce, 12_000_000, 100, 12),
    "b_java": _produce(workloads.java_produce, 1_500_000, 1024, 12),
    "a_java": _produce(workloads.java_produce, 1_500_000, 1024, 1),
    "f_rdk": _produce(workloads.rdkafka_produce, 200_000, 100, 1, single=True),
    "f_java": _produce(workloads.java_produce, 200_000, 100, 1, single=True),
    "f1_wire": _single(1, 100_000),
    "f8_wire": _single(8, 400_000),
    "d1k_rdk": _consume(1_500_000, 1024, 12),
    "d_rdk": _consume(12_000_000, 100, 12),
    "d1k_java": _consume_java(1_500_000, 1024, 12),
    "park2k": _beside_parked(2000, 1_500_000),
    "park5k": _beside_parked(5000, 1_500_000),
    # Five times a log budget of 1 GiB: what flushing sustains. Run with --options "--wal-bytes 1GiB".
    "steady": _produce(workloads.rdkafka_produce, 5_242_880, 1024, 12),
}
