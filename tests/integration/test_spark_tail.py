"""The reader of a stream with tail=broker, without Spark, while the broker closes connections and restarts."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import scenarios
from broker_process import BrokerProcess
from conftest import SMALL
from scenarios import new_topic
from test_client_confluent import CLIENT as CONFLUENT
from workload import generated, spread

from kbroker.client.connection import parse_bootstrap
from kbroker.pipeline import broker_tail
from kbroker.pipeline.broker_tail import BrokerError, BrokerTail
from kbroker.pipeline.options import LATEST
from kbroker.pipeline.split_reader import read_split
from kbroker.pipeline.stream.planner import StreamPlanner

pytestmark = pytest.mark.timeout(120)
IDLE_MS = 1000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data", *SMALL, "--set", f"connections.max.idle.ms={IDLE_MS}").start()
    yield process
    process.kill()


def test_a_stream_survives_closed_connections_and_restarts(broker: BrokerProcess) -> None:
    """Between two micro-batches, and between a micro-batch's plan and its tasks."""
    topic = new_topic(broker, CONFLUENT, "tail", 1)
    options = {
        "object.store": f"file:{broker.data_dir}/objects", "subscribe": topic, "startingOffsets": "earliest",
        "tail": "broker", "kafka.bootstrap.servers": broker.bootstrap, "columns": "offset",
    }  # fmt: skip
    planner = StreamPlanner(options, 1)
    start = planner.initial_offset()
    scenarios.send(broker, CONFLUENT, topic, spread(generated(5, seed=1), 1), "none", scenarios.IDEMPOTENT)
    assert planner.latest_offset()[topic] == {"0": 5}
    with socket.create_connection(parse_bootstrap(broker.bootstrap)[0], 60) as idle:
        assert idle.recv(1) == b""  # closed, and with it the planner's, which has been idle for longer
    assert planner.latest_offset()[topic] == {"0": 5}
    broker.kill()
    broker.start()
    assert planner.latest_offset()[topic] == {"0": 5}
    (split,) = pickle.loads(pickle.dumps(planner.plan(start, planner.latest_offset())))
    broker.kill()
    starting = threading.Timer(0.3, broker.start)
    starting.start()
    try:
        offsets = [row["offset"] for batch in read_split(options, split) for row in batch.to_pylist()]
    finally:
        starting.join()
    assert offsets == [0, 1, 2, 3, 4]
    planner.close()


def test_an_unreachable_broker_is_named(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_tail, "RETRY_SECONDS", 0.2)
    tail = BrokerTail(broker.bootstrap)
    broker.kill()
    with pytest.raises(BrokerError, match=f"^tail=broker: no broker answers at {broker.bootstrap}: "):
        tail.offsets({("any", 0): LATEST}, read_committed=False)
    for retries_connect in (False, True):
        with pytest.raises(BrokerError, match=f"no broker answers at {broker.bootstrap}"):
            BrokerTail(broker.bootstrap, retries_connect=retries_connect)
