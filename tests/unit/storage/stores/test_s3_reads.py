"""Ranged GETs past boto3: kept connections, servers that cut, stall or answer something else."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator

import pytest

from kbroker.clock import ManualClock
from kbroker.storage.stores.http_connections import ConnectionPool, NotPlain
from kbroker.storage.stores.object_store import StoreUnavailable
from kbroker.storage.stores.s3_reads import URL_SECONDS, DirectReads
from tests.unit.storage.stores.http_script import ScriptedSockets

BODY = bytes(range(256)) * 1000


class Server(ScriptedSockets):
    """Answers each request by the next of `script`: what to send, and whether to close then. Empty: as it should be."""

    def __init__(self) -> None:
        self.script: list[tuple[bytes, bool]] = []
        super().__init__()

    def answer(self, connection: socket.socket, request: bytes, rest: bytes) -> bytes | None:
        answer, close = self.script.pop(0) if self.script else (right(*wanted(request)), False)
        connection.sendall(answer)
        return None if close else rest


def wanted(request: bytes) -> tuple[int, int]:
    line = next(line for line in request.decode().split("\r\n") if line.startswith("Range: "))
    start, end = line.removeprefix("Range: bytes=").split("-")
    return int(start), int(end) + 1


def right(start: int, end: int, *more: str) -> bytes:
    lines = ["HTTP/1.1 206 Partial Content", f"Content-Length: {end - start}", *more]
    lines.append(f"Content-Range: bytes {start}-{end - 1}/{len(BODY)}")
    return "\r\n".join([*lines, "", ""]).encode() + BODY[start:end]


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


class Reads:
    def __init__(self, server: Server) -> None:
        self.clock = ManualClock()
        self.signed: list[str] = []
        self.port = server.port
        self.connections = ConnectionPool(5.0, 0.3, 2, self.clock)
        self.reads = DirectReads(self._sign, self.connections, self.clock)

    def _sign(self, method: str, key: str) -> str:
        self.signed.append(f"{method} {key}")
        return f"http://127.0.0.1:{self.port}/bucket/{key}?X-Signature={len(self.signed)}"

    def get(self, start: int, end: int, key: str = "a%20b") -> bytes:
        out = bytearray(end - start)
        self.reads.get_into(key, start, memoryview(out), '"etag"')
        return bytes(out)


@pytest.fixture
def reads(server: Server) -> Iterator[Reads]:
    made = Reads(server)
    yield made
    made.connections.close()


def test_one_connection_and_one_signature_for_many_reads(server: Server, reads: Reads) -> None:
    for start in range(0, 200_000, 50_000):
        assert reads.get(start, start + 50_000) == BODY[start : start + 50_000]
    assert (server.connections, reads.signed) == (1, ["GET a%20b"])
    first = server.requests[0].split("\r\n")
    assert first[0] == "GET /bucket/a%20b?X-Signature=1 HTTP/1.1"
    assert 'If-Match: "etag"' in first
    reads.clock.advance(URL_SECONDS)
    reads.get(0, 10)
    assert len(reads.signed) == 2
    assert server.connections == 2  # the first has rested for long


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nNo!",
        b"HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 301 Moved\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + BODY[:100],
        right(1, 101),
        right(0, 99),
        right(0, 100, "Content-Encoding: gzip"),
        b"HTTP/1.1 206 Partial Content\r\nTransfer-Encoding: chunked\r\nContent-Range: bytes 0-99/1000\r\n\r\n",
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: -1\r\nContent-Range: bytes 0-99/1000\r\n\r\n",
    ],
)
def test_every_other_answer_is_left_to_boto3(server: Server, reads: Reads, answer: bytes) -> None:
    server.script.append((answer, False))
    with pytest.raises(NotPlain):
        reads.get(0, 100)
    assert reads.get(0, 100) == BODY[:100]
    assert server.connections == 2  # the rest of the first answer is not read
    assert len(reads.signed) == 2


@pytest.mark.parametrize("cut", [0, 40, 150, len(right(0, 1000)) - 1])
def test_an_answer_that_ends_early_is_an_error(server: Server, reads: Reads, cut: int) -> None:
    server.script.append((right(0, 1000)[:cut], True))
    with pytest.raises((StoreUnavailable, NotPlain)):
        reads.get(0, 1000)
    assert reads.get(0, 1000) == BODY[:1000]


@pytest.mark.parametrize("sent", [0, 40, 500])
def test_a_server_that_falls_silent_is_an_error(server: Server, reads: Reads, sent: int) -> None:
    server.script.append((right(0, 1000)[:sent], False))
    with pytest.raises(StoreUnavailable):
        reads.get(0, 1000)
    assert reads.get(0, 1000) == BODY[:1000]


def test_a_connection_that_the_server_has_closed_is_replaced(server: Server, reads: Reads) -> None:
    server.script += [(right(0, 100), True)]
    assert reads.get(0, 100) == BODY[:100]
    assert reads.get(100, 200) == BODY[100:200]
    assert server.connections == 2


def test_a_server_that_announces_the_end_is_believed(server: Server, reads: Reads) -> None:
    server.script += [(right(0, 100, "Connection: close"), True)]
    assert reads.get(0, 100) == BODY[:100]
    assert reads.get(100, 200) == BODY[100:200]
    assert server.connections == 2


def test_a_connection_with_bytes_that_belong_to_no_answer_is_not_used_again(server: Server, reads: Reads) -> None:
    server.script.append((right(0, 100) + b"more", False))
    assert reads.get(0, 100) == BODY[:100]
    assert reads.get(100, 200) == BODY[100:200]
    assert server.connections == 2


def test_headers_without_end_are_an_error(server: Server, reads: Reads) -> None:
    server.script.append((b"HTTP/1.1 206 Partial Content\r\nX: " + bytes(200_000), True))
    with pytest.raises(StoreUnavailable):
        reads.get(0, 100)


def test_proxies_are_left_to_boto3(server: Server, reads: Reads, monkeypatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(NotPlain):
        reads.get(0, 100)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert reads.get(0, 100) == BODY[:100]


def test_certificates_that_are_not_trusted_here_are_left_to_boto3(reads: Reads, monkeypatch) -> None:
    def untrusted(*_: object) -> None:
        raise ssl.SSLCertVerificationError("self-signed")

    monkeypatch.setattr("kbroker.storage.stores.http_connections.Connection.__init__", untrusted)
    with pytest.raises(NotPlain):
        reads.get(0, 100)


def test_a_refused_connection_is_store_unavailable(reads: Reads, server: Server) -> None:
    server.close()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        reads.port = probe.getsockname()[1]
    with pytest.raises(StoreUnavailable):
        reads.get(0, 100)


FOUND = b'HTTP/1.1 200 OK\r\nContent-Length: 7\r\nETag: "e"\r\n\r\n'
MISSING = b"HTTP/1.1 404 Not Found\r\nContent-Length: 243\r\n\r\n"  # as that of a GET, whose body a HEAD leaves out


def test_heads_take_one_connection_and_one_signature(server: Server, reads: Reads) -> None:
    server.script += [(FOUND, False), (MISSING, False)]
    assert reads.reads.head("k").getheader("etag") == '"e"'
    assert reads.reads.head("k").status == 404
    assert reads.get(0, 10, "k") == BODY[:10]
    assert (server.connections, reads.signed) == (1, ["HEAD k", "GET k"])
    assert "x-amz-checksum-mode: ENABLED" in server.requests[0].split("\r\n")


@pytest.mark.parametrize("status", [b"206 Partial", b"301 Moved", b"400 Bad", b"403 Forbidden", b"503 Slow Down"])
def test_every_other_answer_to_a_head_is_left_to_boto3(server: Server, reads: Reads, status: bytes) -> None:
    server.script.append((b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n", False))
    with pytest.raises(NotPlain):
        reads.reads.head("k")
    server.script.append((FOUND, False))
    assert reads.reads.head("k").status == 200
    assert len(reads.signed) == 2


def test_a_body_after_the_answer_to_a_head_closes_the_connection(server: Server, reads: Reads) -> None:
    server.script += [(MISSING + b"No!", False), (FOUND, False)]
    assert reads.reads.head("k").status == 404
    assert reads.reads.head("k").status == 200
    assert server.connections == 2
