"""The brokers under test, each in its own process on 127.0.0.1, with CPU and memory read from /proc."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / ".tools"
TICKS = os.sysconf("SC_CLK_TCK")
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"  # of the Kafka; one that begins with "-" would be taken for an option


_given: set[int] = set()  # ports that servers have, or will have when they start


def free_port() -> int:
    """A port that was free a moment ago, never the same one twice."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        if port not in _given:
            _given.add(port)
            return port


def wait_port(port: int, deadline_seconds: float = 60.0) -> None:
    """Waits until something accepts on the port. Raises TimeoutError."""
    deadline = time.monotonic() + deadline_seconds
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise TimeoutError(f"nothing listens on {port}")


LOG, TAIL = "LOG", "TAIL"


def _tree(pid: int) -> list[int]:
    pids = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            pids += _tree(int(child))
    return pids


class Server:
    """One server process; `cpu_seconds` and `peak_rss_mib` include its children."""

    name = "server"
    s3: S3Server | None = None  # where it stores, if it does

    def __init__(self, work: Path) -> None:
        self.work = work
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> Server:
        """Starts it; returns when it accepts connections."""
        raise NotImplementedError

    def create_topic(self, topic: str, partitions: int) -> None:
        """Creates the topic and waits until it is there."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
            future.result(60)

    def store_requests(self) -> float:
        """Requests to the object store; 0 for a broker without one."""
        return 0.0

    def unflushed_bytes(self) -> float:
        """What is in its log alone; 0 for a broker without an object store."""
        return 0.0

    def put_ceiling_mb_per_second(self, seconds: float) -> float | None:
        """What the object store takes while nothing else is done; None for a broker without one."""
        return self.s3.put_ceiling_mb_per_second(seconds) if self.s3 else None

    def settle(self) -> None:
        """Returns when no work is left of what was produced."""

    def spawn(self, command: list[str], env: dict[str, str] | None = None, cwd: Path = ROOT) -> None:
        self.work.mkdir(parents=True, exist_ok=True)
        with open(self.work / f"{self.name}.log", "ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=cwd, env={**os.environ, **(env or {})}
            )
        wait_port(self.port)

    def processes(self) -> list[int]:
        """Its ids, children included."""
        return _tree(self.process.pid)

    def cpu_seconds(self) -> float:
        total = 0.0
        for pid in self.processes():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / TICKS
        return total

    def peak_rss_mib(self) -> float:
        total = 0
        for pid in self.processes():
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmHWM"):
                    total += int(line.split()[1])
        return total / 1024

    def stop(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class StoreLink(Server):
    """store_link.c: a way to a port of this machine that takes so many MB/s."""

    name = "store_link"

    def __init__(self, work: Path, to_port: int, mb_per_second: int) -> None:
        super().__init__(work)
        self.arguments = [str(self.port), str(to_port), str(mb_per_second * 1_000_000)]

    def start(self) -> StoreLink:
        self.spawn([str(TOOLS / "bin/store_link"), *self.arguments])
        return self


class S3Server(Server):
    """versitygw over a folder, `link_mb` MB/s away where that is given."""

    name = "versitygw"
    access, secret = "benchaccess", "benchsecret"
    url = "s3://bench/run"

    def __init__(self, work: Path, link_mb: int | None = None) -> None:
        super().__init__(work)
        self.link = StoreLink(work, self.port, link_mb) if link_mb else None

    def start(self) -> S3Server:
        data = self.work / "s3"
        (data / "bench").mkdir(parents=True, exist_ok=True)
        self.spawn(
            [str(TOOLS / "bin/versitygw"), "--access", self.access, "--secret", self.secret,
             "--port", self.bootstrap, "posix", str(data)]
        )  # fmt: skip
        if self.link:
            self.link.start()
        return self

    def stop(self) -> None:
        if self.link:
            self.link.stop()
        super().stop()

    def put_ceiling_mb_per_second(self, seconds: float) -> float:
        done = subprocess.run(
            [sys.executable, "-m", "bench.e2e.put_ceiling", self.url, self.endpoint, str(seconds)],
            cwd=ROOT, env={**os.environ, **self.environ}, check=True, text=True, stdout=subprocess.PIPE,
        )  # fmt: skip
        return float(done.stdout)

    @property
    def endpoint(self) -> str:
        return f"http://{(self.link or self).bootstrap}"

    @property
    def environ(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": self.access, "AWS_SECRET_ACCESS_KEY": self.secret, "AWS_REGION": "us-east-1"}


class Kbroker(Server):
    """kbroker with fsync before every ack; its flushes go to an S3 server on this machine, or to a folder.

    `checkout`: where its code and its virtual environment are, built.
    """

    name = "kbroker"

    def __init__(self, work: Path, s3: S3Server | None, *options: str, checkout: Path = ROOT) -> None:
        super().__init__(work)
        self.checkout = checkout
        self.python = sys.executable if checkout == ROOT else str(checkout / ".venv/bin/python")
        self.s3 = s3
        self.data_dir = work / "kbroker-data"
        self.http_port = free_port()
        self.options = ("--http-listen", f"127.0.0.1:{self.http_port}", *options)

    def store_requests(self) -> float:
        """Requests to the object store since the start."""
        return self._metric("kbroker_store_requests_total{")

    def unflushed_bytes(self) -> float:
        return self._metric("kbroker_wal_unflushed_bytes ")

    @property
    def metrics_url(self) -> str:
        """Where it is scraped."""
        return f"http://127.0.0.1:{self.http_port}/metrics"

    def _metric(self, prefix: str) -> float:
        """The sum of the samples that begin so."""
        with urllib.request.urlopen(self.metrics_url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(prefix))

    def settle(self) -> None:
        flush = [self.python, "-m", "kbroker", "flush", "--data-dir", str(self.data_dir)]
        subprocess.run(flush, check=True, stdout=subprocess.DEVNULL, cwd=self.checkout)

    @property
    def command(self) -> list[str]:
        """What starts it."""
        command = [self.python, "-m", "kbroker", "serve", "--data-dir", str(self.data_dir),
                   "--listen", self.bootstrap, *self.options]  # fmt: skip
        if self.s3:
            command += ["--object-store", self.s3.url, "--s3-endpoint", self.s3.endpoint]
        return command

    def start(self) -> Kbroker:
        self.spawn(self.command, self.s3.environ if self.s3 else None, self.checkout)
        wait_port(self.http_port)
        return self


class Kafka(Server):
    """Apache Kafka, one KRaft node from its Maven jars, with defaults (no fsync) or a flush per message."""

    name = "kafka"

    def __init__(self, work: Path, flush_each: bool = False) -> None:
        super().__init__(work)
        self.flush_each = flush_each
        self.controller_port = free_port()

    def start(self) -> Kafka:
        self.work.mkdir(parents=True, exist_ok=True)
        logs = self.work / "kafka-logs"
        shutil.rmtree(logs, ignore_errors=True)
        properties = self.work / "server.properties"
        properties.write_text(
            f"""process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{self.controller_port}
