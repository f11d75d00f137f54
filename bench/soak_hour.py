"""A mixed load for an hour, and what the broker's memory does meanwhile: a table and a plot of RSS and every pool.

    python -m bench.soak_hour [--seconds 3600] [--memory-bytes 192MiB] [--interval 10] [--csv PATH]
    python -m bench.soak_hour --plot [--csv PATH]        needs matplotlib

The load: a stream that is read by one lasting group, in every codec; groups that come, read, commit and are deleted;
transactions, half of them aborted, by producers that come and go; idempotent producers; topics, half of them compacted,
that are created, written and deleted; updates of a compacted topic; connections that ask for one thing and close.
"""

from __future__ import annotations

import argparse
import csv
import re
import socket
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.protocol.apis.cluster.k03_metadata import MetadataRequest
from kbroker.protocol.codec import encode_request_frame
from tests.integration.broker_process import BrokerProcess

ROOT = Path(__file__).resolve().parents[1]
CSV = ROOT / "bench/soak_hour.csv"
PLOT = ROOT / "docs/plots/soak-hour.svg"
MIB = 1 << 20
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
STREAM, STATE = "stream", "state"
POOL = re.compile(r'^kbroker_(memory|heap)_bytes\{(?:pool|state)="([a-z_]+)"\} (\S+)$', re.MULTILINE)
STATUS = re.compile(r"^(VmRSS|RssAnon|RssFile|Threads):\s+(\d+)", re.MULTILINE)
SHOWN = {
    "VmRSS": "RSS", "RssAnon": "of it anonymous", "memory_arena": "arena, when it is full",
    "heap_used": "malloc: in use", "heap_free": "malloc: free",
}  # fmt: skip
GROUPS_KEPT = 20
# Clients ask for a topic that was deleted, which would make it again; producer ids are kept for a day by default, so
# that an hour would show their growth and not its end.
SETTINGS = (
    "auto.create.topics.enable=false,producer.id.expiration.ms=300000,log.retention.check.interval.ms=30000,"
    "transaction.remove.expired.transaction.cleanup.interval.ms=60000"
)


