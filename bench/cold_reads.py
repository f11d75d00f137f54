"""Reads of a topic that only lives in the bucket: how fast, how many requests, and what the tail pays for them.

    python -m bench.cold_reads [--parts rate,many,tail] [--mib N] [--record-bytes N] [--rounds N] [--work FOLDER]

The bucket is on versitygw on this machine. One partition is filled by librdkafka's own performance tool; before every
run a broker with an empty data directory adopts the cluster, so that nothing is in its log or its cache.

- rate: one consumer (librdkafka's performance tool) of the whole partition, and in alternation boto3 with parallel
  ranged GETs of the same objects (`--get-threads` at `--get-mib` each, bodies thrown away). Beside it a client that
  fetches and only looks at batch headers: what the broker itself gives; librdkafka through confluent-kafka; and the
  ceiling of the first consumer on this machine: the same tool on data that the broker has in memory.
- many: the GETs that one consumer of the partition costs, and ten that start together; ten of which the fastest is
  twice as fast as the slowest; and ten of which half start when the others are further ahead than the cache is large:
  these must read the bucket again.
- tail: end-to-end latency of 1,000 records a second through another partition (bin/paced_latency: one process that
  produces and consumes; for two seconds before, to warm it up), alone, beside a cold client that only fetches held at
  half the rate that the consumer of `rate` reached alone, and beside one at full rate; and a plain TCP echo at the
  same pace beside the same loads.

Everything shares the machine: with two cores, the S3 server, the broker and the consumers share those.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from bench.e2e.servers import TOOLS, Kbroker, S3Server
from bench.e2e.workloads import rdkafka_consume, rdkafka_produce

MIB = 1 << 20
TOPIC, TAIL_TOPIC, HOT_TOPIC = "cold", "tail", "hot"
HOT_MIB = 320  # fits the arena
GET_BYTES = 'kbroker_store_received_bytes_total{operation="get"}'
ECHO_BYTES = 100
PACE = 1000  # records and echoes a second


# -- programs that run as processes of their own -----------------------------------------------------------------


def consume(bootstrap: str, count: int, rate_bytes: float, seconds: float, delay_seconds: float) -> None:
    """Reads `count` records from the beginning, or again and again for some seconds, at most so many bytes a second.

    Prints a JSON line: bytes, seconds.
    """
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 3,
            "group.id": f"cold-{os.getpid()}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 1,
            "queued.max.messages.kbytes": 65_536 if not rate_bytes else 16_384,
        }
    )
    place = TopicPartition(TOPIC, 0, 0)
    consumer.list_topics(TOPIC, 30)
    _begin()
    time.sleep(delay_seconds)
    started = time.monotonic()
    consumer.assign([place])
    seen = total = 0
    while (time.monotonic() - started < seconds) if seconds else (seen < count):
        messages = consumer.consume(2000 if seconds else min(2000, count - seen), 5.0)
        if not messages:
            raise SystemExit(f"no records for 5 seconds after {seen}")
        for message in messages:
            if message.error():
                raise SystemExit(str(message.error()))
        seen += len(messages)
        total += len(messages) * len(messages[0].value())
        if seconds and messages[-1].offset() + 1 >= count:
            consumer.seek(place)
        if rate_bytes and (ahead := total / rate_bytes - (time.monotonic() - started)) > 0:
            time.sleep(ahead)
    print(json.dumps({"bytes": total, "seconds": time.monotonic() - started}))
    consumer.close()


def _begin() -> None:
    """Says that all is prepared, and waits for the word: what starts together does so at one moment."""
    print("prepared", flush=True)
    sys.stdin.readline()


def fetch(bootstrap: str, count: int, rate_bytes: float, seconds: float) -> None:
    """Fetches the whole partition over one socket and only looks at batch headers; rate and seconds as of `consume`.

    Prints a JSON line: bytes, seconds.
    """
    host, port = bootstrap.split(":")
    connection = socket.create_connection((host, int(port)))
    name = TOPIC.encode()
    buffer = memoryview(bytearray(64 * MIB))
    offset = total = 0
    _begin()
    started = time.monotonic()
    while (time.monotonic() - started < seconds) if seconds else (offset < count):
        body = struct.pack(">hhih", 1, 4, 7, -1) + struct.pack(">iiiib", -1, 500, 1, MIB, 0)
        body += struct.pack(f">ih{len(name)}sii", 1, len(name), name, 1, 0) + struct.pack(">qi", offset, MIB)
        connection.sendall(struct.pack(">i", len(body)) + body)
        _receive(connection, buffer[:4])
        answer = buffer[: struct.unpack(">i", buffer[:4])[0]]
        _receive(connection, answer)
        position = 4 + 4 + 4 + 2 + len(name) + 4
        _, error, _, _, aborted, size = struct.unpack_from(">ihqqii", answer, position)
        if error or aborted > 0:
            raise SystemExit(f"fetch at {offset}: error {error}")
        position += 30
        total += max(size, 0)
        while position < len(answer):
            base, length = struct.unpack_from(">qi", answer, position)
            offset = base + struct.unpack_from(">i", answer, position + 23)[0] + 1
            position += 12 + length
        if seconds and offset >= count:
            offset = 0
        if rate_bytes and (ahead := total / rate_bytes - (time.monotonic() - started)) > 0:
            time.sleep(ahead)
    print(json.dumps({"bytes": total, "seconds": time.monotonic() - started}))


def _receive(connection: socket.socket, out: memoryview) -> None:
    filled = 0
    while filled < len(out):
        count = connection.recv_into(out[filled:])
        if not count:
            raise SystemExit("the broker closed the connection")
        filled += count


def boto3_gets(endpoint: str, threads: int, get_bytes: int) -> None:
    """All data objects of the partition by parallel ranged GETs. Prints bytes and seconds."""
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "s3", endpoint_url=endpoint, config=Config(max_pool_connections=threads, s3={"addressing_style": "path"})
    )
    ranges = []
    for page in client.get_paginator("list_objects_v2").paginate(Bucket="bench"):
        for item in page.get("Contents", ()):
            if f"/{TOPIC}-" in item["Key"]:
                size = item["Size"]
                ranges += [(item["Key"], start, min(size, start + get_bytes)) for start in range(0, size, get_bytes)]

    def get(wanted: tuple[str, int, int]) -> int:
        key, start, end = wanted
        return len(client.get_object(Bucket="bench", Key=key, Range=f"bytes={start}-{end - 1}")["Body"].read())

    _begin()
    started = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        total = sum(pool.map(get, ranges))
    print(json.dumps({"bytes": total, "seconds": time.monotonic() - started, "gets": len(ranges)}))


def echo_server() -> None:
    """Sends back what one client sends, until it closes. Prints its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        connection, _ = listening.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := connection.recv(65536):
            connection.sendall(data)


