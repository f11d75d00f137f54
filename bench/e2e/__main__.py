"""End-to-end comparison: `python -m bench.e2e` runs each workload against kbroker and Apache Kafka in alternation.

Prints medians and ratios. kbroker fsyncs before each ack and flushes to an S3 server on the same machine. The workload
`start` is of kbroker alone: how long a start takes.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.e2e import start, workloads
from bench.e2e.servers import Kafka, Kbroker, S3Server, Server
from bench.e2e.workloads import Result

numbers = itertools.count()


def _topic(server: Server, partitions: int) -> str:
    topic = f"bench-{next(numbers)}"
    workloads.create_topic(server, topic, partitions)
    return topic


def _produce(run: Callable[..., Result], count: int, size: int, partitions: int, **options: bool):
    def workload(server: Server) -> Result:
        return run(server, _topic(server, partitions), count, size, **options)

    return workload


def _consume(count: int, size: int, partitions: int):
    def workload(server: Server) -> Result:
        topic = _topic(server, partitions)
        workloads.rdkafka_produce(server, topic, count, size)
        return workloads.rdkafka_consume(server, topic, partitions, count, size)

    return workload


def _consume_java(count: int, size: int, partitions: int):
    def workload(server: Server) -> Result:
        topic = _topic(server, partitions)
        workloads.rdkafka_produce(server, topic, count, size)
        return workloads.java_consume(server, topic, count, size)

    return workload


def _paced(rate: int, count: int):
    def workload(server: Server) -> Result:
        return workloads.paced_latency(server, _topic(server, 1), rate, count)

    return workload


WORKLOADS: dict[str, Callable[[Server], Result]] = {
    "paced": _paced(1000, 10_000),
    "b_rdk": _produce(workloads.rdkafka_produce, 1_500_000, 1024, 12),
    "a_rdk": _produce(workloads.rdkafka_produce, 1_500_000, 1024, 1),
    "c_rdk": _produce(workloads.rdkafka_produce, 12_000_000, 100, 12),
    "b_java": _produce(workloads.java_produce, 1_500_000, 1024, 12),
    "f_rdk": _produce(workloads.rdkafka_produce, 200_000, 100, 1, single=True),
    "f_java": _produce(workloads.java_produce, 200_000, 100, 1, single=True),
    "d1k_rdk": _consume(1_500_000, 1024, 12),
    "d_rdk": _consume(12_000_000, 100, 12),
    "d1k_java": _consume_java(1_500_000, 1024, 12),
    # Five times a log budget of 1 GiB: what flushing sustains. Run with --options "--wal-bytes 1GiB".
    "steady": _produce(workloads.rdkafka_produce, 5_242_880, 1024, 12),
}


def _measure(kind: str, name: str, folder: Path, options: list[str]) -> tuple[Result, float]:
    s3 = None
    if kind == "kbroker":
        s3 = S3Server(folder / "s3").start()
        server: Server = Kbroker(folder / "kbroker", s3, *options).start()
    else:
        server = Kafka(folder / "kafka", flush_each=kind == "kafka-flush").start()
    try:
        before = server.store_requests()
        result = WORKLOADS[name](server)
        if result.bytes:
            result.store_requests_per_gb = (server.store_requests() - before) / (result.bytes / 1e9)
        return result, server.peak_rss_mib()
    finally:
        server.stop()
        if s3:
            s3.stop()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", default="paced,b_rdk,c_rdk,b_java,f_rdk,d1k_rdk")
    parser.add_argument("--brokers", default="kbroker,kafka", help="of kbroker, kafka, kafka-flush")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--options", default="", help="more options for kbroker serve")
    parser.add_argument("--work", default=None, help="folder for data (default: a temporary one)")
    arguments = parser.parse_args()
    brokers = arguments.brokers.split(",")
    heads = f"{'MB/s':>8} {'records/s':>11} {'cpu s/GB':>9} {'req/GB':>7} {'RSS MiB':>8}  more"
    print(f"{'workload':9} {'broker':12} {heads}")
    for name in arguments.workloads.split(","):
        if name == start.NAME:
            start.print_rows(arguments.work)
            continue
        runs: dict[str, list[tuple[Result, float]]] = {broker: [] for broker in brokers}
        for _ in range(arguments.rounds):
            for broker in brokers:
                folder = Path(tempfile.mkdtemp(prefix="kbroker-bench-", dir=arguments.work))
                runs[broker].append(_measure(broker, name, folder, arguments.options.split()))
        for broker in brokers:
            _print_row(name, broker, runs[broker])
        if len(brokers) > 1:
            rates = [statistics.median(r.records_per_second for r, _ in runs[broker]) for broker in brokers]
            print(f"{name:9} ratio {brokers[0]} / {brokers[1]}: {rates[0] / rates[1]:.2f}", flush=True)


def _print_row(name: str, broker: str, runs: list[tuple[Result, float]]) -> None:
    def median(values: list[float]) -> float:
        return statistics.median(values)

    results = [result for result, _ in runs]
    more = " ".join(f"{key}={median([r.extra[key] for r in results]):.2f}" for key in results[0].extra)
    print(
        f"{name:9} {broker:12} {median([r.mb_per_second for r in results]):8.1f}"
        f" {median([r.records_per_second for r in results]):11.0f}"
        f" {median([r.cpu_seconds_per_gb for r in results]):9.2f}"
        f" {median([r.store_requests_per_gb for r in results]):7.1f} {max(rss for _, rss in runs):8.0f}  {more}",
        flush=True,
    )


if __name__ == "__main__":
    main()
