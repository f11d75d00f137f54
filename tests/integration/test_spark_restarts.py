"""Streams of both sources into files, while driver and broker are killed at random: every record once."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import scenarios
import spark_session
from broker_process import BrokerProcess
from conftest import SMALL, require
from killed_driver import KilledDriver
from scenarios import IDEMPOTENT, new_topic
from spark_stream_program import SOURCES
from test_client_confluent import CLIENT as CONFLUENT
from workload import Message, spread

pytestmark = [pytest.mark.spark]
SEED_VARIABLE = "KBROKER_SPARK_SEED"
RECORDS_PER_ROUND = 400
PARTITIONS = 3


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
    program = Path(__file__).with_name("spark_stream_program.py")
    driver = KilledDriver(program, tmp_path, broker.bootstrap, f"file:{objects}", topic)
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
