"""A broker whose cores tick while a client's records come one by one (decision 006)."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kbroker._fast.wal.core_ticks import CORES_MAX
from tests.integration.broker_process import BrokerProcess

CORES = os.sched_getaffinity(0)
TRIES = 200


@pytest.fixture
def broker(memory_path: Path) -> Iterator[BrokerProcess]:
    options = "--object-store", f"file:{memory_path}/objects", "--memory-bytes", "192MiB"
    process = BrokerProcess(memory_path / "data", *options)
    yield process.start()
    process.kill()


def wakeups_by_core(pid: int) -> dict[int, int]:
    """Of the threads that are tied to one core: how often the one that has least has gone on it."""
    least: dict[int, int] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        cores = os.sched_getaffinity(int(task.name))
        if len(cores) == 1:
            count = int((task / "schedstat").read_text().split()[2])
            core = min(cores)
            least[core] = min(count, least.get(core, count))
    return least


@pytest.mark.skipif(not 1 < len(CORES) <= CORES_MAX, reason="ticks are for two to eight cores")
def test_each_core_ticks_while_records_come_one_by_one(broker: BrokerProcess) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "acks": "all"})
    for _ in range(TRIES):
        for _ in range(100):
            producer.produce("ticks", b"record")
            producer.flush(10)
            threading.Event().wait(0.001)
        counts = wakeups_by_core(broker.pid)
        if counts.keys() == CORES and all(count > 100 for count in counts.values()):
            return
    raise AssertionError(f"threads of one core: {counts}")
