"""Acknowledgement latency and throughput of kbroker.durability=object, against an S3 server on the same machine.

    python -m bench.object_durability [--seconds 8] [--folder]

One librdkafka producer per load, 1 KiB records, idempotent, acks=all: one record after another; then fixed rates; then
as fast as it goes. Latency is from produce() to the delivery report, so the producer's own batching (5 ms) is in it.
The last line of each load has the broker's own figures: from the append to the manifest record, windows, hedges.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.crash.small_broker import free_port
from tests.integration.broker_process import BrokerProcess
from tests.integration.s3_server import BUCKET, s3_server

RECORD_BYTES = 1024
PARTITIONS = 6
RATES = (100, 2_000, 20_000, 0)  # records per second; 0: no limit


def metrics(port: int) -> dict[str, float]:
    """What /metrics says."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.findall(r"^(kbroker_(?:object|flush|hedge)[a-z_]*(?:\{[^}]*\})?) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def percentile(values: list[float], share: float) -> float:
    """Of sorted values."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


class Run:
    """One load: what was sent, and how long each record took."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.producer = Producer({
            "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0,
            "queue.buffering.max.messages": 200_000, "queue.buffering.max.kbytes": 64 << 10,
            "batch.size": 512 << 10,
        })  # fmt: skip
        self.topic = topic
        self.took: list[float] = []
        self.failed = 0
        self.value = os.urandom(RECORD_BYTES)

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
            f" ms; {grown['kbroker_object_flushes_total']:.0f} windows,"
            f" {grown['kbroker_hedged_puts_total']:.0f} hedged PUTs"
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
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, broker(Path(name), arguments.folder) as (process, port):
        client = AdminClient({"bootstrap.servers": process.bootstrap})
        topic = NewTopic("t", PARTITIONS, 1, config={"kbroker.durability": arguments.mode})
        client.create_topics([topic])["t"].result(30)
        before = metrics(port)
        run = Run(process.bootstrap, "t")
        report("one after another", run, run.one_after_another(arguments.seconds), port, before)
        for rate in RATES:
            before = metrics(port)
            run = Run(process.bootstrap, "t")
            took = run.at_rate(rate, arguments.seconds)
            report(f"{rate} a second" if rate else "as fast as it goes", run, took, port, before)


if __name__ == "__main__":
    main()
