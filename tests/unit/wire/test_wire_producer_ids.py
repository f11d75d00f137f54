"""Produce with more producer ids than there is memory for: which wait, which are refused, which are served."""

from __future__ import annotations

from pathlib import Path

from kbroker._fast.partition.producer_pool import ProducerPool
from tests.unit.wire.wire_harness import Client, WireBroker, batch, produce_request, produced, until, wire_broker

NOT_ENOUGH_REPLICAS = 19
IDLE_MS = 10**12
SOON_MS = 30


def ask(client: Client, producer_id: int, sequence: int = 0, timeout_ms: int = SOON_MS, epoch: int = 0) -> int:
    data = batch(b"v", producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    return int(produced(client.ask(0, 9, produce_request(data, timeout_ms=timeout_ms))).error_code)


def known(broker: WireBroker) -> list[int]:
    return [state[0] for state in broker.logs.by_name["t"].partitions[0].producers.snapshot()]


def test_one_address_fills_a_quarter_of_the_pool(tmp_path: Path) -> None:
    pool = ProducerPool(16, min_idle_ms=IDLE_MS)
    with (
        wire_broker(tmp_path, producers=pool) as broker,
        Client(broker) as first,
        Client(broker, source="127.0.0.2") as other,
        Client(broker) as neighbour,
    ):
        assert [ask(first, n) for n in range(6)] == [0] * 4 + [NOT_ENOUGH_REPLICAS] * 2
        assert ask(neighbour, 7) == NOT_ENOUGH_REPLICAS  # the same address, whichever connection
        assert [ask(other, n) for n in range(10, 16)] == [0] * 4 + [NOT_ENOUGH_REPLICAS] * 2
        assert (pool.rows, pool.refusals, pool.evictions, pool.address_count) == (8, 5, 0, 2)
        assert [ask(first, n, sequence) for sequence in range(1, 7) for n in range(4)] == [0] * 24
        assert (pool.rows_of("127.0.0.1:1"), pool.rows_of("127.0.0.2:1")) == (4, 4)
        pool.min_idle_ms = 0
        assert [ask(first, n) for n in (20, 21)] == [0, 0]  # in the place of that address's own
        assert known(broker) == [2, 3, 10, 11, 12, 13, 20, 21]


def test_a_new_id_waits_for_room_while_known_ones_are_served(tmp_path: Path) -> None:
    pool = ProducerPool(4, min_idle_ms=IDLE_MS)
    with wire_broker(tmp_path, producers=pool) as broker, Client(broker) as waiting, Client(broker) as busy:
        assert ask(busy, 1) == 0
        data = batch(b"v", producer_id=2, producer_epoch=0, base_sequence=0)
        waiting.send(0, 9, produce_request(data))
        until(lambda: broker.reactor.parked_count == 1)
        assert [ask(busy, 1, sequence) for sequence in range(1, 9)] == [0] * 8
        assert broker.reactor.parked_count == 1
        pool.min_idle_ms = 0
        assert produced(waiting.receive()[1]).error_code == 0
        assert known(broker) == [2]
        assert (pool.refusals, pool.evictions) == (0, 1)


def test_a_waiting_produce_of_a_closed_connection_is_dropped(tmp_path: Path) -> None:
    pool = ProducerPool(4, min_idle_ms=IDLE_MS)
    with wire_broker(tmp_path, producers=pool) as broker, Client(broker) as client:
        assert ask(client, 1) == 0
        with Client(broker) as leaving:
            data = batch(b"v", producer_id=2, producer_epoch=0, base_sequence=0)
            leaving.send(0, 9, produce_request(data))
            until(lambda: broker.reactor.parked_count == 1)
        until(lambda: broker.reactor.parked_count == 0)
        pool.min_idle_ms = 0
        assert ask(client, 3) == 0
        assert known(broker) == [3]


def test_after_a_restart_rows_count_to_the_address_that_writes_next(tmp_path: Path) -> None:
    pool = ProducerPool(8, min_idle_ms=IDLE_MS)
    with wire_broker(tmp_path, producers=pool) as broker, Client(broker) as client:
        partition = broker.logs.by_name["t"].partitions[0]
        partition.producers.restore([(n, 0, -1, 0, -1, [(0, 0, 0, 0)]) for n in range(4)])
        assert (pool.rows, pool.rows_of("127.0.0.1:1")) == (4, 0)
        assert [ask(client, n, 1) for n in range(3)] == [0] * 3
        assert pool.rows_of("127.0.0.1:1") == 3
        assert ask(client, 9) == NOT_ENOUGH_REPLICAS
        with Client(broker, source="127.0.0.3") as other:
            assert ask(other, 9) == 0
            assert ask(other, 0, 2) == 0
        assert (pool.rows_of("127.0.0.1:1"), pool.rows_of("127.0.0.3:1")) == (3, 1)


def test_networks_of_ipv6_count_as_one_address(tmp_path: Path) -> None:
    pool = ProducerPool(16, min_idle_ms=IDLE_MS)
    with wire_broker(tmp_path, producers=pool, host="::1") as broker, Client(broker) as client:
        assert ask(client, 1) == 0
        assert (pool.rows_of("[::1]:5"), pool.rows_of("[::7%lo]:5"), pool.rows_of("[1::1]:5")) == (1, 1, 0)
