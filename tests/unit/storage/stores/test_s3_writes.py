"""PUTs past boto3: where they learn to go, kept connections, servers that refuse, break off or fall silent."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.credentials import ReadOnlyCredentials

from kbroker._fast.wal.wal import Wal
from kbroker.clock import ManualClock
from kbroker.storage.flush.body import WalBody
from kbroker.storage.flush.pacing import PacedBody, Pacer
from kbroker.storage.stores import http_connections, s3_writes
from kbroker.storage.stores.http_connections import ConnectionPool, NotPlain
from kbroker.storage.stores.joined_body import JoinedBody
from kbroker.storage.stores.object_store import BODY_PIECE_BYTES, BodySource, BytesBody, StoreUnavailable
from kbroker.storage.stores.s3_writes import DirectWrites
from tests.reference.wal_harness import Log, batch
from tests.unit.storage.stores.http_script import ScriptedSockets

BODY = bytes(range(256)) * (9 * BODY_PIECE_BYTES // 1024)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
STORED = b'HTTP/1.1 200 OK\r\nETag: "tag"\r\nContent-Length: 0\r\n\r\n'
AUTHORIZATION = "AWS4-HMAC-SHA256 Credential=me/20260101/eu-north-1/s3/aws4_request, SignedHeaders=host, Signature=0"


class Server(ScriptedSockets):
    """Serves each request by the next of `script`: what to say at the head, how much of the body to take (None: all),
    what to say then (None: fall silent), and whether to close then. Empty: as it should be."""

    def __init__(self) -> None:
        self.script: list[tuple[bytes, int | None, bytes | None, bool]] = []
        self.bodies: list[bytes] = []
        super().__init__()

    def answer(self, connection: socket.socket, request: bytes, rest: bytes) -> bytes | None:
        first, count, last, close = self.script.pop(0) if self.script else (CONTINUE, None, STORED, False)
        connection.sendall(first)
        if count is None:
            count = int(request.split(b"Content-Length: ")[1].split(b"\r\n")[0])
        while len(rest) < count:
            more = connection.recv(65536)
            if not more:
                return None
            rest += more
        self.bodies.append(rest[:count])
        if last is None:
            while connection.recv(65536):
                pass
            return None
        connection.sendall(last)
        return None if close else rest[count:]


class Writes:
    def __init__(self, server: Server) -> None:
        self.origin = f"http://127.0.0.1:{server.port}"
        self.credentials: ReadOnlyCredentials | None = ReadOnlyCredentials("me", "secret", "token")
        self.connections = ConnectionPool(5.0, 0.3, 2, ManualClock())
        self.writes = DirectWrites(lambda: self.credentials, self.connections)

    def learn(self, path: str = "/bucket/run/first%20one", key: str = "run/first one", **headers: str) -> None:
        given = {"Authorization": AUTHORIZATION, "User-Agent": "agent"} | headers
        self.writes.note(SimpleNamespace(url=self.origin + path, headers=given), event_name="before-send")
        self.writes.learn(key)

    def put(self, body: BodySource | None = None) -> str:
        headers = {"x-amz-checksum-crc32c": "AAAAAA==", "If-None-Match": "*"}
        return self.writes.put("run/a b+ü", "s3://bucket/run/a b+ü", body or BytesBody(BODY), headers)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def writes(server: Server) -> Iterator[Writes]:
    made = Writes(server)
    yield made
    made.connections.close()


def test_nothing_is_sent_before_boto3_has_stored_something(server: Server, writes: Writes) -> None:
    with pytest.raises(NotPlain):
        writes.put()
    assert server.connections == 0


def test_puts_are_signed_and_share_a_connection(server: Server, writes: Writes) -> None:
    writes.learn()
    assert [writes.put() for _ in range(3)] == ['"tag"'] * 3
    assert server.bodies == [BODY] * 3
    assert server.connections == 1
    first, *lines = server.requests[0].split("\r\n")
    assert first == "PUT /bucket/run/a%20b%2B%C3%BC HTTP/1.1"
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    assert len(headers) == len(lines)
    authorization = headers.pop("authorization")
    assert authorization.startswith("AWS4-HMAC-SHA256 Credential=me/")
    assert "/eu-north-1/s3/aws4_request" in authorization
    signed = "host;if-none-match;x-amz-checksum-crc32c;x-amz-content-sha256;x-amz-date;x-amz-security-token"
    assert f"SignedHeaders={signed}," in authorization
    assert headers.pop("x-amz-date")
    assert headers == {
        "host": f"127.0.0.1:{server.port}",
        "content-length": str(len(BODY)),
        "expect": "100-continue",
        "if-none-match": "*",
        "user-agent": "agent",
        "x-amz-checksum-crc32c": "AAAAAA==",
        "x-amz-content-sha256": "UNSIGNED-PAYLOAD",
        "x-amz-security-token": "token",
    }


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/bucket/run/another", {}),
        ("/bucket/run/first%20one?x-id=PutObject", {}),
        ("/bucket/run/first%20one", {"Authorization": AUTHORIZATION.replace("/s3/", "/s3express/")}),
        ("/bucket/run/first%20one", {"Authorization": "AWS me:signature"}),
    ],
)
def test_an_unknown_route_is_not_used(writes: Writes, path: str, headers: dict[str, str]) -> None:
    writes.learn(path, **headers)
    with pytest.raises(NotPlain):
        writes.put()


def test_tls_is_left_to_boto3(writes: Writes) -> None:
    writes.origin = writes.origin.replace("http:", "https:")
    writes.learn()
    with pytest.raises(NotPlain):
        writes.put()


def test_missing_credentials_are_left_to_boto3(server: Server, writes: Writes) -> None:
    writes.learn()
    writes.credentials = None
    with pytest.raises(NotPlain):
        writes.put()
    assert server.connections == 0


@pytest.mark.parametrize("status", [301, 307, 400, 403, 404, 409, 412, 429, 501])
@pytest.mark.parametrize("early", [True, False])
def test_a_refusal_is_left_to_boto3(server: Server, writes: Writes, status: int, early: bool) -> None:
    writes.learn()
    answer = f"HTTP/1.1 {status} No\r\nContent-Length: 3\r\n\r\nNo!".encode()
    server.script.append((answer, 0, b"", True) if early else (CONTINUE, None, answer, False))
    with pytest.raises(NotPlain, match=str(status)):
        writes.put()
    assert b"".join(server.bodies) == (b"" if early else BODY)
    with pytest.raises(NotPlain):
        writes.put()  # until boto3 has shown the way again
    assert len(server.requests) == 1
    writes.learn()
    assert writes.put() == '"tag"'


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 500 Internal Error\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b'HTTP/1.1 200 OK\r\nETag: "tag"\r\nContent-Length: 22\r\n\r\n<Error>InternalError</',
        b'HTTP/1.1 200 OK\r\nETag: "ta',
        b'HTTP/1.1 200 OK\r\nETag: "tag"\r\n',
        b'HTTP/1.1 103 Early Hints\r\nETag: "tag"\r\n\r\n',
        b'HTTP/1.1 204 No Content\r\nETag: "tag"\r\n\r\n',
        b"HTTP/1.1 2",
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + bytes(200_000),
    ],
)
def test_an_unknown_outcome_is_store_unavailable(server: Server, writes: Writes, answer: bytes) -> None:
    writes.learn()
    server.script.append((CONTINUE, None, answer, True))
    with pytest.raises(StoreUnavailable, match=r"^s3://bucket/run/a b"):
        writes.put()
    assert len(server.requests) == 1  # never by itself a second time
    assert writes.put() == '"tag"'


def test_a_failure_before_the_body_is_raised_and_not_retried(server: Server, writes: Writes) -> None:
    writes.learn()
    server.script.append((b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n", 0, b"", True))
    with pytest.raises(StoreUnavailable, match="503"):
        writes.put()
    assert writes.put() == '"tag"'


@pytest.mark.parametrize("first", [b"HTTP/1.0 100 Continue\r\n\r\n", b"HTTP/1.1 100\r\nX: y\r\n\r\n"])
def test_the_body_is_sent_after_any_form_of_100_continue(server: Server, writes: Writes, first: bytes) -> None:
    writes.learn()
    server.script.append((first, None, STORED, False))
    assert writes.put() == '"tag"'


def test_success_before_the_whole_body_was_sent_is_an_unknown_outcome(server: Server, writes: Writes) -> None:
    writes.learn()
    server.script.append((CONTINUE, 100_000, STORED, True))
    with pytest.raises(StoreUnavailable):
        writes.put(BytesBody(bytes(64 << 20)))  # more than sockets hold


@pytest.mark.parametrize(
    ("url", "authority"),
    [
        ("http://[::1]:9000/x", "[::1]:9000"),
        ("http://store:80/x", "store"),
        ("http://store:443/x", "store:443"),
        ("https://store/x", "store"),
    ],
)
def test_the_host_is_named_as_in_a_url(url: str, authority: str) -> None:
    assert http_connections.place_of(url).authority == authority


@pytest.mark.parametrize("value", ["a\r\nX: b", "a\nb", "a\rb", "a\0b", "ü"])
def test_a_header_of_more_than_one_line_is_left_to_boto3(server: Server, writes: Writes, value: str) -> None:
    writes.learn()
    with pytest.raises(NotPlain):
        writes.writes.put("key", "name", BytesBody(BODY), {"If-Match": value})
    assert server.requests == []


def test_the_answer_of_a_server_that_closes_early_is_read(server: Server, writes: Writes) -> None:
    writes.learn()
    server.script.append((CONTINUE, 100_000, b"HTTP/1.1 400 No\r\nContent-Length: 0\r\n\r\n", True))
    with pytest.raises((NotPlain, StoreUnavailable)):
        writes.put()
    assert len(server.requests) == 1


@pytest.mark.parametrize("count", [0, 100_000, None])
def test_a_server_that_falls_silent_is_unavailable(server: Server, writes: Writes, count: int | None) -> None:
    writes.learn()
    server.script.append((CONTINUE, count, None, False))
    with pytest.raises(StoreUnavailable):
        writes.put()
    assert writes.put() == '"tag"'


def test_a_connection_that_the_server_has_closed_is_replaced(server: Server, writes: Writes) -> None:
    writes.learn()
    server.script.append((CONTINUE, None, STORED, True))
    assert [writes.put(), writes.put()] == ['"tag"'] * 2
    assert (server.connections, server.bodies) == (2, [BODY] * 2)


def test_a_server_that_does_not_ask_for_the_body_gets_it(
    server: Server, writes: Writes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connections, "CONTINUE_SECONDS", 0.05)
    writes.learn()
    server.script.append((b"", None, STORED, False))
    assert writes.put() == '"tag"'
    assert server.bodies == [BODY]


def test_a_body_that_cannot_be_read_raises_its_own_error(server: Server, writes: Writes) -> None:
    class Failing(BytesBody):
        def read_into(self, position: int, out: memoryview) -> int:
            if position:
                raise ConnectionResetError("of the disk")
            return super().read_into(position, out)

    writes.learn()
    with pytest.raises(ConnectionResetError, match="of the disk"):
        writes.put(Failing(BODY))
    assert writes.put() == '"tag"'
    assert server.connections == 2  # nothing follows half of a body


class SelfSending(BytesBody):
    """Sends every other piece itself; `failures` are raised first, each once."""

    def __init__(self, data: bytes, *failures: OSError) -> None:
        super().__init__(data)
        self.failures = list(failures)
        self.sent = 0
        self._turn = True

    def send_to(self, position: int, limit: int, fd: int, timeout_ms: int, rate: int) -> int:
        assert timeout_ms == 300
        assert rate == 0
        if self.failures:
            raise self.failures.pop()
        self._turn = not self._turn
        if self._turn:
            return 0
        count = os.write(fd, BODY[position : position + min(limit, 10_000)])
        self.sent += count
        return count


def test_a_body_that_can_send_itself_does_and_is_paced_once(server: Server, writes: Writes) -> None:
    writes.learn()
    sent: list[int] = []
    first = SelfSending(BODY[:-500])
    pacer = Pacer(lambda: 0.0, lambda seconds: None, sent=sent.append)
    assert writes.put(PacedBody(JoinedBody([first, BytesBody(BODY[-500:])]), pacer)) == '"tag"'
    assert server.bodies == [BODY]
    assert sum(sent) == len(BODY)
    assert 0 < first.sent < len(BODY) - 500


def test_a_body_that_sends_itself_to_a_server_that_hangs_or_has_closed(server: Server, writes: Writes) -> None:
    writes.learn()
    with pytest.raises(StoreUnavailable, match="TimeoutError"):
        writes.put(SelfSending(BODY, TimeoutError("nothing was taken")))
    server.script.append((CONTINUE, 0, b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", True))
    with pytest.raises(NotPlain, match="403"):
        writes.put(SelfSending(BODY, BrokenPipeError()))


def test_a_body_of_the_log_sends_itself(
    server: Server, writes: Writes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its beginning has left memory."""
    monkeypatch.setattr(s3_writes, "SELF_SENT_BYTES", 50_000)
    writes.learn()
    with Log(tmp_path, arena_segments=2).start() as log:
        for number in range(300):
            log.append(batch(1000 + number, fill=number % 256))
        log.sync()
        partition = log.partition()
        entries = partition.entries(0, log.wal.durable_lsn)
        whole = partition.read_bytes(0, partition.high_watermark(), 1 << 30)
        assert 0 < log.wal.resident_lsn < log.wal.durable_lsn
        wal = CountedReads(log.wal)
        pacer = Pacer(lambda: 0.0, lambda _: None, iter([1e12] * 3 + [0.0] * 10_000).__next__)
        body = PacedBody(JoinedBody([WalBody(wal, entries), BytesBody(b"footer")]), pacer)
        assert writes.put(body) == '"tag"'
        assert server.bodies == [whole + b"footer"]
        assert (wal.read, wal.sent) == (0, len(whole))
        assert wal.rates[0] == 10**12  # the pacer's
        assert wal.rates[-1] == 0


class CountedReads:
    """A log."""

    def __init__(self, wal: Wal) -> None:
        self.wal = wal
        self.read = self.sent = 0
        self.rates: list[int] = []

    def read_batches_into(self, entries: Any, cumulative: Any, position: int, out: memoryview) -> int:
        count = self.wal.read_batches_into(entries, cumulative, position, out)
        self.read += count
        return count

    def send_batches(self, *arguments: Any) -> int:
        count = self.wal.send_batches(*arguments)
        self.rates.append(arguments[-1])
        self.sent += count
        return count

    def feed_batches(self, *arguments: Any) -> int:
        return self.wal.feed_batches(*arguments)
