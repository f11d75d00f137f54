"""A real `kbroker serve` in its own process, for tests: start, kill -9, start again."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from kbroker.admin.control import send_command

READY = re.compile(rb"kbroker ready: .*?listening on (\S+):(\d+)")


class BrokerProcess:
    """One broker process; `start` returns when it has printed its ready line."""

    def __init__(self, data_dir: Path, *options: str, environ: dict[str, str] | None = None) -> None:
        self.data_dir = data_dir
        self.options = list(options)
        self.environ = environ or {}
        self.process: subprocess.Popen[bytes] | None = None
        self.host = "127.0.0.1"
        self.port = 0
        self.log_path = data_dir.with_name(data_dir.name + ".log")

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def command(self, *extra: str) -> list[str]:
        port = self.port or 0
        return [
            sys.executable, "-m", "kbroker", "serve", "--data-dir", str(self.data_dir),
            "--listen", f"127.0.0.1:{port}", *self.options, *extra,
        ]  # fmt: skip

    def start(self, *extra: str, timeout: float = 60.0) -> BrokerProcess:
        """Starts (again on the same port) and waits for the ready line. Raises RuntimeError with the log if it ends."""
        self.spawn(*extra)
        return self.wait_ready(timeout)

    def spawn(self, *extra: str) -> subprocess.Popen[bytes]:
        """Starts it without waiting."""
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                self.command(*extra),
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "KBROKER_SET": "group.initial.rebalance.delay.ms=0", **self.environ},
            )
        return self.process

    def wait_ready(self, timeout: float = 60.0) -> BrokerProcess:
        """Waits for the ready line. Raises RuntimeError with the log if the process ends."""
        match = self._wait_ready(time.monotonic() + timeout)
        self.host, self.port = match[1].decode(), int(match[2])
        return self

    def refused_start(self, *extra: str) -> str:
        """The one line of a start that fails."""
        run = subprocess.run(
            self.command(*extra), env={**os.environ, **self.environ}, capture_output=True, text=True, timeout=120
        )
        assert run.returncode == 1
        lines = [line for line in run.stderr.splitlines() if "kbroker: " in line]
        assert len(lines) == 1, run.stderr
        assert "Traceback" not in run.stderr
        return lines[0]

    def _wait_ready(self, deadline: float) -> re.Match[bytes]:
        assert self.process is not None
        assert self.process.stdout is not None
        output = b""
        descriptor = self.process.stdout.fileno()
        while time.monotonic() < deadline:
            if select.select([descriptor], [], [], 0.2)[0]:
                piece = os.read(descriptor, 65536)
                if not piece:
                    break
                output += piece
                if match := READY.search(output):
                    return match
        if self.process.poll() is None and time.monotonic() < deadline:
            self.process.wait(10)
        self.kill()
        raise RuntimeError(f"broker did not get ready: {output!r}\n{self.log()[-4000:]}")

    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            if self.process.stdout:
                self.process.stdout.close()

    def stop(self, timeout: float = 60.0) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        if self.process.stdout:
            self.process.stdout.close()
        return code

    def flush(self) -> None:
        """Asks for a flush and waits until it is done, as `kbroker flush` does. Raises RuntimeError when it fails."""
        send_command(self.data_dir, "flush", timeout=120)
