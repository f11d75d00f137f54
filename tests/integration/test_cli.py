"""The command line against a real broker: flush, objects, probes and metrics."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_process import BrokerProcess
from prometheus_client.parser import text_string_to_metric_families


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Kbroker:
    """One broker, and its commands."""

    def __init__(self, folder: Path) -> None:
        self.http = f"127.0.0.1:{free_port()}"
        self.store = f"file:{folder}/objects"
        options = ("--http-listen", self.http, "--memory-bytes", "96MiB", "--object-store", self.store)
        self.broker = BrokerProcess(folder / "data", *options).start()

    def run(self, *arguments: str, lines: str | None = None, code: int = 0) -> list[str]:
        """A command against the broker; its output lines. Anything else than the exit code expected is an error."""
        if arguments[0] not in ("flush", "object"):
            arguments = (*arguments, "--bootstrap", self.broker.bootstrap)
        result = subprocess.run(
            [sys.executable, "-m", "kbroker", *arguments], input=lines, capture_output=True, text=True, timeout=120
        )
        assert result.returncode == code, result.stderr
        return result.stdout.splitlines() if code == 0 else result.stderr.splitlines()

    def consume(self, topic: str, count: int) -> list[dict]:
        found = self.run("consume", topic, "--from-beginning", "--json", "--count", str(count), "--timeout", "30")
        return [json.loads(line) for line in found]

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=20) as answer:
            return answer.read().decode()

    def metrics(self) -> dict[str, float]:
        """Samples without labels, and the sums over labels."""
        values: dict[str, float] = {}
        for family in text_string_to_metric_families(self.get("/metrics")):
            for sample in family.samples:
                values[sample.name] = values.get(sample.name, 0.0) + sample.value
        return values


@pytest.fixture(scope="module")
def kbroker(tmp_path_factory) -> Iterator[Kbroker]:
    made = Kbroker(tmp_path_factory.mktemp("cli"))
    yield made
    made.broker.kill()




def test_flushed_records_are_in_the_objects_listed(kbroker) -> None:
    kbroker.run("topic", "create", "flushed", "-p", "2")
    kbroker.run("produce", "flushed", "--key-separator", ":", lines="".join(f"{n}:v{n}\n" for n in range(100)))
    kbroker.run("flush", "--data-dir", str(kbroker.broker.data_dir))
    place = ("--object-store", kbroker.store)
    keys = [line.split("\t")[0] for line in kbroker.run("object", "ls", "--topic", "flushed", *place)]
    found = [
        json.loads(line) for key in keys for line in kbroker.run("object", "cat", key, "--topic", "flushed", *place)
    ]
    consumed = kbroker.consume("flushed", 100)
    order = lambda record: (record["partition"], record["offset"])  # noqa: E731
    assert sorted(found, key=order) == sorted(consumed, key=order)
    assert kbroker.run("object", "verify", *place)[-1].endswith(": no faults")


def test_probes_and_metrics_are_served(kbroker) -> None:
    assert kbroker.get("/livez") == "ok\n"
    assert json.loads(kbroker.get("/readyz")) == {"ready": True, "broker": "ok", "log": "ok", "store": "ok"}
    before = kbroker.metrics()
    kbroker.run("produce", "measured", lines="x\n" * 10)
    kbroker.run("flush", "--data-dir", str(kbroker.broker.data_dir))
    after = kbroker.metrics()
    for name in ("kbroker_requests_total", "kbroker_request_bytes_total", "kbroker_response_bytes_total",
                 "kbroker_request_seconds_count", "kbroker_wal_sync_seconds_count", "kbroker_wal_written_bytes_total",
                 "kbroker_flushes_total", "kbroker_flush_bytes_total", "kbroker_store_requests_total",
                 "kbroker_store_sent_bytes_total"):  # fmt: skip
        assert after[name] > before.get(name, 0), name
    for name in ("kbroker_memory_bytes", "kbroker_wal_disk_bytes", "kbroker_connections", "kbroker_group_members",
                 "kbroker_range_cache_lookups_total", "kbroker_cold_reads_total"):  # fmt: skip
        assert name in after
    with pytest.raises(urllib.error.HTTPError):
        kbroker.get("/no-such")


def test_commands_without_a_broker_fail_with_one_line(kbroker) -> None:
    port = free_port()
    result = subprocess.run(
        [sys.executable, "-m", "kbroker", "topic", "list", "-b", f"127.0.0.1:{port}"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert result.returncode == 1
    assert result.stderr.startswith(f"kbroker: no broker answers at 127.0.0.1:{port}: ")
    assert result.stderr.count("\n") == 1


def test_a_broker_without_its_data_directory_serves_everything_from_objects(kbroker) -> None:
    """The last test: it stops the broker. What a clean stop flushed is read back from objects."""
    kbroker.run("topic", "create", "cold", "-p", "2")
    kbroker.run("produce", "cold", "--codec", "lz4", lines="".join(f"line {n}\n" for n in range(3000)))
    assert kbroker.broker.stop() == 0
    assert kbroker.run("object", "verify", "--object-store", kbroker.store)[-1].endswith(": no faults")
    shutil.rmtree(kbroker.broker.data_dir)
    kbroker.broker.start()
    try:
        assert sorted(record["value"] for record in kbroker.consume("cold", 3000)) == sorted(
            f"line {n}" for n in range(3000)
        )
        metrics = kbroker.metrics()
        assert metrics["kbroker_cold_reads_total"] > 0
        assert metrics["kbroker_memory_bytes"] > 0
        kbroker.run("produce", "cold", lines="tail\n")
        found = kbroker.run("consume", "cold", "--from-beginning", "--count", "3001", "--timeout", "30")
        assert "tail" in found
    finally:
        assert kbroker.broker.stop() == 0


def test_object_commands_work_with_every_store(store, tmp_path) -> None:
    """They take URL and endpoint as options, as the broker does, and credentials from the usual places."""
    broker = BrokerProcess(tmp_path / "data", *store.options, "--memory-bytes", "96MiB", environ=store.environ).start()

    def run(*arguments: str, lines: str | None = None, code: int = 0) -> list[str]:
        result = subprocess.run(
            [sys.executable, "-m", "kbroker", *arguments], input=lines, capture_output=True, text=True, timeout=120,
            env={**os.environ, **store.environ},
        )  # fmt: skip
        assert result.returncode == code, result.stderr
        return (result.stdout if code == 0 else result.stderr).splitlines()

    try:
        run("produce", "t", "--bootstrap", broker.bootstrap, lines="one\ntwo\n")
        run("flush", "--data-dir", str(broker.data_dir))
        keys = [line.split("\t")[0] for line in run("object", "ls", "--topic", "t", *store.options)]
        (line, _) = run("object", "cat", keys[0], "--topic", "t", *store.options)
        assert json.loads(line)["value"] == "one"
        assert run("object", "show", keys[0], *store.options)
        assert run("object", "verify", *store.options)[-1].endswith(": no faults")
        missing = run("object", "show", "no-such", *store.options, code=1)
        assert len(missing) == 1
        if store.kind == "s3":
            wrong = [option.replace("kbroker-test/", "no-such-bucket/") for option in store.options]
            assert len(run("object", "verify", *wrong, code=2)) == 1
    finally:
        assert broker.stop() == 0
