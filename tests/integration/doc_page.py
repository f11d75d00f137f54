"""Runs the code blocks of one page of the docs, in order, in one folder, beside a broker on its own port."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from broker_process import BrokerProcess
from conftest import SMALL
from spark_session import QUICK, environment

from kbroker.app.config import load_config
from kbroker.cli.client_properties import read_properties
from tests.doc_blocks import SHELL, Block, commands_of

BLOCK_SECONDS, SPARK_BLOCK_SECONDS = 60.0, 400.0
OUTPUT_CHARS_MAX = 4000
SERVES = re.compile(rb"kbroker ready: ")
BIN = Path(sys.executable).parent
# Runs files, whose names come on stdin, one after the other with the same names, and answers on descriptor 3.
INTERPRETER = """
import os, sys, traceback
names = {"__name__": "__main__"}
for line in sys.stdin:
    path, failed = line.rstrip("\\n"), False
    try:
        exec(compile(open(path).read(), path, "exec"), names)
    except BaseException:
        traceback.print_exc()
        failed = True
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(3, b"f" if failed else b"d")
"""
SQL = """
import kbroker.pipeline
spark = kbroker.pipeline.start_session()
for statement in open({path!r}).read().split(";"):
    if statement.strip():
        spark.sql(statement).show(truncate=False)
"""


class BlockFailed(Exception):
    """A block did not do what it says; the message is what it printed."""


class DocPage:
    """The folder of a page, its broker, and its Python interpreter. `close` ends what it started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._broker = BrokerProcess(folder / "kbroker-data", *SMALL)
        self._python: _Interpreter | None = None
        self._groups: list[int] = []  # process groups of the shells
        self._is_served = False  # by a broker that a block left in the background

    def run(self, block: Block) -> None:
        """Raises BlockFailed."""
        if block.file_name is not None:
            (self._folder / block.file_name).write_text(block.text)
            if block.language in ("python", "sql"):
                return  # a later block runs it
        try:
            if block.language in SHELL:
                self._with_broker(block)
                self._shell(block)
            elif block.language in ("python", "sql"):
                self._with_broker(block)
                self._interpret(block)
            else:
                self._load(block)
        except (OSError, ValueError, RuntimeError) as error:
            raise BlockFailed(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        if self._python is not None:
            self._python.close()
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        self._broker.kill()

    def _with_broker(self, block: Block) -> None:
        broker = self._broker
        if self._is_served:
            return
        runs = broker.process is not None and broker.process.poll() is None
        if block.stops_broker:
            if not broker.port:
                broker.start()
                runs = True
            if runs and broker.stop() != 0:
                raise BlockFailed(f"the broker did not stop\n{broker.log()[-OUTPUT_CHARS_MAX:]}")
        elif not runs:
            broker.start()

    def _environment(self) -> dict[str, str]:
        conf = self._folder / ".spark"
        conf.mkdir(exist_ok=True)
        lines = [f"{name} {value}\n" for name, value in QUICK.items()]
        (conf / "spark-defaults.conf").write_text("".join(lines))
        return {
            **os.environ,
            **environment(),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "SPARK_CONF_DIR": str(conf),
            "PYTHONUNBUFFERED": "1",
            "VIRTUAL_ENV": str(BIN.parent),
            "KBROKER_BOOTSTRAP": self._broker.bootstrap,
            "KBROKER_LISTEN": self._broker.bootstrap,
            "KBROKER_MEMORY_BYTES": SMALL[1],
            "KBROKER_WAL_BYTES": SMALL[3],
        }

    def _shell(self, block: Block) -> None:
        process = subprocess.Popen(
            ["bash", "-e", "-c", commands_of(block)],
            cwd=self._folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._groups.append(process.pid)
        self._is_served |= block.serves_on
        output = self._read_to_end(process, SPARK_BLOCK_SECONDS if block.needs_spark else BLOCK_SECONDS)
        if process.returncode != 0 or b"Traceback (most recent call last)" in output:
            raise BlockFailed(f"exit code {process.returncode}\n{_end_of(output)}")

    def _read_to_end(self, process: subprocess.Popen[bytes], seconds: float) -> bytes:
        """The output until the shell ends. A broker in the foreground is interrupted once it is ready."""
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        output, interrupted, deadline = b"", False, time.monotonic() + seconds
        while time.monotonic() < deadline:
            if select.select([descriptor], [], [], 0.2)[0]:
                piece = os.read(descriptor, 65536)
                if not piece:
                    process.wait(10)
                    return output
                output += piece
            elif process.poll() is not None:  # what it left in the background holds the pipe
                return output
            if not self._is_served and not interrupted and SERVES.search(output) and process.poll() is None:
                interrupted = True
                os.killpg(process.pid, signal.SIGINT)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise BlockFailed(f"did not end within {seconds:.0f} s\n{_end_of(output)}")

    def _interpret(self, block: Block) -> None:
        path = self._folder / f".block-{block.line}.{block.language}"
        path.write_text(block.text)
        if block.language == "sql":
            code = SQL.format(path=str(path))
            path = path.with_suffix(".py")
            path.write_text(code)
        if self._python is None:
            self._python = _Interpreter(self._folder, self._environment())
        self._python.run(path, SPARK_BLOCK_SECONDS if block.needs_spark else BLOCK_SECONDS)

    def _load(self, block: Block) -> None:
        path = self._folder / f".block-{block.line}.{block.language}"
        path.write_text(block.text)
        if block.language == "toml":
            load_config({"config": str(path)}, [])
        elif block.language == "properties":
            read_properties(None, str(path))
        else:
            _load_json(block.text)


class _Interpreter:
    """A Python process that keeps its names from block to block, as a notebook does."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self._output = folder / ".python-output"
        self._answers, answers = os.pipe()
        with open(self._output, "wb") as output:
            self._process = subprocess.Popen(
                ["bash", "-c", f'exec "$0" -c "$1" 3>&{answers}', sys.executable, INTERPRETER],
                cwd=folder, env=environ, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT,
                pass_fds=[answers], start_new_session=True,
            )  # fmt: skip
        os.close(answers)

    def run(self, path: Path, seconds: float) -> None:
        """Raises BlockFailed."""
        assert self._process.stdin is not None
        known = self._output.stat().st_size
        self._process.stdin.write(f"{path}\n".encode())
        self._process.stdin.flush()
        ready = select.select([self._answers], [], [], seconds)[0]
        answer = os.read(self._answers, 1) if ready else b""
        if answer != b"d":
            why = "it failed" if answer else "the interpreter ended" if ready else f"did not end within {seconds:.0f} s"
            raise BlockFailed(f"{why}\n{_end_of(self._output.read_bytes()[known:])}")

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        os.close(self._answers)


def _load_json(text: str) -> None:
    try:
        json.loads(text)
    except ValueError:
        for line in text.splitlines():
            json.loads(line)


def _end_of(output: bytes) -> str:
    return output.decode(errors="replace")[-OUTPUT_CHARS_MAX:]
