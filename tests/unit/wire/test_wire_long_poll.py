"""Parked fetches: what wakes them, when they time out, and that no wake-up is missed."""

from __future__ import annotations

import threading

import pytest

from kbroker._fast.partition.partition import Partition
from kbroker._fast.records.records import build_batch, build_control_batch
from kbroker.wire.server import WireOptions
from tests.unit.wire.wire_harness import (
    LONG_MS,
    MIB,
    Client,
    batch,
    fetch_request,
    fetched,
    produce_request,
    produced,
    until,
    values,
    wire_broker,
)


def test_an_append_wakes_a_parked_fetch(tmp_path):
    with wire_broker(tmp_path) as broker, Client(broker) as consumer, Client(broker) as producer:
        consumer.send(1, 11, fetch_request(("t", 0, 0), max_wait_ms=LONG_MS))
        until(lambda: broker.reactor.parked_count == 1)
        producer.ask(0, 9, produce_request(batch(b"a")))
        assert values(fetched(consumer.receive()[1]).records) == [b"a"]
        assert broker.reactor.parked_count == 0
        assert len(broker.logs.by_name["t"].partitions[0].waiters) == 0


def test_a_fetch_waits_for_its_min_bytes(tmp_path):
    with wire_broker(tmp_path) as broker, Client(broker) as consumer, Client(broker) as producer:
        consumer.send(1, 11, fetch_request(("t", 0, 0), max_wait_ms=LONG_MS, min_bytes=1000))
        producer.ask(0, 9, produce_request(batch(b"a")))
        until(lambda: broker.reactor.parked_count == 1)
        producer.ask(0, 9, produce_request(batch(b"b" * 1000)))
        assert len(values(fetched(consumer.receive()[1]).records)) == 2


def test_a_fetch_that_times_out_returns_what_there_is(tmp_path):
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        client.ask(0, 9, produce_request(batch(b"a")))
        client.send(1, 11, fetch_request(("t", 0, 0), max_wait_ms=LONG_MS, min_bytes=1000))
        until(lambda: broker.reactor.parked_count == 1)
        broker.reactor.clock_offset_ms += LONG_MS
        broker.reactor.submit(lambda: None)
        assert values(fetched(client.receive()[1]).records) == [b"a"]


def test_a_later_request_ends_the_wait(tmp_path):
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        fetch_id = client.send(1, 11, fetch_request(("t", 0, 0), max_wait_ms=LONG_MS))
        until(lambda: broker.reactor.parked_count == 1)
        produce_id = client.send(0, 9, produce_request(batch(b"a")))
        first, second = client.receive(), client.receive()
        assert (first[0], second[0]) == (fetch_id, produce_id)
        assert values(fetched(first[1]).records) == []
        assert produced(second[1]).base_offset == 0


def test_a_later_fetch_ends_the_wait(tmp_path):
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        request = fetch_request(("t", 0, 0), max_wait_ms=LONG_MS)
        client.socket.sendall(b"".join(client.frame(1, 11, request) for _ in range(5)))
        for _ in range(4):
            client.receive()
        until(lambda: broker.reactor.parked_count == 1)


def test_a_fetch_received_with_a_produce_starts_after_its_answer(tmp_path):
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        first = client.frame(0, 9, produce_request(batch(b"v")))
        client.socket.sendall(first + client.frame(1, 11, fetch_request(("t", 0, 0), max_wait_ms=LONG_MS)))
        assert produced(client.receive()[1]).base_offset == 0
        assert values(fetched(client.receive()[1]).records) == [b"v"]


def test_a_closed_connection_cancels_its_fetch(tmp_path):
    with wire_broker(tmp_path) as broker:
        with Client(broker) as client:
            client.send(1, 11, fetch_request(("t", 0, 0), max_wait_ms=LONG_MS))
            until(lambda: broker.reactor.parked_count == 1)
        until(lambda: broker.reactor.parked_count == 0 and broker.server.connection_count == 0)
        assert len(broker.logs.by_name["t"].partitions[0].waiters) == 0


