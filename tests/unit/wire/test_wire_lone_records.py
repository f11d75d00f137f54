"""Records one by one: the I/O thread commits them itself, and while that takes long another thread stands in for it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kbroker.protocol.apis.k18_api_versions import ApiVersionsRequest
from kbroker.wire import listener
from kbroker.wire.listener import WireOptions
from tests.unit.wire.wire_harness import (
    LONG_MS,
    Client,
    WireBroker,
    batch,
    fetch_request,
    fetched,
    produce_request,
    produced,
    until,
    values,
    wire_broker,
)

SO_TIMESTAMPNS = 35  # Linux, as the answers come
LONE_MAX = 5_000  # records, of which some must have come while both threads had time


def pause(seconds: float = 0.002) -> None:
    threading.Event().wait(seconds)


def lone_records(broker: WireBroker, step: Callable[[int], None], rounds: int = 30) -> int:
    """Calls step(0), step(1), ... with pauses until the I/O thread has committed so often; returns how many."""
    reactor: Any = broker.reactor
    end = reactor.commits + 2 * rounds
    for i in range(LONE_MAX):
        began = time.monotonic()
        step(i)
        if reactor.commits >= end:
            return i + 1
        pause(min(max(0.002, 3 * (time.monotonic() - began)), 0.1))
    raise AssertionError(f"{(end - reactor.commits) / 2} commits of the I/O thread are missing")


def some_lone_records(broker: WireBroker, producer: Client) -> None:
    lone_records(broker, lambda i: producer.ask(0, 9, produce_request(batch(b"y"))) and None, 5)


@contextlib.contextmanager
def meanwhile(action: Callable[[], None]) -> Iterator[None]:
    """Another thread calls action() again and again."""
    stopping = threading.Event()

    def repeat() -> None:
        while not stopping.is_set():
            action()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


@pytest.mark.parametrize("reactors", [1, 2])
def test_producer_and_consumer_are_answered(memory_path: Path, reactors: int) -> None:
    options = WireOptions(reactors=reactors)
    with wire_broker(memory_path, options=options) as broker, Client(broker) as producer:
        producer.ask(1, 11, fetch_request(("t", 0, 0)))  # so that it is the first reactor's
        with Client(broker) as consumer:

            def one(i: int) -> None:
                consumer.send(1, 11, fetch_request(("t", 0, i), max_wait_ms=LONG_MS))
                sent = producer.send(0, 9, produce_request(batch(b"%d" % i)))
                assert values(fetched(consumer.receive()[1]).records) == [b"%d" % i]
                got, answer = producer.receive()
                assert (got, produced(answer).error_code, produced(answer).base_offset) == (sent, 0, i)

            lone_records(broker, one)


def arrived_ns(client: Client) -> int | None:
    """When the first byte of what is to be received next came; None where the system has not begun to note that."""
    client.socket.recv(1, socket.MSG_PEEK)
    for _, _, stamp in client.socket.recvmsg(1, 64, socket.MSG_PEEK)[1]:
        seconds, ns = struct.unpack("qq", stamp)
        return int(seconds * 10**9 + ns)
    return None


@pytest.mark.parametrize("count", [1, 3, 4])
def test_readers_are_answered_before_the_producer(memory_path: Path, count: int) -> None:
    """As few as three: others wait while that goes on. With more, all get their answers all the same."""
    with wire_broker(memory_path) as broker, Client(broker) as producer, contextlib.ExitStack() as stack:
        readers = [stack.enter_context(Client(broker)) for _ in range(count)]
        for client in (producer, *readers):
            client.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        reactor: Any = broker.reactor
        compared = 0

        def one(i: int) -> None:
            nonlocal compared
            for reader in readers:
                reader.send(1, 11, fetch_request(("t", 0, i), max_wait_ms=LONG_MS))
            until(lambda: reactor.parked_count == count)
            commits = reactor.commits
            producer.send(0, 9, produce_request(batch(b"%d" % i)))
            came = [arrived_ns(client) for client in (*readers, producer)]
            for reader in readers:
                assert values(fetched(reader.receive()[1]).records) == [b"%d" % i]
            assert produced(producer.receive()[1]).base_offset == i
            stamps = [ns for ns in came if ns is not None]
            if reactor.commits == commits + 2 and count <= 3 and len(stamps) == len(came):
                assert max(stamps[:-1]) < stamps[-1]
                compared += 1

        lone_records(broker, one)
        assert compared > 5 or count > 3


def test_readers_leave_as_a_record_comes(memory_path: Path) -> None:
    with wire_broker(memory_path) as broker, Client(broker) as producer, Client(broker) as stays:

        def one(i: int) -> None:
            stays.send(1, 11, fetch_request(("t", 0, i), max_wait_ms=LONG_MS))
            leavers = [Client(broker) for _ in range(2)]
            for leaver in leavers:
                leaver.send(1, 11, fetch_request(("t", 0, i), max_wait_ms=LONG_MS))
                leaver.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            until(lambda: broker.reactor.parked_count == 3)
            leavers[i % 2].socket.close()
            producer.send(0, 9, produce_request(batch(b"%d" % i)))
            leavers[1 - i % 2].socket.close()
            assert values(fetched(stays.receive()[1]).records) == [b"%d" % i]
            assert produced(producer.receive()[1]).base_offset == i

        lone_records(broker, one)
        until(lambda: broker.reactor.connection_count == 2)


def test_what_came_behind_a_record_is_started(memory_path: Path) -> None:
    """A Fetch in the same piece of bytes as the Produce before it, which has to wait for that one's answer."""
    with wire_broker(memory_path) as broker, Client(broker) as client:

        def one(i: int) -> None:
            first = client.frame(0, 9, produce_request(batch(b"%d" % i)))
            client.socket.sendall(first + client.frame(1, 11, fetch_request(("t", 0, i), max_wait_ms=LONG_MS)))
            assert produced(client.receive()[1]).base_offset == i
            assert values(fetched(client.receive()[1]).records) == [b"%d" % i]

        lone_records(broker, one)