listeners=PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{self.port}
controller.listener.names=CONTROLLER
log.dirs={logs}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
{"log.flush.interval.messages=1" if self.flush_each else ""}
"""
        )
        java = ["java", "-Xmx1G", "-Xms1G", "-XX:+UseG1GC", "-cp", f"{TOOLS}/kafka/*"]
        subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.spawn([*java, "kafka.Kafka", str(properties)])
        return self


class FreeBroker(Server):
    """free_broker.c: acknowledges and answers at next to no cost, so that what is measured is the client's ceiling.

    With an S3 server it writes a log of so many bytes as well, and what was received is stored by a process beside it,
    at `store_mb` MB/s where that is given. LOG and TAIL among its options are files in its folder.
    """

    name = "free_broker"

    def __init__(
        self, work: Path, *options: str, s3: S3Server | None = None, log_bytes: int = 0, store_mb: int | None = None
    ) -> None:
        super().__init__(work)
        self.s3 = s3
        self.storing: subprocess.Popen[bytes] | None = None
        self.counts = str(work / "counts")
        self.store_rate = [str(store_mb)] if store_mb else []
        files = {name: str(work / name) for name in (LOG, TAIL)}
        log = ["log", files[LOG], self.counts, str(log_bytes)] if s3 else []
        self.options = [*log, *(files.get(option, option) for option in options)]

    def create_topic(self, topic: str, partitions: int) -> None:
        if not topic.endswith(f"-{partitions}"):
            raise ValueError("the number of partitions is what the topic's name ends with")

    def start(self) -> FreeBroker:
        self.spawn([str(TOOLS / "bin/free_broker"), str(self.port), *self.options])
        if self.s3:
            command = [sys.executable, "-m", "bench.e2e.free_store", self.s3.url, self.s3.endpoint, self.counts]
            command += self.store_rate
            self.storing = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **self.s3.environ})
        return self

    def processes(self) -> list[int]:
        return super().processes() + (_tree(self.storing.pid) if self.storing else [])

    def stop(self) -> None:
        if self.storing:
            self.storing.kill()
            self.storing.wait()
        super().stop()
