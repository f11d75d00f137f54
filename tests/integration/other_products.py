"""klite as a process, for tests: on the S3 server, its port on 127.0.0.1.

Its program is not fetched: name the file in KBROKER_TEST_KLITE.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from s3_server import BUCKET, REGION, S3Server

KLITE = "KBROKER_TEST_KLITE"
START_SECONDS, STOP_SECONDS = 30, 60


def missing(*variables: str) -> str:
    """Why a test cannot run; empty when all programs are there."""
    absent = [name for name in variables if not os.access(os.environ.get(name, ""), os.X_OK)]
    return f"name the programs in {', '.join(absent)}" if absent else ""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ProductServer:
    """One process that listens on `port`; what it prints goes to `log`."""

    def __init__(self, port: int, command: list[str], environ: dict[str, str], log: Path) -> None:
        self.port = port
        self.log = log
        self._command = command
        self._environ = environ
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns when it can be connected to. RuntimeError with what it printed when it ends before."""
        with open(self.log, "ab") as output:
            self._process = subprocess.Popen(
                self._command,
                env={"PATH": os.environ["PATH"], **self._environ},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.log.parent,
            )
        for _ in range(START_SECONDS * 10):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.1)
                break
        self.kill()
        raise RuntimeError(f"{self._command[0]} does not start: {self.printed()[-4000:]}")

    def printed(self) -> str:
        return self.log.read_text(errors="replace")

    def stop(self) -> None:
        """SIGTERM, and waits for its end."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(STOP_SECONDS)

    def kill(self) -> None:
        """Ends it, however it is."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def klite(s3: S3Server, folder: Path, prefix: str, cluster_id: str) -> Iterator[ProductServer]:
    """A klite with nothing on its disk, on what lies below the prefix."""
    port = free_port()
    command = [
        os.environ[KLITE], "--listen", f"127.0.0.1:{port}", "--advertised-addr", f"127.0.0.1:{port}",
        "--data-dir", str(folder / "klite"), "--cluster-id", cluster_id, "--auto-create-topics=false",
        "--s3-bucket", BUCKET, "--s3-region", REGION, "--s3-endpoint", s3.endpoint, "--s3-prefix", prefix,
        "--chunk-pool-memory", str(128 << 20),
    ]  # fmt: skip
    server = ProductServer(port, command, s3.environment(), folder / "klite.log")
    try:
        server.start()
        yield server
    finally:
        server.kill()