def test_no_wake_up_is_missed(tmp_path):
    """Each consumer asks for the next offset with a max wait longer than the test."""
    rounds, consumers = 300, 4
    with wire_broker(tmp_path, options=WireOptions(reactors=2)) as broker:
        failures: list[BaseException] = []

        def consume() -> None:
            try:
                with Client(broker) as client:
                    offset = 0
                    while offset < rounds:
                        answer = fetched(client.ask(1, 11, fetch_request(("t", 0, offset), max_wait_ms=LONG_MS)))
                        got = values(answer.records)
                        assert got, "the wait ended without data"
                        offset += len(got)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=consume) for _ in range(consumers)]
        for thread in threads:
            thread.start()
        with Client(broker) as producer:
            for i in range(rounds):
                producer.ask(0, 9, produce_request(batch(b"%d" % i)))
        for thread in threads:
            thread.join(LONG_MS / 1000)
            assert not thread.is_alive()
        assert not failures


def test_a_thousand_fetches_are_parked(tmp_path):
    with wire_broker(tmp_path) as broker:
        clients = [Client(broker) for _ in range(1000)]
        try:
            for client in clients:
                client.send(1, 11, fetch_request(("t", 0, 0), max_wait_ms=LONG_MS))
            until(lambda: broker.reactor.parked_count == 1000)
            with Client(broker) as producer:
                producer.ask(0, 9, produce_request(batch(b"a")))
            for client in clients:
                assert values(fetched(client.receive()[1]).records) == [b"a"]
        finally:
            for client in clients:
                client.socket.close()


class ColdReader:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple] = []

    def request(self, log, offset, upper, max_bytes, callback) -> None:
        self.asked.append((offset, callback))


def test_a_fetch_waits_for_cold_data_and_serves_hot_data_first(tmp_path):
    cold = ColdReader()
    with wire_broker(tmp_path, {"t": 2}, cold_reader=cold) as broker, Client(broker) as client:
        partition = broker.logs.by_name["t"].partitions[0]
        partition.set_next_offset(10)  # offsets 0 to 9 are only in objects
        stored = batch(*(b"%d" % i for i in range(10)))
        client.send(1, 11, fetch_request(("t", 0, 0), max_wait_ms=LONG_MS))
        until(lambda: cold.asked)
        cold.asked[0][1]([stored])
        assert len(values(fetched(client.receive()[1]).records)) == 10
        client.ask(0, 9, produce_request(batch(b"hot"), partition=1))
        answer = client.ask(1, 11, fetch_request(("t", 0, 0), ("t", 1, 0), max_wait_ms=LONG_MS))
        assert [len(values(p.records)) for p in answer.responses[0].partitions] == [0, 1]
        cold.asked[1][1](56)  # too late for that fetch: nothing happens
        client.send(1, 11, fetch_request(("t", 0, 0), max_wait_ms=LONG_MS))
        until(lambda: len(cold.asked) == 3)
        cold.asked[2][1](56)
        assert fetched(client.receive()[1]).error_code == 56


def transactional(base_offset, count, producer_id=7):
    records = [(None, b"%d" % i, 0, None) for i in range(count)]
    return build_batch(
        records, base_offset=base_offset, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True
    )


def test_a_cold_read_is_answered_with_the_transactions_aborted_when_it_began(tmp_path):
    cold = ColdReader()
    with wire_broker(tmp_path, cold_reader=cold) as broker, Client(broker) as client:
        partition = broker.logs.by_name["t"].partitions[0]
        partition.set_next_offset(20)  # offsets 0 to 19 are only in objects
        partition.producers.aborted.restore([(7, 0, 9, 10), (8, 3, 11, 12)])
        request = fetch_request(("t", 0, 0), isolation_level=1, max_wait_ms=LONG_MS)
        client.send(1, 11, request)
        until(lambda: cold.asked)
        partition.producers.aborted.forget([9])  # compaction has replaced the object that is being read
        cold.asked[0][1]([transactional(0, 9), transactional(12, 2, 8)])
        (told,) = fetched(client.receive()[1]).aborted_transactions
        assert (told.producer_id, told.first_offset) == (7, 0)
        client.send(1, 11, request)
        until(lambda: len(cold.asked) == 2)
        cold.asked[1][1]([batch(b"kept")])
        assert fetched(client.receive()[1]).aborted_transactions == []


