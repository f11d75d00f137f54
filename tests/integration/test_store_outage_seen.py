"""What an operator sees when the store is killed and started again beside a running broker."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Producer

from tests.crash.small_broker import free_port, in_s3
from tests.integration.broker_process import BrokerProcess
from tests.integration.s3_server import find_server, s3_server
from tests.integration.until import until

pytestmark = [pytest.mark.s3, pytest.mark.skipif(find_server() is None, reason="no S3 server (versitygw)")]

SECONDS = 30.0
SINCE = re.compile(r"unavailable since 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ")


class Seen:
    """The status of a broker."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def readyz(self) -> tuple[int, dict[str, object]]:
        try:
            with urllib.request.urlopen(f"{self._url}/readyz", timeout=SECONDS) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def metrics(self) -> dict[str, float]:
        with urllib.request.urlopen(f"{self._url}/metrics", timeout=SECONDS) as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


def produce(broker: BrokerProcess, topic: str, seconds: float = SECONDS) -> int:
    """Records that were not acknowledged."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0, "message.timeout.ms": 120_000})
    producer.produce(topic, b"x" * 1000)
    return producer.flush(seconds)


def test_a_killed_store_and_its_return_are_reported(tmp_path: Path) -> None:
    port = free_port()
    with s3_server(tmp_path) as first:
        place = in_s3(first, "seen")
        options = ("--memory-bytes", "64MiB", "--flush-seconds", "1", "--http-listen", f"127.0.0.1:{port}")
        broker = BrokerProcess(tmp_path / "data", *place.options, *options, environ=place.environ)
        seen = Seen(port)
        try:
            broker.start()
            assert seen.readyz() == (200, {"ready": True, "broker": "ok", "log": "ok", "store": "ok"})
            before = seen.metrics()
            assert not any(name.startswith("kbroker_store_requests") and "Precondition" in name for name in before)
            probed = [name for name in before if name.startswith("kbroker_store_probe_errors_total")]
            assert any("PreconditionFailed" in name for name in probed)
            assert produce(broker, "t") == 0
            until(lambda: seen.metrics()["kbroker_wal_unflushed_bytes"] == 0, "flush")
            assert seen.metrics()["kbroker_unflushed_age_seconds"] == 0

            os.kill(first.pid, signal.SIGKILL)
            assert produce(broker, "t") == 0
            until(lambda: SINCE.fullmatch(str(seen.readyz()[1]["store"])), "outage in /readyz")
            assert seen.readyz()[0] == 200  # producers continue
            assert produce(broker, "t") == 0
            until(lambda: seen.metrics()["kbroker_unflushed_age_seconds"] >= 3, "age of what is not flushed")
            until(lambda: seen.metrics()["kbroker_flush_retries_total"] > 2, "failures of flushes")
            during = seen.metrics()
            assert during["kbroker_store_consecutive_failures"] > 0
            assert during["kbroker_wal_unflushed_bytes"] > 0
            assert any("StoreUnavailable" in name for name in during if name.startswith("kbroker_store_requests_total"))
            assert broker.log().count("the object store is unavailable") == 1
            assert "the object store answers again" not in broker.log()

            with s3_server(tmp_path, bucket=None, port=urlsplit(first.endpoint).port):
                until(lambda: seen.readyz()[1]["store"] == "ok", "recovery in /readyz")
                until(lambda: seen.metrics()["kbroker_wal_unflushed_bytes"] == 0, "flush")
                assert seen.metrics()["kbroker_store_consecutive_failures"] == 0
                assert broker.log().count("the object store is unavailable") == 1
                assert broker.log().count("the object store answers again") == 1
                assert broker.stop() == 0
        finally:
            broker.kill()
