"""format("kbroker") over Spark Connect, whose client has no JVM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import spark_session
from broker_process import BrokerProcess
from confluent_kafka import Producer
from conftest import Store, require

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).with_name("spark_connect_program.py")


@pytest.mark.parametrize("store", ["folder"], indirect=True)
def test_a_topic_is_read_over_spark_connect(broker: BrokerProcess, store: Store, tmp_path: Path) -> None:
    require(spark_session.missing() is None, spark_session.missing() or "")
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for size in range(10):
        producer.produce("connect", bytes(size), partition=0)
    assert producer.flush(30) == 0
    broker.flush()
    done = subprocess.run(
        [sys.executable, str(PROGRAM), store.options[1], "connect"],
        capture_output=True, text=True, timeout=200, check=False, cwd=tmp_path,
        env={**os.environ, **spark_session.environment(), "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stdout.splitlines()[-1] == f"10 {sum(range(3, 10))}"
