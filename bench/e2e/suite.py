"""The workloads by name: what each does to a broker that has just started, and what it reports."""

from __future__ import annotations

import contextlib
import itertools
import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.e2e import workloads
from bench.e2e.history import CEILING
from bench.e2e.servers import LOG, TAIL, FreeBroker, Kafka, Kbroker, S3Server, Server
from bench.e2e.workloads import Result

IDLE_SECONDS = 20.0
SETTLE_SECONDS = 3.0  # for what comes with new connections and a new topic
PARKED_PARTITIONS = 10_000
SCRAPED_PARTITIONS, SCRAPED_TOPICS = 10_000, 10
SCRAPED_GROUPS = 1_000  # with a commit for each of their share of the partitions
PUT_CEILING_SECONDS = 24.0
INGEST_SETTLES_SECONDS = 150.0  # until uploads follow what has come in since the start
INGEST_SECONDS = 30.0
STORED_LOOK_SECONDS = 4.0  # a look costs CPU time
STORED_SECONDS_MAX = 600.0
WAL_BYTES = 1 << 30  # of `steady`
LOG_BYTES = 512 << 20  # of the broker that costs nothing: what is not stored is in as much memory
Workload = Callable[[Server], Result]
numbers = itertools.count()


def _topic(server: Server, partitions: int) -> str:
    topic = f"bench-{next(numbers)}-{partitions}"
    server.create_topic(topic, partitions)
    return topic


def _produce(run: Callable[..., Result], count: int, size: int, partitions: int, **options: bool) -> Workload:
    def workload(server: Server) -> Result:
        return run(server, _topic(server, partitions), count, size, **options)

    return workload


def _single(connections: int, count: int) -> Workload:
    def workload(server: Server) -> Result:
        return workloads.single_records(server, _topic(server, connections), connections, connections, count)

    return workload


def _consume(count: int, size: int, partitions: int, *, again: bool = False) -> Workload:
    """Reading right behind the producer; `again`: what has been read before, with nothing left to upload."""

    def workload(server: Server) -> Result:
        topic = _topic(server, partitions)
        workloads.rdkafka_produce(server, topic, count, size)
        if again:
            workloads.rdkafka_consume(server, topic, partitions, count, size)
            server.settle()
            time.sleep(SETTLE_SECONDS)
        return workloads.rdkafka_consume(server, topic, partitions, count, size)

    return workload


def _consume_java(count: int, size: int, partitions: int) -> Workload:
    def workload(server: Server) -> Result:
        topic = _topic(server, partitions)
        workloads.rdkafka_produce(server, topic, count, size)
        return workloads.java_consume(server, topic, count, size)

    return workload


def _paced_with_floor(server: Server, topic: str, rate: int, count: int) -> Result:
    """The machine's own part is measured just before, beside the same other work."""
    floor = workloads.latency_floor(server, rate, count)
    result = workloads.paced_latency(server, topic, rate, count)
    result.extra |= floor
    return result


def _paced(rate: int, count: int) -> Workload:
    def workload(server: Server) -> Result:
        return _paced_with_floor(server, _topic(server, 1), rate, count)

    return workload


