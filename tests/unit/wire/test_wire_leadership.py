"""Produce and Fetch of partitions that are led elsewhere, or whose leadership ends while requests wait (KIP-951)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kbroker._fast.partition.partition import Partition
from kbroker.log.leaders import Leader, Node
from tests.reference.wal_harness import SyncGate
from tests.unit.wire.wire_harness import (
    LONG_MS,
    Client,
    WireBroker,
    batch,
    fetch_request,
    fetched,
    produce_many,
    produce_request,
    produced,
    until,
    values,
    wire_broker,
)

NOT_LEADER = 6


class Elsewhere:
    """Leaders of a cluster in which broker 7 leads what this broker does not, in epoch 9."""

    def __init__(self) -> None:
        self.found: Leader | None = Leader(7, 9)
        self.listeners: list[tuple[str, int]] = []

    def leader(self, topic_id: bytes, index: int) -> Leader | None:
        return self.found

    def epochs(self, topic_id: bytes, count: int) -> list[int]:
        raise NotImplementedError

    def nodes(self, listener: tuple[str, int]) -> Sequence[Node]:
        self.listeners.append(listener)
        return [Node(7, "b" * 200, 9093, "rack-b"), Node(8, "other", 9094, None), Node(9, "without.rack", 9095, None)]


def resign(broker: WireBroker, *partitions: Partition) -> None:
    for partition in partitions:
        partition.resign()
        partition.waiters.wake()
    broker.wal.commits.fail_closed()
    broker.wal.object_commits.fail_closed()


def partition_of(broker: WireBroker, index: int = 0) -> Partition:
    return broker.logs.by_name["t"].partitions[index]


def leader_in(part: Any) -> tuple[int, int] | None:
    """(id, epoch) that the answer of a partition names."""
    leader = part.current_leader
    return None if leader is None or leader.leader_epoch < 0 else (leader.leader_id, leader.leader_epoch)


def named(answer: Any) -> list[tuple[int, str, int, str | None]]:
    return [(node.node_id, node.host, node.port, node.rack) for node in answer.node_endpoints]


BROKER_7 = [(7, "b" * 200, 9093, "rack-b")]


@pytest.mark.parametrize("version", range(3, 13))
def test_produce_names_the_leader_of_the_partitions_that_are_led_elsewhere(tmp_path: Path, version: int) -> None:
    leaders = Elsewhere()
    with wire_broker(tmp_path, {"t": 4}, leaders=leaders) as broker, Client(broker) as client:
        resign(broker, partition_of(broker, 1), partition_of(broker, 3))
        request = produce_many([("t", [(index, batch(b"v")) for index in range(4)])])
        answer = client.ask(0, version, request)
        parts = answer.responses[0].partition_responses
        assert [part.error_code for part in parts] == [0, NOT_LEADER, 0, NOT_LEADER]
        assert [part.base_offset for part in parts] == [0, -1, 0, -1]
        elsewhere = (7, 9) if version >= 10 else None
        assert [leader_in(part) for part in parts] == [None, elsewhere, None, elsewhere]
        assert named(answer) == (BROKER_7 if version >= 10 else [])
        assert leaders.listeners == ([("advertised", 9092)] if version >= 10 else [])


def test_answers_name_no_leader_where_there_is_none(tmp_path: Path) -> None:
    leaders = Elsewhere()
    leaders.found = None
    with wire_broker(tmp_path, leaders=leaders) as broker, Client(broker) as client:
        resign(broker, partition_of(broker))
        answer = client.ask(0, 12, produce_request(batch(b"v")))
        assert (produced(answer).error_code, leader_in(produced(answer))) == (NOT_LEADER, None)
        assert answer.node_endpoints == []
        fetch = client.ask(1, 12, fetch_request(("t", 0, 0), max_wait_ms=LONG_MS))
        assert (fetched(fetch).error_code, leader_in(fetched(fetch))) == (NOT_LEADER, None)


@pytest.mark.parametrize("version", [11, 12, 15, 16, 17])
def test_a_parked_fetch_is_told_the_leader_when_the_leadership_ends(tmp_path: Path, version: int) -> None:
    with wire_broker(tmp_path, {"t": 2}, leaders=Elsewhere()) as broker, Client(broker) as client:
        topic: Any = "t" if version < 13 else broker.logs.by_name["t"].topic_id
        client.send(1, version, fetch_request((topic, 0, 0), (topic, 1, 0), max_wait_ms=LONG_MS))
        until(lambda: len(partition_of(broker, 1).waiters) == 1)
        resign(broker, partition_of(broker, 1))
        _, answer = client.receive()
        parts = {part.partition_index: part for part in answer.responses[0].partitions}
        assert (parts[0].error_code, parts[1].error_code) == (0, NOT_LEADER)
        assert parts[1].high_watermark == -1
        assert leader_in(parts[1]) == ((7, 9) if version >= 16 else None)
        assert named(answer) == (BROKER_7 if version >= 16 else [])


def test_a_fetch_with_an_old_epoch_is_told_where_the_leader_is(tmp_path: Path) -> None:
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        topic_id = broker.logs.by_name["t"].topic_id
        answer = client.ask(1, 16, fetch_request((topic_id, 0, 0), leader_epoch=0))
        assert (fetched(answer).error_code, leader_in(fetched(answer))) == (74, (0, 1))
        assert named(answer) == [(0, "advertised", 9092, None)]


def test_a_fetch_session_goes_on_with_the_next_leadership(tmp_path: Path) -> None:
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        client.ask(0, 9, produce_request(batch(b"old")))
        opened = client.ask(1, 11, fetch_request(("t", 0, 1), session=(0, 0)))
        old = partition_of(broker)
        resign(broker, old)
        refused = client.ask(1, 11, fetch_request(session=(opened.session_id, 1)))
        assert fetched(refused).error_code == NOT_LEADER
        new = Partition(broker.wal, "t", old.topic_id, 0, 7, 2, next_offset=1)
        broker.logs.by_name["t"].partitions[0] = new
        assert produced(client.ask(0, 9, produce_request(batch(b"new")))).error_code == 0
        answer = client.ask(1, 11, fetch_request(session=(opened.session_id, 2), max_wait_ms=LONG_MS))
        assert values(fetched(answer).records) == [b"new"]


def test_a_parked_fetch_waits_for_no_partition_that_has_just_been_replaced(tmp_path: Path) -> None:
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        old = partition_of(broker)
        client.send(1, 11, fetch_request(("t", 0, 0), max_wait_ms=LONG_MS))
        until(lambda: len(old.waiters) == 1)

        def replace() -> None:
            """On the I/O thread: this broker leads it once more before the fetch gets its turn."""
            old.resign()
            old.waiters.wake()
            broker.logs.by_name["t"].partitions[0] = Partition(broker.wal, "t", old.topic_id, 0, 7, 2)

        broker.reactor.submit(replace)
        until(lambda: len(partition_of(broker).waiters) == 1 and partition_of(broker) is not old)
        partition_of(broker).append_bytes(batch(b"new"), 0)
        assert values(fetched(client.receive()[1]).records) == [b"new"]


def test_produce_that_waits_for_the_log_fails_at_once(tmp_path: Path) -> None:
    with wire_broker(tmp_path, leaders=Elsewhere()) as broker, Client(broker) as client:
        with SyncGate(broker.wal.faults) as gate:
            client.send(0, 12, produce_request(batch(b"v")))
            gate.await_sync()
            resign(broker, partition_of(broker))
            _, answer = client.receive()  # while the sync hangs
        part = produced(answer)
        assert (part.error_code, part.base_offset) == (NOT_LEADER, -1)
        assert leader_in(part) == (7, 9)
        assert named(answer) == BROKER_7


def test_produce_waits_for_the_partitions_that_are_still_led(tmp_path: Path) -> None:
    with wire_broker(tmp_path, {"t": 3}, leaders=Elsewhere()) as broker, Client(broker) as client:
        with SyncGate(broker.wal.faults) as gate:
            client.send(0, 12, produce_many([("t", [(index, batch(b"v")) for index in range(3)])]))
            gate.await_sync()
            until(lambda: broker.wal.entries == 3)
            resign(broker, partition_of(broker, 1))
        _, answer = client.receive()
        parts = answer.responses[0].partition_responses
        assert [(part.error_code, part.base_offset) for part in parts] == [(0, 0), (NOT_LEADER, -1), (0, 0)]
        assert [leader_in(part) for part in parts] == [None, (7, 9), None]


def test_produce_to_a_topic_that_is_deleted_meanwhile_fails_at_once(tmp_path: Path) -> None:
    with wire_broker(tmp_path) as broker, Client(broker) as client, SyncGate(broker.wal.faults) as gate:
        client.send(0, 12, produce_request(batch(b"v")))
        gate.await_sync()
        partition_of(broker).mark_deleted()
        resign(broker, partition_of(broker))
        assert produced(client.receive()[1]).error_code == 3


def test_a_callback_is_told_once_that_the_leadership_has_ended(tmp_path: Path) -> None:
    told: list[int] = []
    with wire_broker(tmp_path, {"t": 2}) as broker, SyncGate(broker.wal.faults) as gate:
        for index in range(2):
            partition_of(broker, index).append_bytes(batch(b"v"), 0, lambda error, index=index: told.append(index))
        gate.await_sync()
        resign(broker, partition_of(broker, 1))
        assert told == [1]
        gate.open(10)
        assert broker.wal.sync(20)
        until(lambda: len(told) > 1)
        assert told == [1, 0]


def test_produce_that_waits_for_room_finds_out_at_once(tmp_path: Path) -> None:
    options = {"arena_bytes": 4 << 20, "segment_bytes": 1 << 20, "wal_bytes": 3 * ((1 << 20) + 4096)}
    with wire_broker(tmp_path, **options) as broker, Client(broker) as client:
        sent: list[int] = []
        while not broker.reactor.stalled_count:
            sent.append(client.send(0, 9, produce_request(batch(b"x" * 100_000), timeout_ms=1_000_000)))
            until(lambda: broker.wal.entries == len(sent) or broker.reactor.stalled_count)
        resign(broker, partition_of(broker))
        errors = [produced(client.receive()[1]).error_code for _ in sent]
        assert errors[-1] == NOT_LEADER
        assert broker.reactor.stalled_count == 0