def test_aborted_transactions_that_compaction_removed_are_not_answered(tmp_path):
    """Without their marker a client would skip what the same producer has committed since."""
    cold = ColdReader()
    with wire_broker(tmp_path, cold_reader=cold) as broker, Client(broker) as client:
        partition = broker.logs.by_name["t"].partitions[0]
        partition.set_next_offset(30)
        partition.producers.aborted.restore([(7, 2, 5, 6), (7, 15, 19, 20)])
        client.send(1, 11, fetch_request(("t", 0, 0), isolation_level=1, max_wait_ms=LONG_MS))
        until(lambda: cold.asked)
        marker = build_control_batch(
            0, producer_id=7, producer_epoch=0, coordinator_epoch=1, timestamp_ms=0, base_offset=5
        )
        emptied = bytearray(transactional(3, 1))
        emptied[57:61] = bytes(4)
        later = [transactional(8, 3), transactional(16, 2), transactional(22, 1)]
        cold.asked[0][1]([batch(b"before") + bytes(emptied) + marker, b"".join(later)])
        (told,) = fetched(client.receive()[1]).aborted_transactions
        assert (told.producer_id, told.first_offset) == (7, 15)


@pytest.mark.parametrize(("version", "error"), [(4, 6), (5, 6), (6, 56), (12, 56)])
def test_clients_without_the_storage_error_are_sent_to_the_leader(tmp_path, version, error):
    cold = ColdReader()
    with wire_broker(tmp_path, cold_reader=cold) as broker, Client(broker) as client:
        broker.logs.by_name["t"].partitions[0].set_next_offset(10)
        client.send(1, version, fetch_request(("t", 0, 0), max_wait_ms=LONG_MS))
        until(lambda: cold.asked)
        cold.asked[0][1](56)
        assert fetched(client.receive()[1]).error_code == error


@pytest.mark.parametrize("answered", ["before", "after"])
def test_bytes_of_a_deleted_topic_are_not_served_under_the_name_of_a_new_one(tmp_path, answered):
    cold = ColdReader()
    with wire_broker(tmp_path, cold_reader=cold) as broker, Client(broker) as client:
        old = broker.logs.by_name["t"].partitions[0]
        old.set_next_offset(10)  # offsets 0 to 9 are only in objects
        client.send(1, 11, fetch_request(("t", 0, 0), max_wait_ms=LONG_MS))
        until(lambda: len(cold.asked) == 1)

        def replace():
            """On the I/O thread: the topic is deleted and created again before the parked fetch gets its turn."""
            if answered == "before":
                cold.asked[0][1]([batch(b"old")])
            new = Partition(broker.wal, "t", bytes(16), 0, 7, 1)
            new.set_next_offset(10)  # by now as long, and in objects too
            old.mark_deleted()
            old.resign()
            old.waiters.wake()
            old.drop()
            broker.logs.by_name["t"].partitions[0] = new

        broker.reactor.submit(replace)
        until(lambda: len(cold.asked) == 2)
        if answered == "after":
            cold.asked[0][1]([batch(b"old")])
        cold.asked[1][1]([batch(b"new")])
        assert values(fetched(client.receive()[1]).records) == [b"new"]


@pytest.mark.parametrize(("slots", "given"), [(0, 0), (1, 1), (2, 2), (1000, 3)])
def test_sessions_are_bounded(tmp_path, slots, given):
    options = WireOptions(fetch_sessions_max=slots)
    with wire_broker(tmp_path, options=options) as broker, Client(broker) as client:
        opened = [client.ask(1, 12, fetch_request(("t", 0, 0), session=(0, 0))).session_id for _ in range(3)]
        assert sum(session > 0 for session in opened) == given


