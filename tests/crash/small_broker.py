"""Brokers with bounds so small that seconds of load flush, seal, recycle and trim; and starts that must fail."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tests.crash.raw_client import RawClient
from tests.integration.broker_process import BrokerProcess
from tests.integration.s3_server import BUCKET, S3Server

SMALL = (
    "--memory-bytes", "64MiB", "--arena-bytes", "8MiB", "--wal-bytes", "12MiB", "--flush-seconds", "0.7",
    "--pack-below-bytes", "64KiB",
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where the objects are, as options and environment of a broker."""

    options: tuple[str, ...]
    environ: dict[str, str]


def in_folder(folder: Path) -> Place:
    """Objects in a folder."""
    return Place(("--object-store", f"file:{folder}"), {})


def in_s3(server: S3Server, prefix: str, *, endpoint: str | None = None, bucket: str = BUCKET) -> Place:
    """Objects in the S3 server, under a prefix of their own; `endpoint`: through a proxy."""
    options = ("--object-store", f"s3://{bucket}/{prefix}", "--s3-endpoint", endpoint or server.endpoint)
    return Place(options, server.environment())


def small_broker(
    data_dir: Path, place: Place, *options: str, small: tuple[str, ...] = SMALL
) -> BrokerProcess:
    """A broker that is not started yet."""
    return BrokerProcess(data_dir, *small, *place.options, *options, environ=place.environ)


def connect(broker: BrokerProcess, timeout_seconds: float = 30.0) -> RawClient:
    """A connection to a running broker."""
    return RawClient((broker.host, broker.port), timeout_seconds)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def metrics(port: int) -> dict[str, float]:
    """What /metrics says: ``name{labels}`` -> value."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.findall(r"^([a-z_]+(?:\{[^}]*\})?) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def peak_rss_bytes(pid: int) -> int:
    """The most memory a process ever had in RAM."""
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    assert match, status
    return int(match[1]) * 1024


LOG_LINE = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z [A-Z]+ \S+: ")


@dataclass(frozen=True)
class Refusal:
    """A start that the broker refused."""

    code: int
    lines: list[str]  # of standard error, without log lines
    output: str

    @property
    def line(self) -> str:
        """The one line that says why. AssertionError if there is not exactly one."""
        assert len(self.lines) == 1, f"{len(self.lines)} lines:\n" + "\n".join(self.lines)
        return self.lines[0]


def refused_start(broker: BrokerProcess, *extra: str, timeout_seconds: float = 60.0) -> Refusal:
    """Starts a broker that must not get ready, and waits for its end."""
    ended = subprocess.run(
        broker.command(*extra),
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        env={**os.environ, **broker.environ},
        check=False,
    )
    assert "ready" not in ended.stdout, f"the broker started: {ended.stdout}"
    lines = [line for line in ended.stderr.splitlines() if line.strip() and not LOG_LINE.match(line)]
    return Refusal(ended.returncode, lines, ended.stderr)


def files_of(folder: Path) -> set[str]:
    """Names of everything below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
