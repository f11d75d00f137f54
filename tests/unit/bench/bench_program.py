"""The C programs of the end-to-end benchmarks, compiled and run for a test."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from bench.e2e import servers

SOURCES = Path(__file__).resolve().parents[3] / "bench/e2e"


@contextlib.contextmanager
def running(source: str, work: Path, *arguments: str) -> Iterator[servers.Server]:
    """A server program that listens on the port that it is given first; it must not have ended by itself."""
    command = ["cc", "-O1", "-Wall", "-Werror", "-o", str(work / "it"), str(SOURCES / source), "-lpthread"]
    subprocess.run(command, check=True)
    server = servers.Server(work)
    server.spawn([str(work / "it"), str(server.port), *arguments])
    assert server.process is not None
    try:
        yield server
        assert server.process.poll() is None
    finally:
        server.process.kill()
        server.process.wait()
