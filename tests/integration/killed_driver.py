"""A Spark driver in a process group of its own, made to be killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import spark_session


class KilledDriver:
    """A program that is called with a mode, its folder and `given`; it prints "running" once its streams run."""

    def __init__(self, program: Path, folder: Path, *given: str) -> None:
        self._program, self._folder, self._given = program, folder, given
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, mode: str) -> subprocess.Popen[bytes]:
        """Starts it, and waits until its streams run."""
        with open(self._folder / "driver.log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(self._program), mode, str(self._folder), *self._given],
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **spark_session.environment()},
                start_new_session=True,
            )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == b"running":
                return self._process
        raise AssertionError(f"the driver ended:\n{self.log()[-6000:]}")

    def log(self) -> str:
        return (self._folder / "driver.log").read_text(errors="replace")

    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def run_for(self, seconds: float) -> None:
        """Lets it run so long, or until it exits."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def kill(self) -> None:
        """kill -9 of Python and JVM; Spark's workers end when their sockets do."""
        if self._process is not None and self._process.stdout is not None and not self._process.stdout.closed:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process.stdout.close()

    def kill_workers(self) -> None:
        """kill -9 of the Python processes that run tasks now; the daemons that fork them stay."""
        if self._process is not None:
            for pid in _forked(self._process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _forked(session: int) -> list[int]:
    """The processes of a session that were forked by one with the same command line: Spark's Python workers."""
    parents: dict[int, int] = {}
    commands: dict[int, bytes] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # After the name, in brackets: state, parent, process group, session.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                pid = int(entry.name)
                parents[pid], commands[pid] = int(fields[1]), (entry / "cmdline").read_bytes()
    return [pid for pid, parent in parents.items() if commands[pid] == commands.get(parent) and commands[pid]]
