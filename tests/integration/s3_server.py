"""A real S3 server (versitygw) for tests, on 127.0.0.1 over a temporary folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SERVER_VARIABLE = "KBROKER_TEST_S3_SERVER"
ACCESS_KEY = "kbroker-test"
SECRET_KEY = "kbroker-test-secret"
REGION = "us-east-1"
BUCKET = "kbroker-test"
START_TRIES = 100


@dataclass(frozen=True)
class Certificate:
    """Files, PEM."""

    chain: Path
    key: Path


@dataclass(frozen=True)
class S3Server:
    """A running server; the process and the folder belong to ``s3_server``. `authority` is a file that holds the
    certificate of its authority, when it speaks TLS."""

    endpoint: str
    folder: Path
    pid: int
    authority: Path | None = None

    def environment(self) -> dict[str, str]:
        """Variables that boto3's credential chain needs to reach this server, and what it trusts."""
        variables = {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        return variables if self.authority is None else {**variables, "AWS_CA_BUNDLE": str(self.authority)}

    def create_bucket(self, bucket: str = BUCKET) -> None:
        """Creates a bucket; no error if it is there."""
        import boto3

        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name=REGION,
            verify=None if self.authority is None else str(self.authority),
        )
        with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
            client.create_bucket(Bucket=bucket)
        client.close()


def find_server() -> str | None:
    """The server's binary: from the environment, the repository's .tools folder, or PATH."""
    named = os.environ.get(SERVER_VARIABLE)
    if named:
        return named if os.access(named, os.X_OK) else None
    in_tools = Path(__file__).parents[2] / ".tools" / "bin" / "versitygw"
    return str(in_tools) if os.access(in_tools, os.X_OK) else shutil.which("versitygw")


@contextlib.contextmanager
def s3_server(
    folder: Path, *, bucket: str | None = BUCKET, certificate: Certificate | None = None, port: int | None = None
) -> Iterator[S3Server]:
    """Starts the server over ``folder`` with one bucket, and ends it. RuntimeError if there is no binary.

    `port`: that of an earlier one, which has ended.
    """
    binary = find_server()
    if binary is None:
        raise RuntimeError(f"no S3 server: set {SERVER_VARIABLE}, or put versitygw in .tools/bin or on PATH")
    data = folder / "s3-data"
    data.mkdir(parents=True, exist_ok=True)
    with open(folder / "s3-server.log", "ab") as log:
        process, port = _start(binary, data, log.fileno(), certificate, port)
    try:
        scheme, authority = ("http", None) if certificate is None else ("https", certificate.chain)
        server = S3Server(f"{scheme}://127.0.0.1:{port}", data, process.pid, authority)
        if bucket is not None:
            server.create_bucket(bucket)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _start(
    binary: str, data: Path, log: int, certificate: Certificate | None, wanted: int | None
) -> tuple[subprocess.Popen[bytes], int]:
    tls = [] if certificate is None else ["--cert", str(certificate.chain), "--key", str(certificate.key)]
    # The port is free when asked for, and may be taken a moment later: then the server exits, and another is tried.
    for _ in range(5):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", wanted or 0))
            port = probe.getsockname()[1]
        command = [binary, "--port", f"127.0.0.1:{port}", "--keep-alive", "--quiet", *tls, "posix", str(data)]
        environment = {**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        for _ in range(START_TRIES):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return process, port
            try:
                process.wait(timeout=0.1)
                break
            except subprocess.TimeoutExpired:
                continue
        process.kill()
        process.wait()
    raise RuntimeError(f"{binary} does not start: see the log beside {data}")