def echo_client(port: int, count: int) -> None:
    """Sends `count` messages, one a millisecond, and prints p50 and p99 of the round trips in milliseconds."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sent = [0.0] * count
    took: list[float] = []

    def receive() -> None:
        buffer = memoryview(bytearray(ECHO_BYTES))
        for index in range(count):
            _receive(connection, buffer)
            took.append(time.monotonic() - sent[index])

    receiver = threading.Thread(target=receive)
    receiver.start()
    start = time.monotonic() + 0.1
    for index in range(count):
        time.sleep(max(0.0, start + index / PACE - time.monotonic()))
        sent[index] = time.monotonic()
        connection.sendall(bytes(ECHO_BYTES))
    receiver.join()
    took = sorted(took[count // 10 :])
    print(json.dumps({"p50_ms": took[len(took) // 2] * 1e3, "p99_ms": took[len(took) * 99 // 100] * 1e3}))


PROGRAMS = {
    "consume": lambda a: consume(a[0], int(a[1]), float(a[2]), float(a[3]), float(a[4])),
    "fetch": lambda a: fetch(a[0], int(a[1]), float(a[2]), float(a[3])),
    "boto3": lambda a: boto3_gets(a[0], int(a[1]), int(a[2])),
    "echo-server": lambda a: echo_server(),
    "echo-client": lambda a: echo_client(int(a[0]), int(a[1])),
}


def _spawn(program: str, *arguments: object, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.cold_reads", "--program", program, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, env={**os.environ, **(env or {})}, text=True)


def _start(*processes: subprocess.Popen[str]) -> None:
    """Waits until all are prepared, and lets them begin."""
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def _result(process: subprocess.Popen[str]) -> dict[str, float]:
    output = process.communicate(timeout=300)[0]
    if process.returncode:
        raise RuntimeError(f"{process.args[4]} failed")
    return json.loads(output.splitlines()[-1])


def _run(program: str, *arguments: object, env: dict[str, str] | None = None) -> dict[str, float]:
    process = _spawn(program, *arguments, env=env)
    _start(process)
    return _result(process)


def _rate(result: dict[str, float]) -> float:
    return result["bytes"] / result["seconds"] / 1e6


# -- the bucket --------------------------------------------------------------------------------------------------


class Bench:
    """A bucket with one filled partition, and brokers that have nothing of it."""

    def __init__(self, work: Path, options: argparse.Namespace) -> None:
        self.work = work
        self.options = options
        self.count = options.mib * MIB // options.record_bytes
        self.s3 = S3Server(work / "s3").start()
        self._brokers = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.s3.port}"

    def fill(self) -> None:
        with self.broker() as broker:
            for topic in (TOPIC, TAIL_TOPIC):
                broker.create_topic(topic, 1)
            rdkafka_produce(broker, TOPIC, self.count, self.options.record_bytes)

    @contextlib.contextmanager
    def broker(self, *options: str) -> Iterator[Kbroker]:
        self._brokers += 1
        folder = self.work / f"broker-{self._brokers}"
        broker = Kbroker(folder, self.s3, *self.options.broker_options.split(), *options).start()
        try:
            settle(broker)
            yield broker
        finally:
            broker.stop()
            shutil.rmtree(folder, ignore_errors=True)
            os.sync()  # the next one's first writes do not wait for what was deleted here

    def boto3(self) -> dict[str, float]:
        threads, get_bytes = self.options.get_threads, self.options.get_mib * MIB
        return _run("boto3", self.endpoint, threads, get_bytes, env=self.s3.environ)


def settle(broker: Kbroker) -> None:
    """Waits until the broker is ready and has prepared its log: that takes little CPU, but writes 192 MiB and syncs."""
    metric(broker, "kbroker_connections")  # answered when it is ready
    used, before = _effort(broker), (-1.0, -1)
    while used[0] - before[0] > 0.1 or used[1] - before[1] > MIB:
        time.sleep(0.5)
        used, before = _effort(broker), used


def _effort(broker: Kbroker) -> tuple[float, int]:
    """Seconds of CPU and bytes written, so far."""
    assert broker.process is not None
    lines = Path(f"/proc/{broker.process.pid}/io").read_text().splitlines()
    return broker.cpu_seconds(), next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def metric(broker: Kbroker, name: str) -> float:
    """One sample of the broker's metrics; 0 for one that it does not have."""
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.http_port}/metrics", timeout=60) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
    return 0.0


