"""Streams of both sources into files, while driver and broker are killed at random: every record once."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import scenarios
import spark_session
from broker_process import BrokerProcess
from conftest import SMALL, require
from scenarios import IDEMPOTENT, new_topic
from spark_stream_program import SOURCES
from test_client_confluent import CLIENT as CONFLUENT
from workload import Message, spread

pytestmark = [pytest.mark.spark]
SEED_VARIABLE = "KBROKER_SPARK_SEED"
RECORDS_PER_ROUND = 400
PARTITIONS = 3


class Driver:
    """The program with both streams, in a process group of its own."""

    def __init__(self, folder: Path, broker: BrokerProcess, objects: Path, topic: str) -> None:
        self._folder, self._broker, self._objects, self._topic = folder, broker, objects, topic
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, mode: str) -> subprocess.Popen[bytes]:
        """Starts it, and waits until its streams run."""
        program = Path(__file__).with_name("spark_stream_program.py")
        command = [sys.executable, str(program), mode, str(self._folder), self._broker.bootstrap]
        with open(self._folder / "driver.log", "ab") as log:
            self._process = subprocess.Popen(
                [*command, f"file:{self._objects}", self._topic],
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **spark_session.environment()},
                start_new_session=True,
            )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == b"running":
                return self._process
        raise AssertionError(f"the driver ended:\n{self.log()[-6000:]}")

    def log(self) -> str:
        return (self._folder / "driver.log").read_text(errors="replace")

    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def run_for(self, seconds: float) -> None:
        """Lets it run so long, or until it exits."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def kill(self) -> None:
        """kill -9 of Python and JVM; Spark's workers end when their sockets do."""
        if self._process is not None and self._process.stdout is not None and not self._process.stdout.closed:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process.stdout.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[BrokerProcess, Path]]:
    require(spark_session.missing() is None, spark_session.missing() or "")
    objects = tmp_path / "objects"
    broker = BrokerProcess(tmp_path / "data", "--object-store", f"file:{objects}", *SMALL).start()
    yield broker, objects
    broker.kill()


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(1, marks=pytest.mark.timeout(180)),
        pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),
    ],
)
def test_streams_have_every_record_once_despite_kills(
    cluster: tuple[BrokerProcess, Path], tmp_path: Path, kills: int, record_property: pytest.RecordProperty
) -> None:
    broker, objects = cluster
    seed = int(os.environ.get(SEED_VARIABLE) or random.randrange(1 << 32))
    record_property("seed", seed)
    print(f"{SEED_VARIABLE}={seed}")  # shown when the test fails
    chosen = random.Random(seed)
    topic = new_topic(broker, CONFLUENT, "restarts", PARTITIONS)
    driver = Driver(tmp_path, broker, objects, topic)
    sent: list[str] = []
    try:
        for number in range(kills):
            values = [f"{number}-{i}" for i in range(RECORDS_PER_ROUND)]
            messages = [Message(None, value.encode(), (), None) for value in values]
            scenarios.send(broker, CONFLUENT, topic, spread(messages, PARTITIONS), "zstd", IDEMPOTENT)
            sent += values
            if number == 0 or chosen.random() < 0.6:
                broker.flush()
            if not driver.runs():
                driver.start("run")
            driver.run_for(chosen.uniform(0, 3))
            victims = "both" if number == 0 else chosen.choice(("driver", "broker", "both"))
            if victims in ("driver", "both"):
                driver.kill()
            if victims in ("broker", "both"):
                broker.kill()
                broker.start()
        broker.flush()
        driver.kill()
        done = driver.start("finish")
        assert done.wait(120) == 0, driver.log()[-6000:]
    finally:
        driver.kill()
    for source in SOURCES:
        rows = json.loads((tmp_path / f"{source}.json").read_text())
        assert sorted(value for _, _, value in rows) == sorted(sent), source
        assert len({(partition, offset) for partition, offset, _ in rows}) == len(rows), source
