"""The group coordinator: a restart after many commits, and what commits and heartbeats cost.

`KBROKER_BENCH_COMMITS` is the number of commits before the restart; the product's promise is for 10 million:

    KBROKER_BENCH_COMMITS=10000000 python -m pytest bench/test_bench_coordinator.py -k restart -s

These run on logs in memory: bench.coordinator_restart restarts a whole broker. The commits of `test_restart` go through
a coordinator, with its snapshots (5 minutes for 10 million); those of `test_restart_uncompacted` are all still there.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest

from bench.memory_log import BlockLog, MemoryLog, coordinator_on
from kbroker._fast.records.records import build_batch
from kbroker.coordinator.group.coordinator import GroupCoordinator
from kbroker.coordinator.group.offsets.state import OffsetAndMetadata, OffsetRecord
from kbroker.coordinator.group.records import encode_record
from kbroker.coordinator.group.requests import CommitRequest, JoinRequest
from kbroker.coordinator.runtime.key_partition import group_partition
from kbroker.coordinator.runtime.shard_runtime import ShardState
from kbroker.protocol.apis.groups.k12_heartbeat import HeartbeatRequest
from kbroker.protocol.apis.groups.k14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment

COMMITS = int(os.environ.get("KBROKER_BENCH_COMMITS", 100_000))
GROUPS = int(os.environ.get("KBROKER_BENCH_GROUPS", 10_000))
OFFSETS_PER_GROUP = 10
SHARDS = 50
LOAD_SECONDS_MAX = 5.0
HEARTBEATS = 1_000
NOW_MS = 1_700_000_000_000


def join(coordinator: GroupCoordinator, group_id: str) -> str:
    """A Stable group of one member; its id."""
    protocols = [("range", bytes(40))]
    request = JoinRequest(
        group_id, "", None, "client", "/127.0.0.1", 1_800_000, 60_000, "consumer", protocols, False, True
    )
    joined = coordinator.join_group(request)
    coordinator.loop.run_pending()
    member_id = str(joined.result(0).member_id)
    synced = coordinator.sync_group(
        SyncGroupRequest(
            group_id=group_id,
            generation_id=1,
            member_id=member_id,
            assignments=[SyncGroupRequestAssignment(member_id=member_id, assignment=bytes(80))],
        )
    )
    coordinator.loop.run_pending()
    assert synced.result(0).error_code == 0
    return member_id


def commit_of(group: int, member_id: str, offset: int, partitions: range) -> CommitRequest:
    """One consumer's commit."""
    offsets = [("orders.events", partition, offset, 3, "") for partition in partitions]
    return CommitRequest(f"consumers-{group}", 1, member_id, None, 9, -1, offsets)


@cache
def committed_logs() -> list[MemoryLog]:
    """Logs after all commits, each of one offset: the most expensive mix to read again."""
    logs = [MemoryLog() for _ in range(SHARDS)]
    coordinator = coordinator_on(logs)
    members = [join(coordinator, f"consumers-{group}") for group in range(GROUPS)]
    for number in range(COMMITS):
        group, partition = number % GROUPS, number // GROUPS % OFFSETS_PER_GROUP
        request = commit_of(group, members[group], number, range(partition, partition + 1))
        committed = coordinator.commit_offsets(request)
        coordinator.loop.run_pending()
        assert committed.result(0) == 0
    coordinator.stop()
    return logs


def uncompacted_logs() -> list[MemoryLog]:
    """Logs of as many commits, one record each, without snapshots: as when nothing could be flushed for hours."""
    logs: list[MemoryLog] = [BlockLog() for _ in range(SHARDS)]
    for number in range(COMMITS):
        group_id, partition = f"consumers-{number % GROUPS}", number // GROUPS % OFFSETS_PER_GROUP
        value = OffsetAndMetadata(number, 3, "", NOW_MS)
        key_and_value = encode_record(OffsetRecord(group_id, "orders.events", partition, value))
        batch = build_batch([(*key_and_value, NOW_MS, None)])
        logs[group_partition(group_id, SHARDS)].append(batch, NOW_MS, lambda error: None)
    return logs


def loaded(logs: list[MemoryLog]) -> GroupCoordinator:
    """A coordinator that has read them."""
    with ThreadPoolExecutor(4) as executor:
        coordinator = coordinator_on(logs, executor)
        while any(runtime.state is not ShardState.ACTIVE for runtime in coordinator.shards.runtimes):
            coordinator.loop.run_pending()
            time.sleep(0.001)
    return coordinator


def check_restart(benchmark: Any, logs: list[MemoryLog], rounds: int) -> None:
    records = sum(log.next_offset - log.start_offset for log in logs)
    held = sum(log.bytes_held for log in logs)
    coordinator = benchmark.pedantic(lambda: loaded(logs), rounds=rounds)
    counts = coordinator.counts
    assert (counts.groups, counts.offsets) == (min(COMMITS, GROUPS), min(COMMITS, GROUPS * OFFSETS_PER_GROUP))
    seconds = benchmark.stats.stats.min if benchmark.stats else 0.0
    print(f"\n{COMMITS} commits left {records} records in {held / 1e6:.1f} MB: {seconds:.2f} s to load")
    assert seconds <= LOAD_SECONDS_MAX


@pytest.mark.benchmark(group="coordinator-restart")
def test_restart(benchmark: Any) -> None:
    check_restart(benchmark, committed_logs(), rounds=3)


@pytest.mark.benchmark(group="coordinator-restart")
def test_restart_uncompacted(benchmark: Any) -> None:
    check_restart(benchmark, uncompacted_logs(), rounds=1)  # the load begins to shorten them


@pytest.mark.benchmark(group="coordinator-requests")
@pytest.mark.parametrize("partitions", [1, 10])
def test_commit(benchmark: Any, partitions: int) -> None:
    coordinator = coordinator_on([MemoryLog() for _ in range(SHARDS)])
    member_id = join(coordinator, "consumers-0")
    request = commit_of(0, member_id, 7, range(partitions))

    def one() -> None:
        coordinator.commit_offsets(request)
        coordinator.loop.run_pending()

    benchmark(one)


@pytest.mark.benchmark(group="coordinator-requests")
def test_heartbeat(benchmark: Any) -> None:
    coordinator = coordinator_on([MemoryLog() for _ in range(SHARDS)])
    requests = [
        HeartbeatRequest(group_id=f"g-{group}", generation_id=1, member_id=join(coordinator, f"g-{group}"))
        for group in range(HEARTBEATS)
    ]

    def all_members() -> None:
        for request in requests:
            coordinator.heartbeat(request)
            coordinator.loop.run_pending()

    benchmark.pedantic(all_members, rounds=10, warmup_rounds=1)