class Load:
    """Everything that runs against one broker; `errors` are what the loops met and went on from."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.stopping = threading.Event()
        self.errors: list[str] = []
        self.done = dict.fromkeys(
            ("records", "read", "groups", "transactions", "producers", "topics", "updates", "connections"), 0
        )
        host, port = bootstrap.rsplit(":", 1)
        self._address = (host, int(port))

    def start(self) -> list[threading.Thread]:
        """Makes the lasting topics and starts one thread for each kind of work."""
        topics = [
            NewTopic(STREAM, 12, config={"retention.bytes": str(16 * MIB)}),
            NewTopic(STATE, 4, config={"cleanup.policy": "compact", "max.compaction.lag.ms": "60000"}),
        ]
        for future in self.admin.create_topics(topics).values():
            future.result()
        loops: list[tuple[Callable[[], Iterator[None]], float]] = [
            (self.stream, 0.5), (self.read, 0.1), (self.group, 2.0), (self.transaction, 1.0), (self.producer, 1.0),
            (self.topic, 3.0), (self.update, 0.5), (self.connection, 0.05),
        ]  # fmt: skip
        threads = [threading.Thread(target=self._loop, args=loop, daemon=True) for loop in loops]
        for thread in threads:
            thread.start()
        return threads

    def _loop(self, work: Callable[[], Iterator[None]], pause_seconds: float) -> None:
        steps = work()
        while not self.stopping.wait(pause_seconds):
            try:
                next(steps)
            except (KafkaException, OSError) as error:
                self.errors.append(f"{work.__name__}: {error}")
                steps = work()
        steps.close()  # type: ignore[attr-defined]

    def _producer(self, **options: Any) -> Producer:
        return Producer({"bootstrap.servers": self.bootstrap, **{k.replace("_", "."): v for k, v in options.items()}})

    def stream(self) -> Iterator[None]:
        """500 records of 1 KiB a step, the codec in turn."""
        producers = [self._producer(compression_type=codec, linger_ms=20) for codec in CODECS]
        value = b"an event that says much the same as the one before " * 20
        while True:
            for producer in producers:
                for number in range(100):
                    producer.produce(STREAM, value[:1024], str(number % 50).encode())
                producer.flush(30)
                self.done["records"] += 100
            yield

    def read(self) -> Iterator[None]:
        """The lasting group."""
        consumer = self._consumer("lasting")
        consumer.subscribe([STREAM])
        try:
            while True:
                self.done["read"] += len(consumer.consume(2000, 0.5))
                yield
        finally:
            consumer.close()

    def _consumer(self, group: str) -> Consumer:
        return Consumer({
            "bootstrap.servers": self.bootstrap, "group.id": group, "auto.offset.reset": "latest",
            "group.protocol": "consumer" if self.done["groups"] % 2 else "classic",
        })  # fmt: skip

    def group(self) -> Iterator[None]:
        """A group that joins, commits and leaves; the oldest ones are deleted."""
        names: list[str] = []
        while True:
            names.append(f"group-{self.done['groups']}")
            consumer = self._consumer(names[-1])
            consumer.subscribe([STREAM])
            for _ in range(20):
                if consumer.consume(100, 0.2):
                    consumer.commit(asynchronous=False)
                    break
            consumer.close()
            self.done["groups"] += 1
            if len(names) > GROUPS_KEPT:
                for future in self.admin.delete_consumer_groups([names.pop(0)]).values():
                    future.result()
            yield

    def transaction(self) -> Iterator[None]:
        """Ten records in a transaction; each id is used for twenty, by a new producer each time it comes round."""
        while True:
            producer = self._producer(transactional_id=f"id-{self.done['transactions'] % 200 // 20}")
            producer.init_transactions(30)
            for number in range(20):
                producer.begin_transaction()
                for _ in range(10):
                    producer.produce(STREAM, b"in a transaction" * 20)
                if number % 2:
                    producer.commit_transaction(30)
                else:
                    producer.abort_transaction(30)
                self.done["transactions"] += 1
                yield

    def producer(self) -> Iterator[None]:
        """An idempotent producer with an id of its own."""
        while True:
            producer = self._producer(enable_idempotence=True, compression_type="lz4")
            for number in range(50):
                producer.produce(STREAM, b"once" * 50, str(number).encode())
            producer.flush(30)
            self.done["producers"] += 1
            yield

    def topic(self) -> Iterator[None]:
        """A topic of six partitions that is written and deleted."""
        producer = self._producer(compression_type="snappy")
        while True:
            name = f"topic-{self.done['topics']}"
            policy = "compact" if self.done["topics"] % 2 else "delete"
            for future in self.admin.create_topics([NewTopic(name, 6, config={"cleanup.policy": policy})]).values():
                future.result()
            for number in range(200):
                producer.produce(name, b"short-lived" * 20, str(number).encode())
            producer.flush(30)
            yield
            for deleted in self.admin.delete_topics([name]).values():
                deleted.result()
            self.done["topics"] += 1

    def update(self) -> Iterator[None]:
        """Updates of 2,000 keys."""
        producer = self._producer(compression_type="zstd")
        while True:
            for number in range(500):
                producer.produce(STATE, b"the newest value" * 10, str(number * 7 % 2000).encode())
            producer.flush(30)
            self.done["updates"] += 500
            yield

    def connection(self) -> Iterator[None]:
        """One request on a connection of its own."""
        request = encode_request_frame(3, 9, 1, "passing", MetadataRequest(topics=None))
        while True:
            with socket.create_connection(self._address, 10) as passing:
                passing.sendall(request)
                passing.recv(65536)
            self.done["connections"] += 1
            yield


def sample(pid: int, metrics_url: str) -> dict[str, float]:
    """RSS, its parts and every pool, in bytes."""
    status = dict(STATUS.findall(Path(f"/proc/{pid}/status").read_text()))
    with urllib.request.urlopen(metrics_url, timeout=60) as answer:
        pools = POOL.findall(answer.read().decode())
    row = {name: float(value) * (1 if name == "Threads" else 1024) for name, value in status.items()}
    return row | {f"{family}_{name}": float(value) for family, name, value in pools}


def run(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="kbroker-soak-", dir=options.dir) as folder:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            http = f"127.0.0.1:{probe.getsockname()[1]}"
        broker = BrokerProcess(
            Path(folder) / "data", "--memory-bytes", options.memory_bytes, "--wal-bytes", "512MiB",
            "--http-listen", http, environ={"KBROKER_SET": SETTINGS},
        ).start()  # fmt: skip
        load = Load(broker.bootstrap)
        threads = load.start()
        began = time.monotonic()
        try:
            with open(options.csv, "w", newline="") as file:
                writer: csv.DictWriter[str] | None = None
                while (elapsed := time.monotonic() - began) < options.seconds:
                    row = {"seconds": round(elapsed, 1)} | sample(broker.pid, f"http://{http}/metrics") | load.done
                    if writer is None:
                        writer = csv.DictWriter(file, list(row))
                        writer.writeheader()
                    writer.writerow(row)
                    file.flush()
                    load.stopping.wait(options.interval)
        finally:
            load.stopping.set()
            for thread in threads:
                thread.join(60)
            code = broker.stop()
    print(f"the broker ended with {code}; done: {load.done}; errors: {len(load.errors)}")
    for error in load.errors[:10]:
        print(f"  {error}")


def plot(path: Path) -> None:
    """RSS above, the pools below, in MiB over minutes."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    minutes = [float(row["seconds"]) / 60 for row in rows]
    figure, (above, below) = plt.subplots(2, 1, figsize=(9, 8), sharex=True)
    for name, label in SHOWN.items():
        above.plot(minutes, [float(row[name]) / MIB for row in rows], label=label)
    for name in sorted(column for column in rows[0] if column.startswith("memory_") and column != "memory_arena"):
        below.plot(minutes, [float(row[name]) / MIB for row in rows], label=name.removeprefix("memory_"))
    for axes in (above, below):
        axes.set_ylabel("MiB")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, ncols=3)
    below.set_xlabel("minutes")
    figure.tight_layout()
    figure.savefig(PLOT, metadata={"Date": None})
    print(f"wrote {PLOT.relative_to(ROOT)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--interval", type=float, default=10)
    parser.add_argument("--memory-bytes", default="192MiB")
    parser.add_argument("--csv", type=Path, default=CSV)
    parser.add_argument("--dir", default=None, help="where the broker's folder is made")
    parser.add_argument("--plot", action="store_true", help="only draw what the table has")
    options = parser.parse_args()
    if options.plot:
        plot(options.csv)
    else:
        run(options)


if __name__ == "__main__":
    main()