def test_incremental_fetch_sessions(tmp_path):
    from kbroker.protocol.apis.records.k01_fetch import ForgottenTopic

    with wire_broker(tmp_path, {"t": 3}) as broker, Client(broker) as client:
        parts = [("t", index, 0) for index in range(3)]
        opened = client.ask(1, 12, fetch_request(*parts, session=(0, 0)))
        session = opened.session_id
        assert session > 0
        assert len(opened.responses[0].partitions) == 3
        assert client.ask(1, 12, fetch_request(session=(session, 1))).responses == []
        client.ask(0, 9, produce_request(batch(b"a"), partition=1))
        changed = client.ask(1, 12, fetch_request(session=(session, 2)))
        assert [p.partition_index for p in changed.responses[0].partitions] == [1]
        assert values(fetched(changed).records) == [b"a"]
        moved = client.ask(1, 12, fetch_request(("t", 1, 1), session=(session, 3)))
        assert moved.responses == []
        gone = fetch_request(session=(session, 4), forgotten=[ForgottenTopic(topic="t", partitions=[1])])
        client.ask(0, 9, produce_request(batch(b"b"), partition=1))
        assert client.ask(1, 12, gone).responses == []
        assert client.ask(1, 12, fetch_request(session=(session, 9))).error_code == 71
        assert client.ask(1, 12, fetch_request(session=(session + 1, 1))).error_code == 70
        assert client.ask(1, 13, fetch_request(session=(session, 5))).error_code == 106
        closed = client.ask(1, 12, fetch_request(*parts, session=(session, -1)))
        assert (closed.session_id, len(closed.responses[0].partitions)) == (0, 3)
        assert client.ask(1, 12, fetch_request(session=(session, 5))).error_code == 70


@pytest.mark.parametrize(
    ("busy_bytes", "large_bytes", "partition_max_bytes"),
    [(100_000, 1_000_000, MIB), (1_000, 1_047_900, MIB), (100_000, 1_000_000, 50 * MIB)],
)
def test_a_large_batch_next_to_a_busy_partition_is_served(tmp_path, busy_bytes, large_bytes, partition_max_bytes):
    """KIP-74: a partition whose data did not fit comes first the next time."""
    with wire_broker(tmp_path, {"t": 2}, arena_bytes=32 * MIB) as broker, Client(broker) as client:
        large = batch(bytes(large_bytes))
        assert produced(client.ask(0, 9, produce_request(large, partition=1))).error_code == 0
        options = {"partition_max_bytes": partition_max_bytes, "max_bytes": 50 * MIB}
        session, epoch = 0, 0
        for next_offset in range(3):
            client.ask(0, 9, produce_request(batch(bytes(busy_bytes))))
            asked = [("t", 0, next_offset)] + ([] if session else [("t", 1, 0)])
            answer = client.ask(1, 12, fetch_request(*asked, session=(session, epoch), **options))
            session, epoch = answer.session_id, epoch + 1
            found = {part.partition_index: part for part in answer.responses[0].partitions}
            if 1 in found and found[1].records:
                assert values(found[1].records) == [bytes(large_bytes)]
                break
        else:
            pytest.fail("the large batch was never served")


def test_a_session_is_closed_when_it_grows_beyond_what_one_request_may_ask_for(tmp_path):
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        session = client.ask(1, 12, fetch_request(("t", 0, 0), session=(0, 0))).session_id
        for epoch in range(1, 9):
            grown = [("unknown", epoch * 40_000 + number, 0) for number in range(40_000)]
            answer = client.ask(1, 12, fetch_request(*grown, session=(session, epoch)))
            if answer.error_code:
                break
        assert (answer.error_code, epoch) == (70, 5)
        assert client.ask(1, 12, fetch_request(session=(session, 6))).error_code == 70


def test_a_parked_session_fetch_sees_a_topic_that_appears(tmp_path):
    with wire_broker(tmp_path, {"t": 1}) as broker, Client(broker) as client:
        assert fetched(client.ask(1, 12, fetch_request(("later", 0, 0), max_wait_ms=LONG_MS))).error_code == 3
        broker.logs.by_name["later"] = broker.logs.by_name["t"]
        assert fetched(client.ask(1, 12, fetch_request(("later", 0, 0)))).error_code == 0
