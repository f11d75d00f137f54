"""Clients that trickle, pile up, send nonsense or read nothing: each is bounded, and probes are answered meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from kbroker.admin import http_server
from kbroker.admin.http_server import (
    ANSWER_SECONDS,
    CONNECTIONS_MAX,
    HEAD_BYTES_MAX,
    LINGER_SECONDS,
    LOOPBACK_CONNECTIONS_MAX,
    REQUEST_SECONDS,
    UNSENT_BYTES_MAX,
    Answer,
    HttpServer,
)
from kbroker.clock import ManualClock
from kbroker.wire.server import bind

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: here\r\n\r\n"
LARGE = bytes(16 << 20)


class Served:
    """A server whose turns the test takes, on a clock that stands still."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.later: Future[Answer] = Future()
        listening = bind("127.0.0.1", 0)
        self.address = listening.getsockname()
        self.server = HttpServer(listening, self.answer, self.clock)
        self.clients: list[socket.socket] = []

    def answer(self, path: str, accept: str) -> Answer | Future[Answer]:
        return {
            "/livez": Answer(200, b"ok\n"),
            "/large": Answer(200, LARGE),
            "/accept": Answer(200, accept.encode()),
        }.get(path, self.later)

    def connect(self, sent: bytes = b"") -> socket.socket:
        client = socket.create_connection(self.address, 20)
        client.sendall(sent)
        self.clients.append(client)
        return client

    def turns(self, *, until: int | None = None) -> None:
        """All that can be done now; or until so many connections are open."""
        for _ in range(10 if until is None else 1000):
            self.server.turn(0 if until is None else 0.01)
            if until is not None and self.server.connection_count == until:
                return
        assert until is None, self.server.connection_count

    def read(self, client: socket.socket) -> bytes:
        """Everything until the server closes."""
        client.setblocking(False)
        received = b""
        for _ in range(1000):
            self.server.turn(0.01)
            try:
                piece = client.recv(1 << 20)
            except BlockingIOError:
                continue
            if not piece:
                client.close()
                return received
            received += piece
        raise AssertionError(f"not closed after {received[:200]!r}")

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.server.stop()


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


