"""Apache Kafka's tool classes, run one after the other in one JVM."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass
from pathlib import Path

import java_tools
import pytest
from java_program import JavaProgram


@dataclass(frozen=True, slots=True)
class Printed:
    """How one run of a tool ended."""

    code: int
    output: str
    errors: str

    def lines(self) -> list[str]:
        """The lines of the output that are not empty."""
        return [line for line in self.output.splitlines() if line.strip()]


class ToolShell:
    """The JVM; `run` and `fails` take a tool as `java_tools.run` does."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        log: Path = folders.mktemp("tools") / "shell.log"
        self._program = JavaProgram(java_tools.compiled_apps(folders), "ToolShell", log_path=log)
        self._runs = 0

    def run_any(self, tool: str, *arguments: str) -> Printed:
        """Runs a tool to its end."""
        self._runs += 1
        self._program.tell(java_tools.full_name(tool), *arguments)
        code, output, errors = self._program.wait_event("done", count=self._runs).fields
        return Printed(int(code), b64decode(output).decode(), b64decode(errors).decode())

    def run(self, tool: str, *arguments: str) -> Printed:
        """Runs a tool that must succeed."""
        printed = self.run_any(tool, *arguments)
        assert printed.code == 0, f"{tool} {' '.join(arguments)}: {printed}"
        return printed

    def fails(self, tool: str, *arguments: str) -> str:
        """Runs a tool that must fail; all it printed."""
        printed = self.run_any(tool, *arguments)
        assert printed.code != 0, f"{tool} {' '.join(arguments)}: {printed}"
        return printed.output + printed.errors

    def close(self) -> None:
        """Ends the JVM."""
        self._program.kill()
