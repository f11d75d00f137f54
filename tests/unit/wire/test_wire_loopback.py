"""Connections over loopback are not paced, whatever the machine's congestion control is."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.storage.stores.http_connections import Connection, Place
from kbroker.wire.server import bind
from tests.unit.wire import wire_harness
from tests.unit.wire.wire_harness import Client, batch, produce_request, produced, wire_broker

ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


@pytest.fixture
def other() -> bytes:
    """A congestion control that this process may use and that is not reno."""
    names = [name for name in ALLOWED.read_text().split() if name != "reno"]
    if not names:
        pytest.skip("this machine has reno alone")
    return names[0].encode()


def control_of(connection: socket.socket) -> bytes:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


def paced_by(connection: socket.socket, name: bytes) -> socket.socket:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
    return connection


def sockets_to(peer: object) -> Iterator[socket.socket]:
    """This process's ends of connections to that address."""
    for fd in os.listdir("/proc/self/fd"):
        try:
            end = socket.socket(fileno=os.dup(int(fd)))
        except OSError:
            continue
        with end:
            try:
                found = end.getpeername() == peer
            except OSError:
                continue
            if found:
                yield end


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_accepted_connections_are_not_paced(tmp_path: Path, monkeypatch, other: bytes, host: str) -> None:
    try:
        listening = paced_by(bind(host, 0), other)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    monkeypatch.setattr(wire_harness, "bind", lambda *_: listening)
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        assert produced(client.ask(0, 9, produce_request(batch(b"a")))).error_code == 0
        assert [control_of(end) for end in sockets_to(client.socket.getsockname())] == [b"reno"]


def test_loopback_connections_to_the_store_are_not_paced(monkeypatch: pytest.MonkeyPatch, other: bytes) -> None:
    connect = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", lambda *a, **k: paced_by(connect(*a, **k), other))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        connection = Connection(Place(False, *listening.getsockname()), 5.0, 5.0)
        assert [control_of(end) for end in sockets_to(listening.getsockname())] == [b"reno"]
        connection.close()
