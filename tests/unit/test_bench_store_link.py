"""The link that the benchmarks put between a broker and its store."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.e2e import servers

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

RATE = 20_000_000
BURST = RATE // 100


@pytest.fixture
def link(tmp_path: Path) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection through it: who called, and who was called."""
    subprocess.run(
        ["cc", "-O1", "-Wall", "-Werror", "-o", tmp_path / "it", ROOT / "bench/e2e/store_link.c", "-lpthread"],
        check=True,
    )
    server = servers.Server(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as behind:
        behind.settimeout(10)
        port = behind.getsockname()[1]
        server.spawn([str(tmp_path / "it"), str(server.port), str(port), str(RATE)])
        try:
            behind.accept()[0].close()  # spawn has tried whether it listens
            with socket.create_connection(("127.0.0.1", server.port), 10) as caller, behind.accept()[0] as called:
                called.settimeout(10)
                yield caller, called
        finally:
            assert server.process is not None
            server.process.kill()
            server.process.wait()


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
