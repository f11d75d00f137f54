"""While a sync of the log hangs, its producers wait for it and everything else is served."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kbroker.protocol.apis.cluster.k18_api_versions import ApiVersionsRequest
from tests.reference.wal_harness import SyncGate
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


@contextmanager
def hung_sync(broker: WireBroker) -> Iterator[SyncGate]:
    """The log syncs the record b"slow", the next one of "t", until the context ends; then that has been answered."""
    with Client(broker) as producer:
        with SyncGate(broker.wal.faults) as gate:
            producer.send(0, 9, produce_request(batch(b"slow")))
            gate.await_sync()
            durable = broker.wal.durable_lsn
            yield gate
            assert broker.wal.durable_lsn == durable
        assert produced(producer.receive()[1]).error_code == 0


def read(client: Client, offset: int, max_wait_ms: int = 0) -> list[bytes]:
    return values(fetched(client.ask(1, 11, fetch_request(("t", 0, offset), max_wait_ms=max_wait_ms))).records)


def test_readers_and_new_connections_are_served_while_a_sync_hangs(tmp_path: Path) -> None:
    def dispatch(request: Any) -> None:
        request.complete_parts([b"yes"])

    with wire_broker(tmp_path, dispatch=dispatch) as broker, Client(broker) as reader:
        assert produced(reader.ask(0, 9, produce_request(batch(b"first")))).error_code == 0
        with hung_sync(broker):
            assert read(reader, 0) == [b"first"]
            with Client(broker) as comer:
                comer.send(18, 0, ApiVersionsRequest())
                assert comer.receive_frame().endswith(b"yes")
            assert read(reader, 1, max_wait_ms=1) == []
            parked = reader.send(1, 11, fetch_request(("t", 0, 1), max_wait_ms=LONG_MS))
        got, answer = reader.receive()
        assert (got, values(fetched(answer).records)) == (parked, [b"slow"])


def test_records_appended_during_a_sync_share_the_next(tmp_path: Path) -> None:
    with wire_broker(tmp_path) as broker, Client(broker) as other:
        with hung_sync(broker):
            for i in range(3):
                other.send(0, 9, produce_request(batch(b"%d" % i)))
            until(lambda: broker.wal.entries == 4)
        assert [produced(other.receive()[1]).base_offset for _ in range(3)] == [1, 2, 3]
        assert broker.wal.syncs == 2
        assert read(other, 0) == [b"slow", b"0", b"1", b"2"]


def test_connections_close_while_a_sync_hangs(tmp_path: Path) -> None:
    """Those that clients close, and those that the broker closes."""
    with wire_broker(tmp_path) as broker:
        gone = [Client(broker) for _ in range(10)]
        for client in gone:
            read(client, 0)
        with hung_sync(broker):
            for client in gone[:5]:
                client.send(18, 0, ApiVersionsRequest())  # no handlers
                assert client.is_closed()
            for client in gone[5:]:
                client.socket.close()
            until(lambda: broker.server.connection_count == 1)
        for client in gone[:5]:
            client.socket.close()


def test_readers_that_close_during_a_sync_delay_no_other_answer(tmp_path: Path) -> None:
    with wire_broker(tmp_path) as broker, Client(broker) as stays:
        stays.send(1, 11, fetch_request(("t", 0, 0), max_wait_ms=LONG_MS))
        leavers = [Client(broker) for _ in range(2)]
        for leaver in leavers:
            leaver.send(1, 11, fetch_request(("t", 0, 0), max_wait_ms=LONG_MS))
            leaver.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() resets
        until(lambda: broker.reactor.parked_count == 3)
        with hung_sync(broker):
            leavers[0].socket.close()
            until(lambda: broker.reactor.parked_count == 2)
        leavers[1].socket.close()
        assert values(fetched(stays.receive()[1]).records) == [b"slow"]
        until(lambda: broker.server.connection_count == 1)


def test_what_a_client_sent_before_it_closed_is_appended(tmp_path: Path) -> None:
    """More records than may be in flight at once: each starts when the one before is answered."""
    with wire_broker(tmp_path) as broker, Client(broker) as other:
        broker.reactor.in_flight_max = 1
        with hung_sync(broker):
            with Client(broker) as client:
                frames = [client.frame(0, 9, produce_request(batch(b"%d" % i))) for i in range(3)]
                client.socket.sendall(b"".join(frames))
            until(lambda: broker.wal.entries == 2)
            for _ in range(3):  # the reactor has seen the end by then
                read(other, 0)
            assert broker.wal.entries == 2
        for offset, value in enumerate([b"slow", b"0", b"1", b"2"]):
            assert read(other, offset, LONG_MS)[0] == value
        until(lambda: broker.server.connection_count == 1)


def test_a_failing_callback_delays_no_answer(tmp_path: Path) -> None:
    called = []

    def fails(code: int) -> None:
        called.append(code)
        raise RuntimeError("injected")

    with wire_broker(tmp_path, {"t": 1, "other": 1}) as broker, Client(broker) as producer:
        with hung_sync(broker):
            broker.logs.by_name["other"].partitions[0].append_bytes(batch(b"x"), 0, fails)
            producer.send(0, 9, produce_request(batch(b"next")))
            until(lambda: broker.wal.entries == 3)
        assert produced(producer.receive()[1]).base_offset == 1
        assert (called, broker.wal.syncs) == ([0], 2)


def test_a_failed_file_costs_no_answer(tmp_path: Path) -> None:
    with wire_broker(tmp_path) as broker, Client(broker) as producer:
        for i in range(3):
            broker.wal.faults.sync_count = 1
            assert produced(producer.ask(0, 9, produce_request(batch(b"%d" % i)))).base_offset == i
        assert (broker.wal.failed_files, broker.wal.failed) == (3, False)


def test_a_stop_does_not_wait_for_a_sync_that_hangs(tmp_path: Path) -> None:
    with wire_broker(tmp_path) as broker, SyncGate(broker.wal.faults) as gate, Client(broker) as client:
        client.send(0, 9, produce_request(batch(b"slow")))
        gate.await_sync()
        broker.server.stop_accepting()
        assert not broker.server.drain(0)
        broker.server.stop()
        assert client.is_closed()
        assert broker.wal.durable_lsn < broker.wal.head_lsn