def body(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize(
    "request_bytes",
    [
        LIVEZ,
        b"GET /livez HTTP/1.0\r\n\r\n",
        b"\r\nGET /livez?verbose=1 HTTP/1.1\nHost: here\n\n",
        b"GET /livez HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
        b"GET /livez HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n",
        LIVEZ * 50,
        LIVEZ + bytes(range(256)) * 100,
    ],
)
def test_well_formed_requests_are_answered(served: Served, request_bytes: bytes) -> None:
    answer = served.read(served.connect(request_bytes))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nConnection: close\r\n" in answer
    assert body(answer) == b"ok\n"


def test_head_has_no_body(served: Served) -> None:
    answer = served.read(served.connect(b"HEAD /livez HTTP/1.1\r\n\r\n"))
    assert b"\r\nContent-Length: 3\r\n" in answer
    assert body(answer) == b""


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /livez HTTP/1.1\r\n\r\n", 501),
        (b"GET /livez\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
        (b"GET  /livez HTTP/1.1\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * HEAD_BYTES_MAX, 431),
        (b"\n" * (HEAD_BYTES_MAX + 1), 431),
    ],
)
def test_malformed_requests_are_refused(served: Served, request_bytes: bytes, status: int) -> None:
    assert served.read(served.connect(request_bytes)).startswith(b"HTTP/1.1 %d " % status)


def test_a_request_has_five_seconds_however_slowly_it_arrives(served: Served) -> None:
    client = served.connect(b"GET /livez HTTP/1.1\r\n")
    served.turns(until=1)
    for _ in range(9):
        served.clock.advance(REQUEST_SECONDS / 10)
        client.sendall(b"X: y\r\n")
        served.turns()
        assert served.server.connection_count == 1
    served.clock.advance(REQUEST_SECONDS / 10)
    served.turns(until=0)


def test_a_new_connection_replaces_the_oldest(served: Served) -> None:
    held = [served.connect(b"GET ") for _ in range(LOOPBACK_CONNECTIONS_MAX)]
    served.turns(until=LOOPBACK_CONNECTIONS_MAX)
    assert body(served.read(served.connect(LIVEZ))) == b"ok\n"
    assert held[0].recv(1) == b""
    held[1].sendall(b"/livez HTTP/1.1\r\n\r\n")  # the second oldest is still there
    assert body(served.read(held[1])) == b"ok\n"


@pytest.mark.parametrize(
    ("header", "accept"),
    [
        (b"", b""),
        (b"Accept: text/plain\r\n", b" text/plain"),
        (b"ACCEPT:a/b;q=0.5\nX-Accept: c/d\n", b"a/b;q=0.5"),
        (b"Accept: a/b\r\nAccept: c/d\r\n", b" a/b, c/d"),
    ],
)
def test_the_accept_header_is_told(served: Served, header: bytes, accept: bytes) -> None:
    assert body(served.read(served.connect(b"GET /accept HTTP/1.1\r\n" + header + b"\r\n"))) == accept


def test_a_connection_that_waits_for_its_answer_is_not_replaced(served: Served) -> None:
    scrape = served.connect(b"GET /later HTTP/1.1\r\n\r\n")
    served.turns(until=1)
    for _ in range(3 * LOOPBACK_CONNECTIONS_MAX):
        served.connect(b"GET ")
        served.turns()
    assert served.server.connection_count == LOOPBACK_CONNECTIONS_MAX
    served.later.set_result(Answer(200, b"gathered\n"))
    assert body(served.read(scrape)) == b"gathered\n"


def test_remote_connections_do_not_replace_local_ones(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "is_loopback_host", lambda host: False)
    for _ in range(2 * CONNECTIONS_MAX):
        served.connect(b"GET /later HTTP/1.1\r\n\r\n")
        served.turns()
    assert served.server.connection_count == CONNECTIONS_MAX
    monkeypatch.setattr(http_server, "is_loopback_host", lambda host: True)
    assert body(served.read(served.connect(LIVEZ))) == b"ok\n"
    served.turns(until=CONNECTIONS_MAX)


def test_a_client_that_reads_nothing_is_closed(served: Served) -> None:
    client = served.connect(b"GET /large HTTP/1.1\r\n\r\n")
    served.turns(until=1)
    assert body(served.read(served.connect(LIVEZ))) == b"ok\n"
    served.clock.advance(ANSWER_SECONDS)
    served.turns(until=0)
    received = 0
    while piece := client.recv(1 << 20):
        received += len(piece)
    assert received < len(LARGE)  # what the two sockets held


def test_unread_answers_are_bounded_in_bytes(served: Served) -> None:
    fitting = UNSENT_BYTES_MAX // len(LARGE)
    clients = []
    for _ in range(2 * fitting):
        clients.append(served.connect(b"GET /large HTTP/1.1\r\n\r\n"))
        served.turns()
        served.clock.advance(0.1)
    assert fitting - 1 <= served.server.connection_count < 2 * fitting  # what the sockets took is not in memory
    assert body(served.read(clients[-1])) == LARGE  # the newest stay


def test_a_large_answer_arrives_whole(served: Served) -> None:
    assert body(served.read(served.connect(b"GET /large HTTP/1.1\r\n\r\n"))) == LARGE


def test_a_client_that_does_not_close_is_closed(served: Served) -> None:
    served.connect(LIVEZ)
    served.turns()
    served.clock.advance(LINGER_SECONDS)
    served.turns(until=0)


def test_an_answer_that_fails_is_an_error(served: Served) -> None:
    served.later.set_exception(ValueError())
    assert served.read(served.connect(b"GET /later HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 503 ")


def test_a_client_that_leaves_is_closed(served: Served) -> None:
    for sent in (b"", b"GET ", b"GET /later HTTP/1.1\r\n\r\n", b"GET /large HTTP/1.1\r\n\r\n"):
        served.connect(sent).close()
    served.later.set_result(Answer(200, b"gathered\n"))
    served.turns(until=0)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.8.0.1", True), ("::1", True), ("::ffff:127.0.0.1", True), ("10.0.0.1", False),
     ("::ffff:10.0.0.1", False), ("fe80::1%eth0", False)],
)  # fmt: skip
def test_loopback_hosts_are_recognised(host: str, expected: bool) -> None:
    assert http_server.is_loopback_host(host) is expected
