"""Apache Kafka's tool classes, run one after the other in one JVM for each process of the tests."""

from __future__ import annotations

import shutil
import tempfile
from base64 import b64decode, b64encode
from dataclasses import dataclass
from pathlib import Path

import java_tools
from java_program import JavaProgram
from java_tools import ToolError

TIMEOUT_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Printed:
    """How one run of a tool ended."""

    code: int
    raw: bytes  # its standard output
    errors: str

    @property
    def output(self) -> str:
        return self.raw.decode()

    def lines(self) -> list[str]:
        """The lines of the output that are not empty."""
        return [line for line in self.output.splitlines() if line.strip()]


class ToolShell:
    """Runs tools, classes of `org.apache.kafka.tools`. The first run starts the JVM. For one thread."""

    def __init__(self) -> None:
        self._program: JavaProgram | None = None
        self._folder = Path()
        self._runs = 0

    def run_any(self, tool: str, *arguments: str, stdin: bytes = b"") -> Printed:
        """Runs a tool to its end. AssertionError when it takes too long."""
        program = self._program or self._start()
        self._runs += 1
        program.tell(java_tools.full_name(tool), b64encode(stdin).decode(), *arguments)
        try:
            code, output, errors = program.wait_event("done", count=self._runs, seconds=TIMEOUT_SECONDS).fields
        except AssertionError:
            self.close()
            raise
        return Printed(int(code), b64decode(output), b64decode(errors).decode(errors="replace"))

    def run(self, tool: str, *arguments: str, stdin: bytes = b"") -> Printed:
        """Runs a tool that must succeed. Raises ToolError."""
        printed = self.run_any(tool, *arguments, stdin=stdin)
        if printed.code:
            output = printed.raw[-2000:].decode(errors="replace") + printed.errors[-4000:]
            raise ToolError(f"{tool} {' '.join(arguments)} ended with {printed.code}\n{output}")
        return printed

    def fails(self, tool: str, *arguments: str) -> str:
        """Runs a tool that must fail; all it printed."""
        printed = self.run_any(tool, *arguments)
        assert printed.code != 0, f"{tool} {' '.join(arguments)}: {printed}"
        return printed.output + printed.errors

    def _start(self) -> JavaProgram:
        self._folder = Path(tempfile.mkdtemp(prefix="kbroker-tools-"))
        self._runs = 0
        log_path = self._folder / "shell.log"
        self._program = JavaProgram(java_tools.compiled_apps(), "ToolShell", log_path=log_path, heap="256m")
        return self._program

    def close(self) -> None:
        """Ends the JVM."""
        if self._program is not None:
            self._program.kill()
            self._program = None
            shutil.rmtree(self._folder)


SHELL = ToolShell()