def gets(broker: Kbroker) -> float:
    return metric(broker, 'kbroker_store_requests_total{operation="get",result="ok"}')


def ceiling(bench: Bench) -> float:
    """MB/s of the same consumer on data that the broker has in memory."""
    size = bench.options.record_bytes
    count = HOT_MIB * MIB // size
    with bench.broker("--flush-bytes", f"{4 * HOT_MIB}MiB", "--flush-seconds", "600") as broker:
        broker.create_topic(HOT_TOPIC, 1)
        rdkafka_produce(broker, HOT_TOPIC, count, size)
        return rdkafka_consume(broker, HOT_TOPIC, 1, count, size).mb_per_second


def measure_rate(bench: Bench) -> float:
    """MB/s of one consumer."""
    rates: dict[str, list[float]] = {"boto3": [], "consumer": [], "fetches": [], "confluent-kafka": [], "in memory": []}
    for _ in range(bench.options.rounds):
        rates["boto3"].append(_rate(bench.boto3()))
        with bench.broker() as broker:
            done = rdkafka_consume(broker, TOPIC, 1, bench.count, bench.options.record_bytes)
            rates["consumer"].append(done.mb_per_second)
            cpu, peak = done.cpu_seconds, broker.peak_rss_mib()
        with bench.broker() as broker:
            rates["fetches"].append(_rate(_run("fetch", broker.bootstrap, bench.count, 0, 0)))
        with bench.broker() as broker:
            rates["confluent-kafka"].append(_rate(_run("consume", broker.bootstrap, bench.count, 0, 0, 0)))
        rates["in memory"].append(ceiling(bench))
        print(
            "  round: " + ", ".join(f"{name} {values[-1]:.0f} MB/s" for name, values in rates.items())
            + f"; broker {cpu:.1f} s of CPU, {peak:.0f} MiB", flush=True,
        )  # fmt: skip
    medians = {name: statistics.median(values) for name, values in rates.items()}
    parts = [f"{name} {rate:.0f} MB/s ({rate / medians['boto3']:.2f})" for name, rate in medians.items()]
    print("rate: " + ", ".join(parts), flush=True)
    return medians["consumer"]


