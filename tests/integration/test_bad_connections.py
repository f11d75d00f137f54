"""The log of a broker that receives invalid bytes: one line at once, then a count."""

from __future__ import annotations

import re
import socket
import struct
from pathlib import Path

from tests.integration.broker_process import BrokerProcess

BAD_CONNECTIONS = 500
UNKNOWN_API = struct.pack(">ihhih", 10, 999, 0, 1, -1)
TOO_OLD = struct.pack(">ihhih", 10, 0, 2, 1, -1)  # Produce version 2
TOO_SHORT = struct.pack(">ih", 2, 18)
TOO_LARGE = struct.pack(">i", 2**31 - 1)
NEGATIVE = struct.pack(">i", -5)


def closed_by_the_broker(broker: BrokerProcess, sent: bytes) -> None:
    with socket.create_connection((broker.host, broker.port), 30) as connection:
        connection.sendall(sent)
        assert connection.recv(100) == b""


def test_bad_connections_are_logged_once_and_counted(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data").start()
    try:
        for number in range(BAD_CONNECTIONS):
            closed_by_the_broker(broker, (UNKNOWN_API, TOO_OLD, TOO_SHORT, TOO_LARGE, NEGATIVE)[number % 5])
        assert broker.stop() == 0
    finally:
        broker.kill()
    lines = [line for line in broker.log().splitlines() if "closing connection" in line]
    assert "unknown API key 999" in lines[0]
    assert not re.search("suppressed", lines[0])
    # Each call site writes one line and one report, and another if 30 s pass on a slow machine.
    assert len(lines) < 20, lines
    counted = sum(
        int(match[1]) for match in re.finditer(r"(\d+) (?:more like it|that) were suppressed", "\n".join(lines))
    )
    reports = sum("newest of" in line for line in lines)
    assert counted + len(lines) - reports == BAD_CONNECTIONS
