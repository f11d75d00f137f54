"""Why connections close, are refused or wait, as it is counted."""

from __future__ import annotations

import os
import resource
import socket
import struct
from pathlib import Path

import pytest

from kbroker.wire.connection_quotas import NO_LIMIT
from kbroker.wire.server import WireOptions
from tests.unit.wire.test_wire_gate import guarded
from tests.unit.wire.wire_harness import (
    MIB,
    Client,
    WireBroker,
    batch,
    fetch_request,
    later,
    produce_request,
    until,
    wire_broker,
)

IDLE_MS = 700_000  # longer than connections may be idle
NO_PROGRESS_MS = 61_000
WAL_FILES = 3  # that are ready before anything is appended


def closed(broker: WireBroker) -> dict[str, int]:
    """Counts by cause, those that are not 0."""
    return {cause: count for cause, count in broker.reactor.closed_by_cause.items() if count}


def test_a_client_that_ends_its_connection(tmp_path: Path) -> None:
    with wire_broker(tmp_path) as broker:
        Client(broker).socket.close()
        reset = Client(broker)
        reset.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        reset.socket.close()
        until(lambda: closed(broker) == {"client": 2})
        assert broker.reactor.connections_opened == 2


def test_an_idle_connection(tmp_path: Path) -> None:
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        until(lambda: broker.server.connection_count == 1)
        later(broker, IDLE_MS)
        assert client.is_closed()
        until(lambda: closed(broker) == {"idle": 1})


def test_a_request_that_is_not_sent_to_its_end(tmp_path: Path) -> None:
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        client.socket.sendall(struct.pack(">ih", 100, 0))
        until(lambda: broker.reactor.socket_bytes[0] == 6)
        later(broker, NO_PROGRESS_MS)
        assert client.is_closed()
        until(lambda: closed(broker) == {"no_progress": 1})


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">i", -1),
        struct.pack(">ihhi", 8, 0, 9, 1),  # Produce without a body
        struct.pack(">ih", 2, 12),
    ],
)
def test_what_is_no_request(tmp_path: Path, sent: bytes) -> None:
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        client.socket.sendall(sent)
        assert client.is_closed()
        until(lambda: closed(broker) == {"protocol_error": 1})


def test_a_handler_that_closes_the_connection(tmp_path: Path) -> None:
    with wire_broker(tmp_path, dispatch=lambda request: request.close_connection("a fault")) as broker:
        with Client(broker) as client:
            client.socket.sendall(struct.pack(">ihhi", 8, 12, 0, 7))
            assert client.is_closed()
        until(lambda: closed(broker) == {"internal_error": 1})


def test_a_request_that_the_gate_refuses(tmp_path: Path) -> None:
    with guarded(tmp_path) as (broker, client, _):
        client.send(0, 9, produce_request(batch(b"x")))
        assert client.is_closed()
        until(lambda: closed(broker) == {"not_authenticated": 1})


def test_a_failed_produce_without_acknowledgement(tmp_path: Path) -> None:
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        client.send(0, 9, produce_request(batch(b"a"), topic="unknown", acks=0))
        assert client.is_closed()
        until(lambda: closed(broker) == {"produce_failed": 1})
        assert broker.server.counters().error_counts() == {(0, 3): 1}


def test_a_client_that_does_not_take_its_answer(tmp_path: Path) -> None:
    with wire_broker(tmp_path, options=WireOptions(fetch_near_bytes=50 * MIB)) as broker, Client(broker) as client:
        for _ in range(20):
            client.ask(0, 9, produce_request(batch(b"x" * 900_000)))
        client.send(1, 11, fetch_request(("t", 0, 0), partition_max_bytes=50 * MIB))
        until(lambda: broker.reactor.counters.requests(1))
        later(broker, NO_PROGRESS_MS)
        until(lambda: closed(broker) == {"no_progress": 1})


def test_connections_over_a_lower_limit(tmp_path: Path) -> None:
    with wire_broker(tmp_path) as broker, Client(broker) as first, Client(broker):
        until(lambda: broker.server.connection_count == 2)
        later(broker, 1000)
        broker.server.limit_connections(1, NO_LIMIT, {})
        later(broker, 1000)
        until(lambda: closed(broker) == {"limit": 1})
        until(lambda: broker.reactor.pauses_by_cause["limit"] == 1)
        assert first.socket.fileno() >= 0


def test_connections_of_an_address_at_its_limit(tmp_path: Path) -> None:
    with wire_broker(tmp_path) as broker, Client(broker):
        until(lambda: broker.server.connection_count == 1)
        broker.server.limit_connections(100, 1, {})
        with Client(broker) as refused:
            assert refused.is_closed()
        until(lambda: broker.reactor.refused_by_cause == {"address_limit": 1, "broker_stop": 0, "no_memory": 0})
        assert broker.reactor.connections_opened == 1


def test_a_listener_without_descriptors_pauses(tmp_path: Path) -> None:
    with wire_broker(tmp_path) as broker, socket.socket() as late:
        until(lambda: len([*tmp_path.glob("*.wal")]) == WAL_FILES)  # none is made and closed meanwhile
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = max(int(fd) for fd in os.listdir("/proc/self/fd"))
        fill = [os.dup(late.fileno()) for _ in range(highest)]  # no number below is free
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(fill) + 1, hard))
        try:
            late.connect(broker.address)
            until(lambda: broker.reactor.pauses_by_cause["system"] > 0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in fill:
                os.close(fd)
        until(lambda: broker.server.connection_count == 1)


def test_a_stop(tmp_path: Path) -> None:
    with wire_broker(tmp_path) as broker:
        with Client(broker) as client:
            until(lambda: broker.server.connection_count == 1)
            assert broker.server.drain(10)
            assert client.is_closed()
        assert closed(broker) == {"broker_stop": 1}
