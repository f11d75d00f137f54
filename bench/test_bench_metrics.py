"""A scrape with 10,000 partitions and 1,000 groups of 10 partitions each: CPU time, and the longest slice of it.

The slice is what runs between two pauses, so it bounds how long an I/O thread waits for the interpreter.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.small_log import NOW_MS, SmallLog
from kbroker._fast.partition.partition import Partition
from kbroker._fast.records.records import build_batch
from kbroker._fast.wal.commit import FastAppendWait
from kbroker.admin.metrics.groups import GroupMetrics
from kbroker.admin.metrics.scrape import BrokerMetrics
from kbroker.admin.metrics.topic_logs import TopicLogMetrics
from kbroker.admin.metrics.transactions import TransactionMetrics
from kbroker.clock import SystemClock
from kbroker.coordinator.group.activity import GroupActivity
from kbroker.coordinator.group.classic.group import ClassicGroup
from kbroker.coordinator.group.memory import GroupCounts
from kbroker.coordinator.group.offsets.state import OffsetAndMetadata
from kbroker.coordinator.runtime.request import Request
from kbroker.coordinator.transaction.config import TransactionConfig
from kbroker.log.log_table import LogTable
from kbroker.storage.manifest.image import ManifestImage
from kbroker.topic_config import parse_topic_config

PARTITIONS, GROUPS, SHARDS = 10_000, 1_000, 50
SHARE = PARTITIONS // GROUPS  # of the partitions, to which a group has committed
SERIES_MAX = 200_000
CPU_SECONDS_MAX = 0.3
SLICE_SECONDS_MAX = 0.005


class Shards:
    """A coordinator's shards, which answer on the caller's thread."""

    def __init__(self, shards: list[Any]) -> None:
        self.runtimes = [SimpleNamespace(shard=shard) for shard in shards]

    def submit_to_partition(self, number: int, request: Request) -> Future[Any]:
        done: Future[Any] = Future()
        result = request.run(self.runtimes[number].shard, done)
        assert result is not None
        done.set_result(result.response)
        return done


class Slices:
    """CPU seconds between two pauses."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.begun = 0.0

    def begin(self) -> None:
        self.longest, self.begun = 0.0, time.thread_time()

    def pause(self) -> None:
        now = time.thread_time()
        self.longest = max(self.longest, now - self.begun)
        self.begun = now


@pytest.fixture(params=[10, 1000, PARTITIONS], ids=lambda topics: f"{topics}-topics")
def logs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogTable]:
    with SmallLog(tmp_path) as log:
        table = LogTable(log.wal, ManifestImage(), 1)
        batch = build_batch([(None, bytes(100), NOW_MS + number, []) for number in range(10)])
        config = parse_topic_config({})
        for number in range(request.param):
            topic_id = (number + 1).to_bytes(16, "big")
            topic = table.add_topic(f"topic-{number}", topic_id, PARTITIONS // request.param, config)
            for partition in topic.partitions:
                append(log, partition, batch)
        log.wal.sync(30)
        yield table


def append(log: SmallLog, partition: Partition, batch: bytes) -> None:
    while True:
        try:
            partition.append_bytes(batch, NOW_MS)
            return
        except FastAppendWait:  # the next segment is not ready
            log.settle()


def group(number: int, partitions: list[Any]) -> ClassicGroup:
    """Halfway through its partitions."""
    made = ClassicGroup(f"group-{number}", NOW_MS)
    for partition in partitions[number * SHARE : (number + 1) * SHARE]:
        made.offsets.put(partition.topic, partition.index, OffsetAndMetadata(5))
    return made


def group_coordinator(logs: LogTable) -> Any:
    partitions = logs.all_partitions()
    groups = [group(number, partitions) for number in range(GROUPS)]
    shards = [
        SimpleNamespace(groups={each.group_id: each for each in groups[first::SHARDS]}) for first in range(SHARDS)
    ]
    return SimpleNamespace(counts=GroupCounts(), activity=GroupActivity(), shards=Shards(shards))


def transaction_coordinator() -> Any:
    return SimpleNamespace(shards=Shards([]), ended={}, unfinished=0, config=TransactionConfig())


@pytest.mark.benchmark(group="metrics", timer=time.process_time)
@pytest.mark.parametrize("by_partition", [False, True], ids=["by-topic", "by-partition"])
def test_scrape(benchmark: Any, logs: LogTable, by_partition: bool) -> None:
    slices, clock = Slices(), SystemClock()
    collectors = [
        TransactionMetrics(transaction_coordinator(), logs, clock, slices.pause),
        TopicLogMetrics(logs, by_partition, slices.pause),
        GroupMetrics(group_coordinator(logs), logs, clock, slices.pause),
    ]
    metrics = BrokerMetrics(collectors, SERIES_MAX, clock, slices.pause)

    def scrape() -> bytes:
        slices.begin()
        return metrics.render()

    text = benchmark.pedantic(scrape, rounds=10, warmup_rounds=2)
    assert text.count(b"\nkbroker_group_lag_seconds{") == PARTITIONS
    benchmark.extra_info["longest_slice_ms"] = round(slices.longest * 1000, 3)
    benchmark.extra_info["megabytes"] = round(len(text) / 1e6, 3)
    if not benchmark.disabled:
        assert benchmark.stats.stats.median <= CPU_SECONDS_MAX
        assert slices.longest <= SLICE_SECONDS_MAX
