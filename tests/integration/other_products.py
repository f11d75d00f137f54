"""klite and KafScale as processes, for tests: on the S3 server, every port on 127.0.0.1.

Their programs are not fetched: name the files in KBROKER_TEST_KLITE, KBROKER_TEST_KAFSCALE and KBROKER_TEST_ETCD.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from s3_server import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, S3Server

KLITE, KAFSCALE, ETCD = "KBROKER_TEST_KLITE", "KBROKER_TEST_KAFSCALE", "KBROKER_TEST_ETCD"
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
        """Returns when it accepts connections. RuntimeError with its output when it exits before."""
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
        """Ends it at once."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def klite(s3: S3Server, folder: Path, prefix: str, cluster_id: str) -> Iterator[ProductServer]:
    """A klite with an empty disk, on the objects below the prefix."""
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


@contextlib.contextmanager
def kafscale(s3: S3Server, folder: Path, bucket: str, namespace: str) -> Iterator[ProductServer]:
    """A KafScale with an etcd of its own that holds nothing. Its segments lie at the root of a bucket."""
    client, peer, port = free_port(), free_port(), free_port()
    url, peers = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
    etcd = ProductServer(
        client,
        [
            os.environ[ETCD], "--name", "one", "--data-dir", str(folder / "etcd"), "--listen-client-urls", url,
            "--advertise-client-urls", url, "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
            "--initial-cluster", f"one={peers}",
        ],
        {},
        folder / "etcd.log",
    )  # fmt: skip
    environ = {
        "KAFSCALE_BROKER_ADDR": f"127.0.0.1:{port}", "KAFSCALE_BROKER_HOST": "127.0.0.1",
        "KAFSCALE_BROKER_PORT": str(port), "KAFSCALE_BROKER_ID": "1",
        "KAFSCALE_METRICS_ADDR": f"127.0.0.1:{free_port()}", "KAFSCALE_CONTROL_ADDR": f"127.0.0.1:{free_port()}",
        "KAFSCALE_ETCD_ENDPOINTS": url, "KAFSCALE_AUTO_CREATE_TOPICS": "false",
        "KAFSCALE_S3_BUCKET": bucket, "KAFSCALE_S3_REGION": REGION, "KAFSCALE_S3_ENDPOINT": s3.endpoint,
        "KAFSCALE_S3_PATH_STYLE": "true", "KAFSCALE_S3_NAMESPACE": namespace,
        "KAFSCALE_S3_ACCESS_KEY": ACCESS_KEY, "KAFSCALE_S3_SECRET_KEY": SECRET_KEY,
    }  # fmt: skip
    server = ProductServer(port, [os.environ[KAFSCALE]], environ | s3.environment(), folder / "kafscale.log")
    try:
        etcd.start()
        server.start()
        yield server
    finally:
        server.kill()
        etcd.kill()
