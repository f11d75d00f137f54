"""A stream into a topic by transactions, while driver, workers and broker are killed at random: every row once."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import spark_session
from broker_process import BrokerProcess
from conftest import SMALL, require
from killed_driver import KilledDriver
from scenarios import new_topic
from sink_jobs import open_transactions, values_of
from test_client_confluent import CLIENT as CONFLUENT

pytestmark = [pytest.mark.spark]
SEED_VARIABLE = "KBROKER_SPARK_SEED"
FILES_PER_ROUND, LINES_PER_FILE = 8, 50
PARTITIONS = 3


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    require(spark_session.missing() is None, spark_session.missing() or "")
    process = BrokerProcess(tmp_path / "data", *SMALL).start()
    yield process
    process.kill()


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(1, marks=pytest.mark.timeout(180)),
        pytest.param(3, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)
def test_every_row_is_in_the_topic_once_despite_kills(
    broker: BrokerProcess, tmp_path: Path, kills: int, record_property: pytest.RecordProperty
) -> None:
    seed = int(os.environ.get(SEED_VARIABLE) or random.randrange(1 << 32))
    record_property("seed", seed)
    print(f"{SEED_VARIABLE}={seed}")  # shown when the test fails
    chosen = random.Random(seed)
    topic = new_topic(broker, CONFLUENT, "write-restarts", PARTITIONS)
    lines = tmp_path / "lines"
    lines.mkdir()
    program = Path(__file__).with_name("spark_sink_program.py")
    driver = KilledDriver(program, tmp_path, broker.bootstrap, topic)
    sent: list[str] = []
    try:
        for number in range(kills):
            sent += add_lines(lines, number)
            if not driver.runs():
                driver.start("run")
            driver.run_for(chosen.uniform(0, 4))
            victim = ("driver", "broker", "workers")[number % 3]
            if victim == "driver":
                driver.kill()
            elif victim == "workers":
                driver.kill_workers()
            else:
                broker.kill()
                broker.start()
        driver.kill()
        done = driver.start("finish")
        assert done.wait(120) == 0, driver.log()[-6000:]
    finally:
        driver.kill()
    assert Counter(values_of(broker.bootstrap, topic, PARTITIONS)) == Counter(sent)
    assert open_transactions(broker.bootstrap) == []


def add_lines(folder: Path, number: int) -> list[str]:
    """More files for the stream; their lines."""
    added: list[str] = []
    for file in range(FILES_PER_ROUND):
        found = [f"{number}-{file}-{line}" for line in range(LINES_PER_FILE)]
        hidden = folder / f".{number}-{file}"
        hidden.write_text("\n".join(found))
        hidden.rename(folder / f"{number}-{file}.txt")  # as a whole
        added += found
    return added
