"""Clients against a running broker, each as one measured run: tools of librdkafka and Kafka, programs of bench/e2e."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from confluent_kafka import Consumer, TopicPartition

from bench.e2e.servers import TOOLS, Server

JAVA = ["java", "-Xmx512m", "-cp", f"{TOOLS}/kafka/*"]
RDKAFKA = str(TOOLS / "bin/rdkafka_performance")
WIRE_LOAD = str(TOOLS / "bin/wire_load")
QUANTILES = [*(step * 0.025 for step in range(40)), 0.99, 0.995, 0.999, 0.9999, 1.0]  # of paced_latency.c


@dataclass
class Result:
    """One run: what moved, how long it took, what the broker spent."""

    records: float = 0
    bytes: float = 0
    seconds: float = 0
    cpu_seconds: float = 0
    extra: dict[str, float] = field(default_factory=dict)
    distribution_ms: list[float] = field(default_factory=list)  # latencies at QUANTILES
    store_requests_per_gb: float = 0
    mb_by_second: list[float] = field(default_factory=list)  # of a run that is to be even

    @property
    def mb_per_second(self) -> float:
        return self.bytes / self.seconds / 1e6 if self.seconds else 0

    @property
    def records_per_second(self) -> float:
        return self.records / self.seconds if self.seconds else 0

    @property
    def cpu_seconds_per_gb(self) -> float:
        return self.cpu_seconds / (self.bytes / 1e9) if self.bytes else 0


def _run(server: Server, command: list[str], codes: tuple[int, ...] = (0,)) -> tuple[str, float, float]:
    cpu = server.cpu_seconds()
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    seconds = time.monotonic() - start
    if done.returncode not in codes:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout + done.stderr, seconds, server.cpu_seconds() - cpu


def rdkafka_produce(server: Server, topic: str, count: int, size: int, single: bool = False) -> Result:
    """librdkafka, acks=all; `single`: one record per request, five in flight."""
    command = [RDKAFKA, "-P", "-b", server.bootstrap, "-t", topic, "-s", str(size), "-c", str(count), "-a", "-1",
               "-q", "-i", "1000", "-X", "queue.buffering.max.messages=1000000",
               "-X", "queue.buffering.max.kbytes=131072"]  # fmt: skip
    if single:
        command += ["-X", "linger.ms=0", "-X", "batch.num.messages=1",
                    "-X", "max.in.flight.requests.per.connection=5"]  # fmt: skip
    else:
        command += ["-X", "linger.ms=5", "-X", "batch.size=262144"]
    output, _, cpu = _run(server, command, (0, 1))  # 1 also when it counted its own records wrongly
    found = re.findall(r"(\d+) messages produced.*?(\d+) delivered.*?(\d+) failed.*? in (\d+)ms", output, re.DOTALL)
    if not found or int(found[-1][1]) != count:
        raise RuntimeError(f"not all delivered: {output[-1500:]}")
    return Result(count, count * size, int(found[-1][3]) / 1000, cpu)


def rdkafka_produce_for(server: Server, topic: str, size: int, seconds: float) -> tuple[list[tuple[float, int]], float]:
    """librdkafka, acks=all, for so long.

    Returns (seconds since the start, records delivered so far) twice a second, and the broker's CPU seconds.
    """
    command = [RDKAFKA, "-P", "-b", server.bootstrap, "-t", topic, "-s", str(size), "-a", "-1", "-q", "-u", "-i", "500",
               "-X", "queue.buffering.max.messages=1000000", "-X", "queue.buffering.max.kbytes=131072",
               "-X", "linger.ms=5", "-X", "batch.size=262144"]  # fmt: skip
    cpu = server.cpu_seconds()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    cells = [[cell.strip() for cell in line.split("|")[1:]] for line in output.splitlines() if line.startswith("|")]
    rows = [dict(zip(cells[0], row, strict=True)) for row in cells[1:] if row != cells[0]]
    if not rows or int(rows[-1]["elapsed"]) < 0.9 * 1000 * seconds or int(rows[-1]["dr_err"]):
        raise RuntimeError(f"producing for {seconds} s failed: {output[-1500:]}")
    return [(int(row["elapsed"]) / 1000, int(row["dr"])) for row in rows], server.cpu_seconds() - cpu


def rdkafka_consume(server: Server, topic: str, partitions: int, count: int, size: int) -> Result:
    """librdkafka, all partitions from the beginning."""
    command = [RDKAFKA, "-C", "-b", server.bootstrap, "-t", topic]
    for partition in range(partitions):
        command += ["-p", str(partition)]
    command += ["-o", "beginning", "-c", str(count), "-q", "-i", "1000", "-X", "fetch.queue.backoff.ms=1",
                "-X", "queued.max.messages.kbytes=131072"]  # fmt: skip
    output, _, cpu = _run(server, command)
    found = re.findall(r"(\d+) messages \((\d+) bytes\) consumed in (\d+)ms", output)
    if not found:
        raise RuntimeError(f"no result: {output[-1500:]}")
    records, total, milliseconds = map(int, found[-1])
    return Result(records, total, milliseconds / 1000, cpu)


def java_produce(server: Server, topic: str, count: int, size: int, single: bool = False) -> Result:
    """Kafka's ProducerPerformance, acks=all, with the client's own latencies."""
    properties = (
        ["batch.size=0", "linger.ms=0", "max.in.flight.requests.per.connection=5"]
        if single
        else ["batch.size=262144", "linger.ms=5"]
    )
    command = [*JAVA, "org.apache.kafka.tools.ProducerPerformance", "--bootstrap-server", server.bootstrap,
               "--topic", topic, "--num-records", str(count), "--record-size", str(size), "--throughput", "-1",
               "--reporting-interval", "1000", "--warmup-records", str(count // 8),
               "--command-property", "acks=all", *properties]  # fmt: skip
    output, _, cpu = _run(server, command)
    lines = [line for line in output.splitlines() if "records sent" in line and "99th" in line]
    last = lines[-1]
    rate = float(re.search(r"([\d.]+) records/sec", last)[1])
    extra = {f"p{name}_ms": float(value) for value, name in re.findall(r"([\d.]+) ms (50|99|99\.9)th", last)}
    return Result(count, count * size, count / rate, cpu, extra)


def java_consume(server: Server, topic: str, count: int, size: int) -> Result:
    """Kafka's ConsumerPerformance; the fetch-only rate."""
    command = [*JAVA, "org.apache.kafka.tools.ConsumerPerformance", "--bootstrap-server", server.bootstrap,
               "--topic", topic, "--num-records", str(count), "--hide-header", "--timeout", "20000",
               "--group", f"g{time.monotonic_ns()}"]  # fmt: skip
    output, _, cpu = _run(server, command)
    row = [cell.strip() for cell in output.strip().splitlines()[-1].split(",")]
    fetch_ms = float(row[7])
    return Result(float(row[4]), float(row[4]) * size, fetch_ms / 1000, cpu)


