"""Health and metrics of a broker whose HTTP port is occupied by clients that trickle or never read."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.small_broker import free_port
from tests.integration.broker_process import BrokerProcess

TRICKLING = 200
ROUNDS = 30
BOUND_SECONDS = 5.0  # of a request
GROWTH_KIB_MAX = 32 * 1024


class Attackers:
    """Connections that never complete their request, and reconnect when they are closed."""

    def __init__(self, port: int, sent: bytes) -> None:
        self._port = port
        self._sent = sent
        self._open = [self._connected() for _ in range(TRICKLING)]

    def _connected(self) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self._port), BOUND_SECONDS)
        made.sendall(self._sent)
        made.setblocking(False)
        return made

    def trickle(self) -> int:
        """A header of each; how many were dropped."""
        dropped = 0
        for number, each in enumerate(self._open):
            try:
                each.sendall(b"X-Slow: 1\r\n")
                gone = each.recv(1) == b""
            except BlockingIOError:
                gone = False
            except OSError:
                gone = True
            if gone:
                dropped += 1
                each.close()
                self._open[number] = self._connected()
        return dropped

    def close(self) -> None:
        for each in self._open:
            each.close()


class Status:
    def __init__(self, broker: BrokerProcess, port: int) -> None:
        self.broker = broker
        self.port = port

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=BOUND_SECONDS) as answer:
            return answer.read().decode()

    @property
    def resident_kib(self) -> int:
        status = Path(f"/proc/{self.broker.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    @property
    def descriptors(self) -> int:
        return len([*Path(f"/proc/{self.broker.pid}/fd").iterdir()])


@pytest.fixture
def status(tmp_path: Path) -> Iterator[Status]:
    port = free_port()
    broker = BrokerProcess(tmp_path / "data", "--memory-bytes", "64MiB", "--http-listen", f"127.0.0.1:{port}")
    try:
        yield Status(broker.start(), port)
        assert broker.stop() == 0
    finally:
        broker.kill()


@pytest.mark.parametrize(
    "sent",
    [b"GET /livez HTTP/1.1\r\n", b"GET /metrics HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + b"\xff" * 60_000],
    ids=["trickle", "read-nothing", "nonsense"],
)
def test_probes_are_answered_beside_slow_clients(status: Status, sent: bytes) -> None:
    assert status.get("/livez") == "ok\n"
    resident_kib, descriptors = status.resident_kib, status.descriptors
    attackers = Attackers(status.port, sent)
    try:
        dropped = 0
        for number in range(ROUNDS):
            dropped += attackers.trickle()
            assert status.get("/livez") == "ok\n"
            if number % 10 == 0:
                assert json.loads(status.get("/readyz"))["ready"] is True
                assert "kbroker_connections" in status.get("/metrics")
        assert dropped > TRICKLING  # they were held to their bound
        assert status.resident_kib - resident_kib < GROWTH_KIB_MAX
        assert status.descriptors - descriptors < 100
    finally:
        attackers.close()
