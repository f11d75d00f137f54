"""Records one by one: the log's thread answers them in the place of the I/O thread, which sleeps."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from wire_harness import (
    LONG_MS,
    Client,
    WireBroker,
    batch,
    fetch_request,
    fetched,
    later,
    produce_request,
    produced,
    until,
    values,
    wire_broker,
)

from kbroker.protocol.apis.k18_api_versions import ApiVersionsRequest
from kbroker.wire.listener import WireOptions

LONE_MAX = 5_000  # records, of which some must have come while both threads had time


def pause(seconds: float = 0.002) -> None:
    threading.Event().wait(seconds)


def lone_records(broker: WireBroker, step: Callable[[int], None], rounds: int = 30) -> int:
    """Calls step(0), step(1), ... with pauses until the log's thread has answered so often; returns how many."""
    reactor: Any = broker.reactor
    before = reactor.log_rounds
    for i in range(LONE_MAX):
        began = time.monotonic()
        step(i)
        if reactor.log_rounds >= before + rounds:
            return i + 1
        pause(min(max(0.002, 3 * (time.monotonic() - began)), 0.1))
    raise AssertionError(f"the log's thread has answered {reactor.log_rounds - before} times")


def lone_records_with(tmp_path: Path, callback: Callable[[WireBroker], None], called: list[Any]) -> None:
    """Lone records beside appends whose callback, some of the times the log's thread's, adds to `called` in the end."""
    starters = set()
    with wire_broker(tmp_path, {"t": 1, "other": 1}) as broker, Client(broker) as producer:
        other = broker.logs.by_name["other"].partitions[0]

        def durable(code: int) -> None:
            assert code == 0
            starters.add(threading.current_thread().name)
            callback(broker)

        def one(i: int) -> None:
            other.append_bytes(batch(b"x"), 0, durable)
            assert produced(producer.ask(0, 9, produce_request(batch(b"%d" % i)))).base_offset == i

        count = lone_records(broker, one)
        until(lambda: len(called) == count)
    assert any(name.startswith("wal") for name in starters)


@pytest.mark.parametrize("reactors", [1, 2])
def test_producer_and_consumer_are_answered(tmp_path: Path, reactors: int) -> None:
    options = WireOptions(reactors=reactors)
    with wire_broker(tmp_path, options=options) as broker, Client(broker) as producer:
        producer.ask(1, 11, fetch_request(("t", 0, 0)))  # so that it is the first reactor's
        with Client(broker) as consumer:

            def one(i: int) -> None:
                consumer.send(1, 11, fetch_request(("t", 0, i), max_wait_ms=LONG_MS))
                sent = producer.send(0, 9, produce_request(batch(b"%d" % i)))
                assert values(fetched(consumer.receive()[1]).records) == [b"%d" % i]
                got, answer = producer.receive()
                assert (got, produced(answer).error_code, produced(answer).base_offset) == (sent, 0, i)

            lone_records(broker, one)


def test_what_came_behind_a_record_is_started(tmp_path: Path) -> None:
    """A Fetch in the same piece of bytes as the Produce before it, which has to wait for that one's answer."""
    with wire_broker(tmp_path) as broker, Client(broker) as client:

        def one(i: int) -> None:
            first = client.frame(0, 9, produce_request(batch(b"%d" % i)))
            client.socket.sendall(first + client.frame(1, 11, fetch_request(("t", 0, i), max_wait_ms=LONG_MS)))
            assert produced(client.receive()[1]).base_offset == i
            assert values(fetched(client.receive()[1]).records) == [b"%d" % i]

        lone_records(broker, one)


def test_what_a_peer_sent_before_it_closed_counts(tmp_path: Path) -> None:
    """More records than may be in flight at once: those behind start as answers go, whoever answers."""
    with wire_broker(tmp_path) as broker:
        broker.reactor.in_flight_max = 1
        partition = broker.logs.by_name["t"].partitions[0]
        end = 0

        def one(i: int) -> None:
            nonlocal end
            with Client(broker) as client:
                frames = [client.frame(0, 9, produce_request(batch(b"%d" % n))) for n in range(3)]
                client.socket.sendall(b"".join(frames))
            end += 3
            until(lambda: partition.high_watermark() == end)

        lone_records(broker, one)


def test_who_waits_for_space_goes_on_with_what_came_behind(tmp_path: Path) -> None:
    """Space comes while the log's thread syncs: it must neither start the record that waited nor the one behind it."""
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        broker.wal.faults.sync_us = 5000  # time for the space to come

        def one(i: int) -> None:
            frames = [client.frame(0, 9, produce_request(batch(b"x" * size))) for size in (10, 5000, 10)]
            broker.wal.sync(10)
            broker.wal.admit(broker.wal.head_lsn + 4096)
            client.socket.sendall(b"".join(frames))
            until(lambda: broker.reactor.stalled_count == 1)
            broker.wal.keeper._waits_seen = broker.wal.append_waits  # so that nobody is told
            broker.wal.admit(None)
            for n in range(3):
                assert produced(client.receive()[1]).base_offset == 3 * i + n

        lone_records(broker, one)