def _paced_scraped(rate: int, count: int) -> Workload:
    """`paced` on a broker with SCRAPED_PARTITIONS and SCRAPED_GROUPS, without scrapes and with one a second."""

    def workload(server: Server) -> Result:
        assert isinstance(server, Kbroker)
        paced = _topic(server, 1)
        topics = [_topic(server, SCRAPED_PARTITIONS // SCRAPED_TOPICS) for _ in range(SCRAPED_TOPICS)]
        for topic in topics:
            workloads.rdkafka_produce(server, topic, SCRAPED_PARTITIONS, 100)
        workloads.commit_starts(server, topics, SCRAPED_PARTITIONS // SCRAPED_TOPICS, SCRAPED_GROUPS)
        server.settle()
        time.sleep(SETTLE_SECONDS)
        without = _paced_with_floor(server, paced, rate, count)
        with workloads.scraped(server.metrics_url) as scrapes:
            result = _paced_with_floor(server, paced, rate, count)
        result.extra |= {
            "p99_scraped_over_unscraped": result.extra["p99_ms"] / without.extra["p99_ms"],
            "scrapes": len(scrapes),
            "scrape_mb": statistics.median(scrapes) / 1e6,
        }
        return result

    return workload


def _paced_beside_uploads(rate: int, count: int, bulk_records: int, mb_per_second: int) -> Workload:
    def workload(server: Server) -> Result:
        bulk, paced = _topic(server, 12), _topic(server, 1)
        workloads.rdkafka_produce(server, bulk, bulk_records, 1024)
        with workloads.steady_ingest(server, bulk, mb_per_second):
            return _paced_with_floor(server, paced, rate, count)

    return workload


def _ingest(mb_per_second: int) -> Workload:
    """Producing at a rate for minutes: what the broker spends in the last half of one, its uploads included, and what
    is not uploaded then."""

    def workload(server: Server) -> Result:
        topic = _topic(server, 12)
        with workloads.steady_ingest(server, topic, mb_per_second):
            time.sleep(INGEST_SETTLES_SECONDS)
            cpu, requests, start = server.cpu_seconds(), server.store_requests(), time.monotonic()
            before = workloads.records_in(server, topic, 12)
            time.sleep(INGEST_SECONDS)
            count = workloads.records_in(server, topic, 12) - before
            seconds, cpu = time.monotonic() - start, server.cpu_seconds() - cpu
            extra = {"unflushed_mb": server.unflushed_bytes() / 1e6}
            per_gb = (server.store_requests() - requests) / (count * 1024 / 1e9)
            return Result(count, count * 1024, seconds, cpu, extra, store_requests_per_gb=per_gb)

    return workload


def _stored(produce: Callable[..., Result], count: int, size: int, partitions: int) -> Workload:
    """Producing, and then nothing until all of it is uploaded at the broker's own pace, and up to STORED_LOOK_SECONDS
    longer: the CPU time of all that."""

    def workload(server: Server) -> Result:
        cpu = server.cpu_seconds()
        result = produce(server, _topic(server, partitions), count, size)
        start = time.monotonic()
        while server.unflushed_bytes():
            if time.monotonic() - start > STORED_SECONDS_MAX:
                raise TimeoutError("the broker does not upload what it has got")
            time.sleep(STORED_LOOK_SECONDS)
        result.extra["upload_seconds"] = time.monotonic() - start
        result.cpu_seconds = server.cpu_seconds() - cpu
        return result

    return workload


def _beside_parked(connections: int, count: int) -> Workload:
    """Producing beside parked connections; with_over_without compares the mean of three runs with that of three
    without them. They alternate, so that a disk that slows down favours neither, and each starts when all before it is
    stored. Two runs before them give the broker its memory.

    idle_cpu_percent is what they cost while nothing else is done, measured first: later, uploads would count as theirs.
    """

    def workload(server: Server) -> Result:
        quiet = _topic(server, PARKED_PARTITIONS)

        def produce() -> Result:
            result = workloads.rdkafka_produce(server, _topic(server, 12), count, 1024)
            server.settle()
            return result

        with workloads.parked(server, quiet, PARKED_PARTITIONS, connections):
            time.sleep(SETTLE_SECONDS)
            cpu = server.cpu_seconds()
            time.sleep(IDLE_SECONDS)
            idle = (server.cpu_seconds() - cpu) / IDLE_SECONDS
        produce()
        produce()
        alone, beside = [], []
        for is_beside in (False, True, True, False, False, True):
            if not is_beside:
                alone.append(produce())
                continue
            with workloads.parked(server, quiet, PARKED_PARTITIONS, connections):
                beside.append(produce())
        result = sorted(beside, key=lambda run: run.seconds)[len(beside) // 2]
        with_them, without = (sum(run.mb_per_second for run in runs) for runs in (beside, alone))
        result.extra["with_over_without"] = with_them / without
        result.extra["idle_cpu_percent"] = 100 * idle
        return result

    return workload


def _steady(seconds: float) -> Workload:
    """Producing for so long, and at least five times the log's budget; the rate is of what comes behind the first
    budget. steady_over_lower compares it with the store's own PUT ceiling, or the rate until flushing is under
    pressure, whichever is lower; least_over_median is how far the rate falls within a second."""

    def workload(server: Server) -> Result:
        ceiling = server.put_ceiling_mb_per_second(PUT_CEILING_SECONDS)
        rows, cpu = workloads.rdkafka_produce_for(server, _topic(server, 12), 1024, seconds)
        if rows[-1][1] * 1024 < 5 * WAL_BYTES:
            raise RuntimeError(f"{rows[-1][1]} records are fewer than five times the log's budget")
        result = steady_state(rows, 1024, WAL_BYTES)
        lower = min(result.extra["burst_mb"], ceiling or math.inf)
        result.cpu_seconds = cpu * result.records / rows[-1][1]
        result.extra |= {
            "put_ceiling_mb": ceiling or 0.0,
            "steady_over_lower": result.mb_per_second / lower,
            "least_over_median": min(result.mb_by_second) / statistics.median(result.mb_by_second),
        }
        return result

    return workload


def steady_state(rows: list[tuple[float, int]], size: int, wal_bytes: int) -> Result:
    """Of (seconds, records delivered): the run behind the first `wal_bytes`, with its rate in each second.

    `burst_mb` is the rate of the first half of them: flushing is not under pressure until then.
    """
    burst = next(row for row in rows if row[1] * size >= wal_bytes / 2)
    steady = [row for row in rows if row[1] * size >= wal_bytes]
    rates, last = [], steady[0]
    for row in steady[1:-1]:  # the last row is of the end, when the producer no longer sends
        if row[0] - last[0] >= 1:
            rates.append((row[1] - last[1]) * size / (row[0] - last[0]) / 1e6)
            last = row
    records = last[1] - steady[0][1]
    extra = {"burst_mb": burst[1] * size / burst[0] / 1e6}
    return Result(records, records * size, last[0] - steady[0][0], extra=extra, mb_by_second=rates)


WORKLOADS: dict[str, Workload] = {
    "paced": _paced(1000, 20_000),
    "paced_busy": _paced_beside_uploads(1000, 20_000, 5_000_000, 50),
    "paced_scraped": _paced_scraped(1000, 20_000),
    "ingest": _ingest(50),
    "b_rdk": _produce(workloads.rdkafka_produce, 1_500_000, 1024, 12),
    "a_rdk": _produce(workloads.rdkafka_produce, 1_500_000, 1024, 1),
    "c_rdk": _produce(workloads.rdkafka_produce, 12_000_000, 100, 12),
    "b_java": _produce(workloads.java_produce, 1_500_000, 1024, 12),
    "b_rdk_stored": _stored(workloads.rdkafka_produce, 1_500_000, 1024, 12),
    "b_java_stored": _stored(workloads.java_produce, 1_500_000, 1024, 12),
    "a_java": _produce(workloads.java_produce, 1_500_000, 1024, 1),
    "f_rdk": _produce(workloads.rdkafka_produce, 200_000, 100, 1, single=True),
    "f_java": _produce(workloads.java_produce, 200_000, 100, 1, single=True),
    "f1_wire": _single(1, 100_000),
    "f8_wire": _single(8, 400_000),
    "d1k_rdk": _consume(1_500_000, 1024, 12),
    "d_rdk": _consume(12_000_000, 100, 12),
    "d1k_memory": _consume(1_500_000, 1024, 12, again=True),
    "d_memory": _consume(12_000_000, 100, 12, again=True),
    "d1k_java": _consume_java(1_500_000, 1024, 12),
    "park2k": _beside_parked(2000, 1_500_000),
    "park5k": _beside_parked(5000, 1_500_000),
    "steady": _steady(60),  # what flushing sustains
    "steady_link": _steady(60),  # the same where the way to the store is the limit, not the machine
}
# Options of kbroker that a workload needs.
OPTIONS = {
    "steady": ["--wal-bytes", str(WAL_BYTES)],
    "steady_link": ["--wal-bytes", str(WAL_BYTES)],
    "paced_scraped": ["--metrics-partitions", "--metrics-max-series", "200000"],
    "d1k_memory": ["--memory-bytes", "3GiB"],  # where Kafka has the page cache
    "d_memory": ["--memory-bytes", "3GiB"],
}
LINK_MB = {"steady_link": 250}  # MB/s of the way to the store
# Those for which the broker that costs nothing has a log and a store.
STORING = {"steady", "steady_link", "paced_busy"}
STORE_MB = {"paced_busy": 63}  # MB/s that it stores then, 1.25 times what comes in, as kbroker does
# Those that have a ceiling: the client's own rate, or latency, against a broker that costs nothing.
WITH_CEILING = {
    *("paced", *STORING),
    *("a_rdk", "b_rdk", "c_rdk", "f_rdk", "f1_wire", "f8_wire"),
    *("a_java", "b_java", "f_java", "d1k_rdk", "d_rdk", "d1k_memory", "d_memory"),
}
# Options of the broker that costs nothing: answers of 1 MiB from as much memory as is read, which no cache holds; or a
# log with an end, which is synced.
_COLD = ["1048576", "1500000000"]
CEILING_OPTIONS = {
    "paced": ["tail", LOG],
    "paced_busy": [TAIL],
    **dict.fromkeys(("d1k_rdk", "d_rdk", "d1k_memory", "d_memory"), _COLD),
}
# Options beside those that are given.
KBROKERS = {"kbroker": [], "kbroker-192MiB": ["--memory-bytes", "192MiB"]}
BEFORE = "before"  # kbroker of another checkout


@contextlib.contextmanager
def running(
    kind: str, name: str, work: str | None, options: list[str], before: Path | None = None
) -> Iterator[Server]:
    """A server of this kind for the workload `name`, kbroker with an S3 server beside it, in a folder of its own below
    `work` (None: a temporary one) that is removed in the end. `before`: the checkout of the kind BEFORE."""
    folder = Path(tempfile.mkdtemp(prefix="kbroker-bench-", dir=work))
    s3 = None
    is_kbroker = kind in KBROKERS or kind == BEFORE
    if is_kbroker or (kind == CEILING and name in STORING):
        s3 = S3Server(folder / "s3", LINK_MB.get(name))
    if is_kbroker:
        given = *KBROKERS.get(kind, []), *OPTIONS.get(name, []), *options
        checkout = {"checkout": before} if kind == BEFORE and before is not None else {}
        server: Server = Kbroker(folder / "kbroker", s3, *given, **checkout)
    elif kind == CEILING:
        server = FreeBroker(folder / "free", *CEILING_OPTIONS.get(name, []), s3=s3, log_bytes=LOG_BYTES,
                            store_mb=STORE_MB.get(name))  # fmt: skip
    else:
        server = Kafka(folder / "kafka", flush_each=kind == "kafka-flush")
    try:
        if s3:
            s3.start()
        server.start()
        yield server
    finally:
        server.stop()
        if s3:
            s3.stop()
        shutil.rmtree(folder, ignore_errors=True)
