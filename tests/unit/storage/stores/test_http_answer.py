"""Heads of answers: what is understood, what is not, and how they come."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.storage.stores.http_answer import HEAD_BYTES_MAX, Answer

T = TypeVar("T")
OK = b"HTTP/1.1 200 OK\r\n"


def answered(pieces: list[bytes], use: Callable[[socket.socket], T]) -> T:
    """What `use` makes of a connection over which these pieces come, and then its end."""
    client, server = socket.socketpair()

    def send() -> None:
        with server:
            try:
                for piece in pieces:
                    server.sendall(piece)
            except (BrokenPipeError, ConnectionResetError):
                pass  # no more is wanted

    sender = threading.Thread(target=send)
    sender.start()
    try:
        with client:
            return use(client)
    finally:
        sender.join()


def parsed(*pieces: bytes) -> Answer:
    return answered(list(pieces), Answer)


def test_status_length_and_headers_are_parsed() -> None:
    answer = parsed(OK + b'ETag: "a"\r\ncontent-length:5\r\nX: 1\r\nX:  2 \r\n\r\nhello')
    assert (answer.status, answer.reason, answer.length, answer.will_close) == (200, "OK", 5, False)
    assert (answer.getheader("etag"), answer.getheader("x"), answer.getheader("Y")) == ('"a"', "1, 2", "")


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_head_and_body_may_arrive_in_pieces(size: int) -> None:
    whole = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 100\r\nX: 1\r\n\r\nHTTP/1.1 206 Partial Content\r\nA: b\r\n\r\nhello"
    )

    def use(connection: socket.socket) -> tuple[int, str, bytes]:
        answer = Answer(connection)
        body = bytearray(5)
        answer.fill(memoryview(body)[:2])
        answer.fill(memoryview(body)[2:])
        return answer.status, answer.getheader("a"), bytes(body)

    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    assert answered(pieces, use) == (206, "b", b"hello")


@pytest.mark.parametrize(
    "headers",
    [
        b"",
        b"Content-Length: \r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: 5x\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: " + b"9" * 5000 + b"\r\n",
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length\r\n",
    ],
)
def test_the_length_is_none_where_the_head_does_not_say_it(headers: bytes) -> None:
    assert parsed(OK + headers + b"\r\n").length is None


@pytest.mark.parametrize(
    ("head", "closes"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: Close\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: x, close\r\n\r\n", True),
        (b"HTTP/1.1 200\nConnection: keep-alive\n\n", False),
    ],
)
def test_the_head_says_whether_the_server_closes_the_connection(head: bytes, closes: bool) -> None:
    assert parsed(head).will_close is closes


@pytest.mark.parametrize("head", [b"\r\n\r\n", b"HTTP/2 200 OK\r\n\r\n", b"HTTP/1.1 20 OK\r\n\r\n", b"hello\n\n"])
def test_bytes_that_are_not_http_1_are_a_bad_status_line(head: bytes) -> None:
    with pytest.raises(http.client.BadStatusLine):
        parsed(head)


@pytest.mark.parametrize("head", [b"", OK, OK + b"X: 1\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_a_connection_that_ends_within_a_head_is_reset(head: bytes) -> None:
    with pytest.raises(ConnectionResetError):
        parsed(head)


@pytest.mark.parametrize("piece", [b"X: 1\r\n", b"\r\nHTTP/1.1 100 Continue\r\n", b"x"])
def test_a_head_that_does_not_end_is_refused(piece: bytes) -> None:
    with pytest.raises(http.client.HTTPException, match="does not end"):
        parsed(b"HTTP/1.1 100 Continue\r\n" + piece * (2 * HEAD_BYTES_MAX // len(piece)))


def test_a_body_that_ends_early_is_a_connection_error() -> None:
    with pytest.raises(ConnectionError, match="after 3 of 5"):
        answered([OK + b"\r\nhel"], lambda connection: Answer(connection).fill(memoryview(bytearray(5))))


NAMES = st.sampled_from([b"Content-Length", b"ETag", b"Connection", b"X-Amz-Id", b"content-range"])
VALUES = st.sampled_from([b"0", b"17", b'"tag"', b"close", b"keep-alive", b"bytes 0-1/2", b"a: b", b""])


@given(
    minor=st.sampled_from([b"0", b"1"]),
    status=st.integers(200, 599).filter(lambda status: status not in (204, 304)),
    reason=st.sampled_from([b"", b" OK", b" Not Found "]),
    headers=st.dictionaries(NAMES, VALUES),
)
def test_heads_are_parsed_as_http_client_parses_them(
    minor: bytes, status: int, reason: bytes, headers: dict[bytes, bytes]
) -> None:
    lines = [b"%s: %s\r\n" % header for header in headers.items()]
    head = b"HTTP/1.%s %d%s\r\n%s\r\n" % (minor, status, reason, b"".join(lines))

    def theirs(connection: socket.socket) -> http.client.HTTPResponse:
        response = http.client.HTTPResponse(connection)
        response.begin()
        return response

    expected, answer = answered([head], theirs), parsed(head)
    assert (answer.status, answer.reason) == (expected.status, expected.reason)
    for name in headers:
        assert answer.getheader(name.decode()) == expected.getheader(name.decode())
    if minor == b"1":
        assert answer.length == expected.length
        assert answer.will_close == (b"close" in headers.get(b"Connection", b""))


@given(st.lists(st.sampled_from([OK, b"HTTP/1.1 ", b"100", b" ", b"\r\n", b"\n", b"\r", b":", b"\0", b"\xff", b"a"])))
def test_any_bytes_are_an_answer_or_one_of_two_errors(pieces: list[bytes]) -> None:
    try:
        answer = parsed(b"".join(pieces))
    except (OSError, http.client.HTTPException):
        return
    assert 101 <= answer.status <= 999
