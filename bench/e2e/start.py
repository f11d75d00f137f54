"""How long a start takes: from exec to the first answers, with an empty data directory each time.

ApiVersions is what clients ask first, and is answered as soon as the listener is open; Metadata, which comes next,
waits for the rest of the broker to be loaded.
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import struct
import subprocess
import tempfile
import time
from pathlib import Path

from bench.e2e.servers import Kbroker, S3Server

NAME = "start"
ROUNDS = 9
GIVE_UP_SECONDS = 30.0
API_VERSIONS, METADATA = 18, 3


def _request(api_key: int, version: int, body: bytes) -> bytes:
    header = struct.pack(">hhih", api_key, version, 1, -1)
    return struct.pack(">i", len(header) + len(body)) + header + body


def _connect(port: int, began: float) -> socket.socket:
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            if time.perf_counter() - began > GIVE_UP_SECONDS:
                raise
            time.sleep(0.001)


def _first_answers(server: Kbroker) -> tuple[float, float]:
    """Seconds from exec to the first answer of ApiVersions, and of Metadata behind it on the same connection."""
    command, environ = server.command, {**os.environ, **(server.s3.environ if server.s3 else {})}
    began = time.perf_counter()
    server.process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with _connect(server.port, began) as client:
            client.sendall(_request(API_VERSIONS, 0, b""))
            answered = _answer_seconds(client, began)
            client.sendall(_request(METADATA, 1, struct.pack(">i", 0)))
            return answered, _answer_seconds(client, began)
    finally:
        server.stop()


def _answer_seconds(client: socket.socket, began: float) -> float:
    with client.makefile("rb") as answer:
        (length,) = struct.unpack(">i", answer.read(4))
        seconds = time.perf_counter() - began
        answer.read(length)
    return seconds


def print_rows(work: str | None) -> None:
    """Measures and prints, over a folder and over S3, in alternation."""
    root = Path(tempfile.mkdtemp(prefix="kbroker-bench-", dir=work))
    s3 = S3Server(root / "s3").start()
    taken: dict[str, list[tuple[float, float]]] = {"folder": [], "s3": []}
    try:
        for number in range(ROUNDS):
            for kind, runs in taken.items():
                folder = root / f"{kind}-{number}"
                runs.append(_first_answers(Kbroker(folder, s3 if kind == "s3" else None)))
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        s3.stop()
        shutil.rmtree(root, ignore_errors=True)
    for kind, runs in taken.items():
        for api, seconds in zip(("ApiVersions", "Metadata"), zip(*runs, strict=True), strict=True):
            print(
                f"{NAME:9} {kind:12} exec to first {api:11} {statistics.median(seconds):6.3f} s"
                f"  ({min(seconds):.3f} to {max(seconds):.3f}, {len(seconds)} starts)",
                flush=True,
            )
