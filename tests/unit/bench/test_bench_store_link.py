"""The link that the benchmarks put between a broker and its store."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.bench.bench_program import running

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

RATE = 20_000_000
BURST = RATE // 100


@pytest.fixture
def link(tmp_path: Path) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection through the link: the one that connected, and the one that accepted."""
    with socket.create_server(("127.0.0.1", 0)) as target:
        target.settimeout(10)
        with running("store_link.c", tmp_path, str(target.getsockname()[1]), str(RATE)) as server:
            target.accept()[0].close()  # of the look whether it listens
            with socket.create_connection(("127.0.0.1", server.port), 10) as caller, target.accept()[0] as called:
                called.settimeout(10)
                yield caller, called


def receive_all(end: socket.socket) -> bytes:
    parts = []
    while part := end.recv(1 << 20):
        parts.append(part)
    return b"".join(parts)


def test_what_is_sent_arrives_no_faster_than_the_rate(link: tuple[socket.socket, socket.socket]):
    caller, called = link
    sent = bytes(range(256)) * 8192

    def send() -> None:
        caller.sendall(sent)
        caller.shutdown(socket.SHUT_WR)

    began = time.perf_counter()
    sender = threading.Thread(target=send)
    sender.start()
    arrived = receive_all(called)
    taken = time.perf_counter() - began
    sender.join(10)
    assert arrived == sent
    # The last piece arrives when those before it have passed.
    assert taken >= (len(sent) - BURST - 131072) / RATE


def test_answers_pass_and_the_end_of_one_way_is_not_that_of_the_other(link: tuple[socket.socket, socket.socket]):
    caller, called = link
    caller.sendall(b"request")
    caller.shutdown(socket.SHUT_WR)
    assert receive_all(called) == b"request"
    called.sendall(b"answer")
    called.shutdown(socket.SHUT_WR)
    assert receive_all(caller) == b"answer"