def test_what_a_peer_sent_before_it_closed_counts(memory_path: Path) -> None:
    """More records than may be in flight at once: those behind start as answers go."""
    with wire_broker(memory_path) as broker:
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


def test_who_waits_for_space_goes_on_with_what_came_behind(memory_path: Path) -> None:
    """Space comes while a commit is under way."""
    with wire_broker(memory_path) as broker, Client(broker) as client:
        broker.wal.faults.sync_us = 500

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

        lone_records(broker, one, 10)


def test_a_callback_that_fails_keeps_nobody_from_an_answer(memory_path: Path) -> None:
    """Every other time both appends are in one commit; what comes behind that is not the I/O thread's."""
    brokers: list[WireBroker] = []
    called = []

    def fails(code: int) -> None:
        called.append(code)
        raise RuntimeError("injected")

    def dispatch(request: Any) -> None:
        brokers[0].logs.by_name["other"].partitions[0].append_bytes(batch(b"x"), 0, fails)
        request.complete_parts([b"yes"])

    with wire_broker(memory_path, {"t": 1, "other": 1}, dispatch=dispatch) as broker, Client(broker) as producer:
        brokers.append(broker)

        def one(i: int) -> None:
            first = producer.frame(18, 0, ApiVersionsRequest()) if i % 2 else b""
            producer.socket.sendall(first + producer.frame(0, 9, produce_request(batch(b"%d" % i))))
            if first:
                assert producer.receive_frame().endswith(b"yes")
            assert produced(producer.receive()[1]).base_offset == i

        count = lone_records(broker, one)
        until(lambda: len(called) == count // 2)
        assert set(called) == {0}


def test_other_threads_are_heard_meanwhile(memory_path: Path) -> None:
    """Calls from other threads come at any moment."""
    with wire_broker(memory_path) as broker, Client(broker) as producer:
        heard = []

        def call() -> None:
            done = threading.Event()
            broker.reactor.submit(done.set)
            heard.append(done.wait(10))
            pause()

        def one(i: int) -> None:
            assert produced(producer.ask(0, 9, produce_request(batch(b"%d" % i)))).base_offset == i

        with meanwhile(call):
            lone_records(broker, one)
        assert set(heard) == {True}


def test_who_waits_for_the_log_is_told(memory_path: Path) -> None:
    with wire_broker(memory_path) as broker, Client(broker) as producer, ThreadPoolExecutor(1) as pool:

        def one(i: int) -> None:
            waits = pool.submit(broker.wal.wait_durable, broker.wal.durable_lsn + 1, 60)
            pause(0.001)
            assert produced(producer.ask(0, 9, produce_request(batch(b"%d" % i)))).base_offset == i
            assert waits.result(10)

        lone_records(broker, one)


@pytest.mark.parametrize("times", range(3))
def test_a_reactor_that_ends_leaves_nothing_behind(memory_path: Path, times: int) -> None:
    with wire_broker(memory_path) as broker:
        partition = broker.logs.by_name["t"].partitions[0]
        left = []

        def append_and_stop() -> None:
            partition.append_bytes(batch(b"x"), 0)
            left.append(broker.wal.left_to_io)
            broker.reactor._stop()

        with Client(broker) as producer:
            some_lone_records(broker, producer)
        pause(0.02)
        broker.server.stop_accepting()
        broker.reactor.submit(append_and_stop)
        until(lambda: bool(left))
        assert broker.wal.wait_durable(broker.wal.head_lsn, 10)


@pytest.mark.parametrize("times", range(3))
def test_a_broker_stops_in_the_middle(memory_path: Path, times: int) -> None:
    """What others append goes on."""
    with wire_broker(memory_path) as broker:
        partition = broker.logs.by_name["t"].partitions[0]
        durable = []

        def append() -> None:
            partition.append_bytes(batch(b"x"), 0, durable.append)
            pause()

        with Client(broker) as producer:
            some_lone_records(broker, producer)
        with meanwhile(append):
            until(lambda: len(durable) > 10)
            broker.server.stop_accepting()
            broker.server.stop()
            reached = broker.wal.durable_lsn
            until(lambda: broker.wal.durable_lsn > reached)


def test_a_file_that_fails_costs_no_answer(memory_path: Path) -> None:
    with wire_broker(memory_path) as broker, Client(broker) as producer:

        def one(i: int) -> None:
            if i % 5 == 4:
                broker.wal.faults.sync_count = 1
            assert produced(producer.ask(0, 9, produce_request(batch(b"%d" % i)))).base_offset == i

        lone_records(broker, one)
        assert broker.wal.failed_files
        assert not broker.wal.failed


@contextlib.contextmanager
def long_commit(broker: WireBroker, seconds: float = 1.0) -> Iterator[None]:
    """The I/O thread is in a commit that takes so long, of a record at the end of "t", and is stood in for. At the end
    the record has been answered."""
    with Client(broker) as producer:
        for _ in range(LONE_MAX):
            some_lone_records(broker, producer)
            before = broker.reactor.stand_ins
            broker.wal.faults.sync_us = int(seconds * 1e6)
            pause()
            producer.send(0, 9, produce_request(batch(b"long")))
            until(lambda: not broker.wal.faults.sync_us or broker.wal.head_lsn > broker.wal.durable_lsn)
            pause(0.1)
            broker.wal.faults.sync_us = 0
            if broker.reactor.stand_ins > before:
                break
            producer.receive()  # it was the log's thread's
        else:
            raise AssertionError("the log's thread has all long commits")
        yield
        assert produced(producer.receive()[1]).error_code == 0


def threads_of_calls(broker: WireBroker, count: int = 5) -> set[str]:
    """Where calls run now."""
    names: list[str] = []
    for i in range(count):
        broker.reactor.submit(lambda: names.append(threading.current_thread().name))
        until(lambda i=i: len(names) > i)  # type: ignore[misc]
    return set(names)


def test_others_are_served_during_a_long_commit(memory_path: Path) -> None:
    def dispatch(request: Any) -> None:
        request.complete_parts([b"yes"])

    with wire_broker(memory_path, dispatch=dispatch) as broker, Client(broker) as reader:
        with long_commit(broker, 2.0):
            durable = broker.wal.durable_lsn
            count = len(values(fetched(reader.ask(1, 11, fetch_request(("t", 0, 0)))).records))
            assert count > 5
            with Client(broker) as comer:
                comer.send(18, 0, ApiVersionsRequest())
                assert comer.receive_frame().endswith(b"yes")
            assert values(fetched(reader.ask(1, 11, fetch_request(("t", 0, count), max_wait_ms=1))).records) == []
            assert threads_of_calls(broker) == {"kbroker-io-stand-in"}
            assert broker.wal.durable_lsn == durable
            parked = reader.send(1, 11, fetch_request(("t", 0, count), max_wait_ms=LONG_MS))
        got, answer = reader.receive()
        assert (got, values(fetched(answer).records)) == (parked, [b"long"])
        assert threads_of_calls(broker) == {"kbroker-io-0"}


def test_records_that_come_during_a_long_commit_are_in_the_next(memory_path: Path) -> None:
    with wire_broker(memory_path) as broker, Client(broker) as other, Client(broker) as reader:
        with long_commit(broker):
            entries, syncs = broker.wal.entries, broker.wal.syncs
            for i in range(3):
                other.send(0, 9, produce_request(batch(b"%d" % i)))
            until(lambda: broker.wal.entries == entries + 3)
            assert broker.wal.syncs == syncs
        assert broker.wal.sync(10)
        assert broker.wal.syncs == syncs + 2
        offsets = [produced(other.receive()[1]).base_offset for _ in range(3)]
        assert offsets == list(range(offsets[0], offsets[0] + 3))
        records = values(fetched(reader.ask(1, 11, fetch_request(("t", 0, offsets[0] - 1)))).records)
        assert records == [b"long", b"0", b"1", b"2"]


def test_connections_end_during_a_long_commit(memory_path: Path) -> None:
    """Those that closed themselves, that are closed, and that the I/O thread was going to look at."""
    with wire_broker(memory_path) as broker:
        gone = [Client(broker) for _ in range(10)]
        for client in gone:
            client.ask(1, 11, fetch_request(("t", 0, 0)))
        with long_commit(broker):
            closed, durable = broker.reactor.connections_closed, broker.wal.durable_lsn
            for client in gone[:5]:
                client.send(18, 0, ApiVersionsRequest())  # no handlers
                assert client.is_closed()
            for client in gone[5:]:
                client.socket.close()
            until(lambda: broker.reactor.connections_closed == closed + 10)
            for client in gone[:5]:
                client.socket.close()
            assert broker.wal.durable_lsn == durable
        assert threads_of_calls(broker) == {"kbroker-io-0"}


def test_the_io_thread_takes_over_from_a_busy_stand_in(memory_path: Path) -> None:
    with wire_broker(memory_path) as broker, Client(broker) as reader:
        asked = 0

        def ask() -> None:
            nonlocal asked
            reader.ask(1, 11, fetch_request(("t", 0, 0)))
            asked += 1

        with contextlib.ExitStack() as asking:
            with long_commit(broker):
                durable = broker.wal.durable_lsn
                asking.enter_context(meanwhile(ask))
                until(lambda: asked > 10)
                assert broker.wal.durable_lsn == durable
            assert threads_of_calls(broker) == {"kbroker-io-0"}


def test_a_stop_does_not_wait_for_a_disk_that_hangs(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "STOP_SECONDS", 0.05)
    with wire_broker(memory_path) as broker, Client(broker) as other:
        other.ask(1, 11, fetch_request(("t", 0, 0)))
        durable = 0
        with contextlib.suppress(ConnectionError), long_commit(broker, 2.0):
            durable = broker.wal.durable_lsn
            broker.server.stop_accepting()
            broker.server.stop()
            assert other.is_closed()
            assert broker.wal.durable_lsn == durable
        until(lambda: not any(thread.name == "kbroker-io-0" for thread in threading.enumerate()))
        assert broker.wal.durable_lsn > durable > 0


@pytest.mark.parametrize("how", ["drain", "stop"])
def test_a_broker_stops_during_a_long_commit(memory_path: Path, how: str) -> None:
    with wire_broker(memory_path) as broker, Client(broker) as other:
        other.ask(1, 11, fetch_request(("t", 0, 0)))
        durable = 0
        with contextlib.suppress(ConnectionError), long_commit(broker):
            durable = broker.wal.durable_lsn
            broker.server.stop_accepting()
            assert how == "stop" or broker.server.drain(10)
            broker.server.stop()
            assert other.is_closed()
            assert broker.wal.durable_lsn > durable
        assert durable
