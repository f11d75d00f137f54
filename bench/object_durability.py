"""Acknowledgement latency and throughput of kbroker.durability=object, against an S3 server on the same machine.

    python -m bench.object_durability [--seconds 8] [--folder] [--producers 1,4,8] [--batch-kib 1024] [--only several]

One librdkafka producer per load, 1 KiB records, idempotent, acks=all: one record after another; then fixed rates; then
as fast as it goes. Latency is from produce() to the delivery report, so the producer's own batching (5 ms) is in it.
The last line of each load has the broker's own figures: from the append to the manifest record, windows, hedges.

Then several producers at once, each a process with five requests in flight of up to --batch-kib, 8 KiB records that
come as fast as they go; latency there is mostly the wait in the producer's own queue of 10 batches, so the broker's
figure beside it is the one to look at. PUTs are counted per GiB that was acknowledged.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import re
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.limits import GIB, MIB
from tests.crash.small_broker import free_port
from tests.integration.broker_process import BrokerProcess
from tests.integration.s3_server import BUCKET, s3_server

RECORD_BYTES = 1024
PARTITIONS = 6
MANY_RECORD_BYTES = 8 * 1024
QUEUED_BATCHES = 10  # five in flight, and as many behind them
RATES = (100, 2_000, 20_000, 0)  # records per second; 0: no limit


def metrics(port: int) -> dict[str, float]:
    """What /metrics says."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    names = r"^(kbroker_(?:object|flush|store_hedge|store_requests)[a-z_]*(?:\{[^}]*\})?) (\S+)$"
    found = re.findall(names, text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def percentile(values: list[float], share: float) -> float:
    """Of sorted values."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


class Run:
    """One load: what was sent, and how long each record took."""

    def __init__(self, bootstrap: str, topic: str, record_bytes: int = RECORD_BYTES, **options: int) -> None:
        settings = {"queue.buffering.max.kbytes": 64 << 10, "batch.size": 512 << 10, **options}
        self.producer = Producer({
            "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0,
            "queue.buffering.max.messages": 200_000, **settings,
        })  # fmt: skip
        self.topic = topic
        self.took: list[float] = []
        self.failed = 0
        self.value = os.urandom(record_bytes)

    def send(self) -> None:
        """One record; waits where the producer's queue is full."""
        begun = time.perf_counter()

        def delivered(error: object, message: object) -> None:
            if error is None:
                self.took.append(time.perf_counter() - begun)
            else:
                self.failed += 1

        while True:
            try:
                self.producer.produce(self.topic, self.value, on_delivery=delivered)
                return
            except BufferError:
                self.producer.poll(0.05)

    def one_after_another(self, seconds: float) -> float:
        """The next when the one before is acknowledged. Returns the seconds it took."""
        begun = time.perf_counter()
        while time.perf_counter() - begun < seconds:
            self.send()
            self.producer.flush()
        return time.perf_counter() - begun

    def at_rate(self, rate: int, seconds: float) -> float:
        """At a fixed rate, or as fast as it goes."""
        begun, sent = time.perf_counter(), 0
        while (now := time.perf_counter() - begun) < seconds:
            due = int(now * rate) if rate else sent + 500
            while sent < due:
                self.send()
                sent += 1
            self.producer.poll(0.002 if rate else 0)
        self.producer.flush()
        return time.perf_counter() - begun


def produce_many(bootstrap: str, seconds: float, batch_kib: int) -> tuple[list[float], int]:
    """One of several producers, in a process of its own: how long each record took, and how many failed."""
    run = Run(
        bootstrap, "t", MANY_RECORD_BYTES,
        **{
            "batch.size": batch_kib << 10, "message.max.bytes": batch_kib << 10,
            "queue.buffering.max.kbytes": QUEUED_BATCHES * batch_kib,
        },
    )  # fmt: skip
    run.at_rate(0, seconds)
    return run.took, run.failed


def several(process: BrokerProcess, port: int, producers: int, seconds: float, batch_kib: int) -> None:
    """So many producers at once; prints what came of it."""
    with multiprocessing.get_context("spawn").Pool(producers) as pool:
        pool.map(abs, range(producers))  # they are there
        before, cpu = metrics(port), _cpu_seconds(process.pid)
        begun = time.perf_counter()
        found = pool.starmap(produce_many, [(process.bootstrap, seconds, batch_kib)] * producers, chunksize=1)
        took = time.perf_counter() - begun
    cpu = _cpu_seconds(process.pid) - cpu
    grown = {name: value - before.get(name, 0.0) for name, value in metrics(port).items()}
    delays = sorted(delay for delays, _ in found for delay in delays)
    size = len(delays) * MANY_RECORD_BYTES
    puts = sum(grown[name] for name in grown if name.startswith("kbroker_store_requests") and '"put"' in name)
    acks = max(grown.get("kbroker_object_ack_seconds_count", 0.0), 1)
    own_ms = grown.get("kbroker_object_ack_seconds_sum", 0.0) / acks * 1e3
    windows = grown.get("kbroker_flushes_awaited_total", 0.0)
    failed = sum(count for _, count in found)
    print(
        f"{producers:3} producers of {batch_kib:5} KiB: {size / took / 1e6:6.1f} MB/s  p50 "
        f"{percentile(delays, 0.5) * 1e3:6.0f} ms  p99 {percentile(delays, 0.99) * 1e3:6.0f} ms  broker's own mean "
        f"{own_ms:5.0f} ms  {puts / (size / GIB):5.0f} PUTs/GiB  {windows / took:4.1f} windows/s of "
        f"{size / MIB / max(windows, 1):5.1f} MiB  {cpu / (size / 1e9):4.1f} broker CPU s/GB"
        + (f"  {failed} failed" if failed else ""),
        flush=True,
    )


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def report(name: str, run: Run, seconds: float, port: int, before: dict[str, float]) -> None:
    """Prints one load."""
    took = sorted(run.took)
    records = len(took)
    print(
        f"{name:>20}: {records / seconds:9.0f} records/s {records * RECORD_BYTES / seconds / 1e6:7.1f} MB/s   "
        f"p50 {percentile(took, 0.5) * 1e3:7.1f} ms  p99 {percentile(took, 0.99) * 1e3:7.1f} ms  "
        f"max {took[-1] * 1e3 if took else 0:7.1f} ms" + (f"  {run.failed} failed" if run.failed else "")
    )
    now = metrics(port)
    if "kbroker_object_ack_seconds_count" in now:
        grown = {key: now[key] - before.get(key, 0.0) for key in now}
        count = grown["kbroker_object_ack_seconds_count"]
        print(
            f"{'':>22}{count:.0f} requests, mean {grown['kbroker_object_ack_seconds_sum'] / max(count, 1) * 1e3:.1f}"
            f" ms; {grown['kbroker_flushes_awaited_total']:.0f} windows,"
            f" {grown['kbroker_store_hedged_puts_total']:.0f} hedged PUTs"
        )


@contextlib.contextmanager
def broker(folder: Path, on_folder: bool) -> Iterator[tuple[BrokerProcess, int]]:
    """A broker with its store."""
    with contextlib.ExitStack() as stack:
        options: tuple[str, ...] = ("--object-store", f"file:{folder / 'objects'}")
        environ: dict[str, str] = {}
        if not on_folder:
            server = stack.enter_context(s3_server(folder))
            options = ("--object-store", f"s3://{BUCKET}/bench", "--s3-endpoint", server.endpoint)
            environ = server.environment()
        port = free_port()
        process = BrokerProcess(folder / "data", *options, "--http-listen", f"127.0.0.1:{port}", environ=environ)
        stack.callback(process.kill)
        yield process.start(), port


def main() -> None:
    """Runs all loads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load")
    parser.add_argument("--folder", action="store_true", help="objects in a folder instead of S3")
    parser.add_argument("--mode", default="object", choices=("object", "wal"))
    parser.add_argument("--producers", default="1,4,8", help="how many at once, one load after the other")
    parser.add_argument("--batch-kib", default="1024", help="of their requests; several after commas")
    parser.add_argument("--only", choices=("one", "several"), help="one producer, or several")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, broker(Path(name), arguments.folder) as (process, port):
        client = AdminClient({"bootstrap.servers": process.bootstrap})
        batches = [int(size) for size in arguments.batch_kib.split(",")]
        config = {"kbroker.durability": arguments.mode, "max.message.bytes": str(max(batches) * 2048)}
        client.create_topics([NewTopic("t", PARTITIONS, 1, config=config)])["t"].result(30)
        if arguments.only != "several":
            one_producer(process.bootstrap, arguments.seconds, port)
        if arguments.only != "one":
            for batch_kib in batches:
                for producers in map(int, arguments.producers.split(",")):
                    several(process, port, producers, arguments.seconds, batch_kib)


def one_producer(bootstrap: str, seconds: float, port: int) -> None:
    """All loads of a single one."""
    before = metrics(port)
    run = Run(bootstrap, "t")
    report("one after another", run, run.one_after_another(seconds), port, before)
    for rate in RATES:
        before = metrics(port)
        run = Run(bootstrap, "t")
        took = run.at_rate(rate, seconds)
        report(f"{rate} a second" if rate else "as fast as it goes", run, took, port, before)


if __name__ == "__main__":
    main()