def test_a_wait_that_such_a_round_shortens_ends_in_time(tmp_path: Path) -> None:
    """The I/O thread sleeps until the next deadline; a Fetch that it starts behind a record has one of its own."""
    with wire_broker(tmp_path) as broker, Client(broker) as client, Client(broker) as other:

        def one(i: int) -> None:
            first = client.frame(0, 9, produce_request(batch(b"%d" % i)))
            behind = client.frame(1, 11, fetch_request(("t", 0, i + 1), max_wait_ms=LONG_MS))
            client.socket.sendall(first + behind)
            assert produced(client.receive()[1]).base_offset == i
            until(lambda: broker.reactor.parked_count == 1)
            later(broker, LONG_MS)
            assert values(fetched(client.receive()[1]).records) == []
            other.ask(1, 11, fetch_request(("t", 0, 0)))

        lone_records(broker, one)


def test_a_callback_that_fails_keeps_nobody_from_an_answer(tmp_path: Path) -> None:
    with wire_broker(tmp_path, {"t": 1, "other": 1}) as broker, Client(broker) as producer:
        other = broker.logs.by_name["other"].partitions[0]
        called = []

        def fails(code: int) -> None:
            called.append(code)
            raise RuntimeError("injected")

        def one(i: int) -> None:
            other.append_bytes(batch(b"x"), 0, fails)
            assert produced(producer.ask(0, 9, produce_request(batch(b"%d" % i)))).base_offset == i

        count = lone_records(broker, one)
        until(lambda: len(called) == count)
        assert set(called) == {0}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="one core is all there is")
def test_threads_that_such_a_round_starts_run_on_any_core(tmp_path: Path) -> None:
    """Pools make their threads when they are first asked, and the log's thread is tied to a core."""
    cores: list[set[int]] = []

    def start_a_thread(broker: WireBroker) -> None:
        threading.Thread(target=lambda: cores.append(os.sched_getaffinity(0))).start()

    lone_records_with(tmp_path, start_a_thread, cores)
    assert {tuple(each) for each in cores} == {tuple(os.sched_getaffinity(os.getpid()))}


def test_calls_that_come_meanwhile_run_on_the_io_thread(tmp_path: Path) -> None:
    callees: list[str] = []

    def call(broker: WireBroker) -> None:
        def note() -> None:
            callees.append(threading.current_thread().name)

        thread = threading.Thread(target=broker.reactor.submit, args=(note,))
        thread.start()
        thread.join()

    lone_records_with(tmp_path, call, callees)
    assert not any(name.startswith("wal") for name in callees)


def test_a_connection_that_such_a_round_closes_may_be_sending(tmp_path: Path) -> None:
    """The I/O thread may have been woken for the very connection, and must not look at it once it is gone."""
    brokers: list[WireBroker] = []

    def dispatch(request: Any) -> None:
        partition = brokers[0].logs.by_name["t"].partitions[0]
        partition.append_bytes(batch(b"x"), 0, lambda code: request.close_connection("enough"))

    with wire_broker(tmp_path, dispatch=dispatch) as broker, Client(broker) as other:
        brokers.append(broker)
        closed = 0

        def one(i: int) -> None:
            nonlocal closed
            with Client(broker) as client:
                client.send(18, 0, ApiVersionsRequest())
                frame = client.frame(18, 0, ApiVersionsRequest())
                try:
                    while not broker.reactor.connections_closed > closed:
                        client.socket.sendall(frame)
                except ConnectionError:
                    pass
                assert client.is_closed()
                until(lambda: broker.reactor.connections_closed == i + 1)
                closed = i + 1
            assert values(fetched(other.ask(1, 11, fetch_request(("t", 0, i)))).records) == [b"x"]

        lone_records(broker, one)


def test_other_threads_are_heard_meanwhile(tmp_path: Path) -> None:
    """Calls and answers from other threads come at any moment of such a round."""
    with wire_broker(tmp_path) as broker, Client(broker) as producer:
        stopping = threading.Event()
        heard = 0

        def call() -> None:
            nonlocal heard
            while not stopping.is_set():
                done = threading.Event()
                broker.reactor.submit(done.set)
                assert done.wait(10)
                heard += 1
                pause()

        caller = threading.Thread(target=call)
        caller.start()
        try:

            def one(i: int) -> None:
                assert produced(producer.ask(0, 9, produce_request(batch(b"%d" % i)))).base_offset == i

            lone_records(broker, one)
        finally:
            stopping.set()
            caller.join()
        assert heard


@pytest.mark.parametrize("times", range(5))
def test_a_broker_stops_in_the_middle(tmp_path: Path, times: int) -> None:
    with wire_broker(tmp_path) as broker:
        stopping = threading.Event()
        partition = broker.logs.by_name["t"].partitions[0]
        durable = []

        def append() -> None:
            while not stopping.is_set():
                partition.append_bytes(batch(b"x"), 0, durable.append)
                pause()

        with Client(broker) as producer:
            lone_records(broker, lambda i: producer.ask(0, 9, produce_request(batch(b"y"))) and None, 5)
        appender = threading.Thread(target=append)
        appender.start()
        try:
            until(lambda: len(durable) > 10)
            broker.server.stop_accepting()
            broker.server.stop()
            rounds = broker.reactor.log_rounds
            reached = broker.wal.durable_lsn
            until(lambda: broker.wal.durable_lsn > reached)
            assert broker.reactor.log_rounds == rounds
        finally:
            stopping.set()
            appender.join()