class Crowd(NamedTuple):
    """Consumers that read the same: how many MB/s each takes (0: all it gets), and seconds until it starts."""

    name: str
    rates: Sequence[float]
    delays: Sequence[float]


CROWDS = (
    Crowd("one", [0], [0]),
    Crowd("ten together", [0] * 10, [0] * 10),
    Crowd("ten, 15 to 30 MB/s", [15 + 15 * index / 9 for index in range(10)], [0] * 10),
    Crowd("ten, half of them late", [20] * 10, [0, 10] * 5),
)


def measure_many(bench: Bench) -> None:
    alone = 0.0
    for name, rates, delays in CROWDS:
        with bench.broker() as broker:
            before, bytes_before = gets(broker), metric(broker, GET_BYTES)
            running = [
                _spawn("consume", broker.bootstrap, bench.count, rate * 1e6, 0, delay)
                for rate, delay in zip(rates, delays, strict=True)
            ]
            _start(*running)
            results = [_result(process) for process in running]
            counted = gets(broker) - before
            alone = alone or counted
            rate = sum(result["bytes"] for result in results) / max(result["seconds"] for result in results) / 1e6
            read = (metric(broker, GET_BYTES) - bytes_before) / MIB
            print(f"many, {name}: {counted:.0f} GETs ({counted / alone:.2f}) of {read:.0f} MiB, {rate:.0f} MB/s, "
                  f"{broker.peak_rss_mib():.0f} MiB", flush=True)  # fmt: skip


def paced_latency(broker: Kbroker, count: int) -> tuple[float, ...]:
    """End-to-end p50, p99 and p99.9 in milliseconds."""
    command = [str(TOOLS / "bin/paced_latency"), broker.bootstrap, TAIL_TOPIC, str(PACE), str(count), "100"]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=300, check=True, text=True)
    return tuple(float(value) for value in done.stdout.split()[:3])


def measure_tail(bench: Bench, rate: float) -> None:
    seconds = bench.options.tail_seconds
    count = int(PACE * seconds)
    for name, limit in (("alone", None), ("half rate", rate * 1e6 / 2), ("full rate", 0.0)):
        with bench.broker() as broker:
            paced_latency(broker, 2 * PACE)
            loads = []
            if limit is not None:
                loads.append(_spawn("fetch", broker.bootstrap, bench.count, limit, 2 * seconds + 6))
            _start(*loads)
            time.sleep(1)
            p50, p99, p999 = paced_latency(broker, count)
            server = _spawn("echo-server")
            assert server.stdout is not None
            echo = _result(_spawn("echo-client", server.stdout.readline(), count))
            server.wait(10)
            cold = sum(_rate(_result(load)) for load in loads)
            print(f"tail {name:9}: p50 {p50:.2f} p99 {p99:.2f} p99.9 {p999:.2f} ms; "
                  f"echo p50 {echo['p50_ms']:.2f} p99 {echo['p99_ms']:.2f} ms; cold {cold:.0f} MB/s",
                  flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--parts", default="rate,many,tail")
    parser.add_argument("--mib", type=int, default=1024, help="in the partition")
    parser.add_argument("--record-bytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--get-threads", type=int, default=4)
    parser.add_argument("--get-mib", type=int, default=8)
    parser.add_argument("--tail-seconds", type=float, default=8)
    parser.add_argument("--cold-rate", type=float, default=0, help="MB/s reached alone, when it is not measured")
    parser.add_argument("--broker-options", default="", help="more options for kbroker serve")
    parser.add_argument("--work", default=None, help="folder for data (default: a temporary one)")
    parser.add_argument("--program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.program:
        PROGRAMS[options.program[0]](options.program[1:])
        return
    parts = options.parts.split(",")
    work = Path(tempfile.mkdtemp(prefix="kbroker-cold-", dir=options.work))
    bench = Bench(work, options)
    try:
        bench.fill()
        rate = measure_rate(bench) if "rate" in parts else options.cold_rate
        if "many" in parts:
            measure_many(bench)
        if "tail" in parts:
            measure_tail(bench, rate)
    finally:
        bench.s3.stop()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