def paced_latency(server: Server, topic: str, rate: int, count: int) -> Result:
    """End-to-end latency of 100-byte records at a fixed rate."""
    command = [str(TOOLS / "bin/paced_latency"), server.bootstrap, topic, str(rate), str(count), "100"]
    output, seconds, cpu = _run(server, command)
    summary, distribution = output.strip().splitlines()[-2:]
    p50, p99, p999, worst, received = (float(value) for value in summary.split())
    extra = {"p50_ms": p50, "p99_ms": p99, "p99.9_ms": p999, "max_ms": worst}
    return Result(received, received * 100, seconds, cpu, extra, [float(value) for value in distribution.split()])


def latency_floor(server: Server, rate: int, count: int) -> dict[str, float]:
    """The part of `paced_latency` that is the machine's, with a file where the server has its own (latency_floor.c)."""
    command = [str(TOOLS / "bin/latency_floor"), str(server.work / "floor"), str(rate), str(count), "100"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    return dict(zip(("floor_p50_ms", "floor_p99_ms", "floor_p99.9_ms"), map(float, done.stdout.split()), strict=True))


def single_records(server: Server, topic: str, partitions: int, connections: int, count: int) -> Result:
    """One record of 100 bytes per request, five in flight on each connection."""
    command = [WIRE_LOAD, "produce", str(server.port), topic, str(partitions), str(connections), "5", str(count), "100"]
    output, _, cpu = _run(server, command)
    rate, p50, p99, p999, _ = (float(value) for value in output.split())
    return Result(count, count * 100, count / rate, cpu, {"p50_ms": p50, "p99_ms": p99, "p99.9_ms": p999})


@contextlib.contextmanager
def parked(server: Server, topic: str, partitions: int, connections: int, wait_ms: int = 30_000) -> Iterator[None]:
    """While it is open, so many connections wait in a long poll over five partitions each."""
    command = [WIRE_LOAD, "park", str(server.port), topic, str(partitions), str(connections), "5", str(wait_ms)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout.readline().strip() != "parked":
            raise RuntimeError(f"{connections} connections could not be parked")
        yield
        process.stdin.close()
        process.stdout.read()
        if process.wait():
            raise RuntimeError("a parked connection was lost")


def records_in(server: Server, topic: str, partitions: int) -> int:
    """How many records the topic has had."""
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "none"})
    try:
        ends = [consumer.get_watermark_offsets(TopicPartition(topic, n), 30)[1] for n in range(partitions)]
    finally:
        consumer.close()
    return sum(ends)


@contextlib.contextmanager
def steady_ingest(server: Server, topic: str, mb_per_second: int) -> Iterator[None]:
    """While it is open, 1 KiB records come in at this rate, and so, later, their uploads go out."""
    command = [str(TOOLS / "bin/paced_load"), server.bootstrap, topic, "1024", str(mb_per_second * 1_000_000)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
            if process.poll() is not None:
                raise RuntimeError("the producer beside the measurement ended")
        finally:
            process.kill()


def commit_starts(server: Server, topics: Sequence[str], partitions: int, groups: int) -> None:
    """Each group commits offset 0 for its share of all partitions."""
    places = [TopicPartition(topic, index, 0) for topic in topics for index in range(partitions)]
    share = len(places) // groups
    for number in range(groups):
        consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": f"group-{number}"})
        consumer.commit(offsets=places[number * share : (number + 1) * share], asynchronous=False)
        consumer.close()


@contextlib.contextmanager
def scraped(url: str) -> Iterator[list[int]]:
    """While it is open, the metrics are scraped once a second: the bytes of each scrape."""
    sizes: list[int] = []
    end = threading.Event()

    def scrape() -> None:
        due = time.monotonic()
        while not end.wait(max(0.0, due - time.monotonic())):
            due += 1.0
            with urllib.request.urlopen(url, timeout=30) as answer:
                sizes.append(len(answer.read()))

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield sizes
    finally:
        end.set()
        thread.join()
