"""Apache Kafka's own command line tools, run from the jars in .tools/kafka."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

JARS = Path(__file__).parents[2] / ".tools" / "kafka"
TOOLS = "org.apache.kafka.tools"
# Short runs: a small heap, no second compiler, no parallel collector.
JVM = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Dfile.encoding=UTF-8")
TIMEOUT_SECONDS = 90.0


class ToolError(RuntimeError):
    """A tool ended with an error; the message holds its output."""


def missing() -> str:
    """What is not on this machine, or an empty string."""
    if shutil.which("java") is None:
        return "no java on PATH"
    if not list(JARS.glob("kafka-tools-*.jar")):
        return "no Kafka jars in .tools/kafka: run scripts/fetch_tools.sh"
    return ""


def command(tool: str, *arguments: str) -> list[str]:
    """The command line of one tool: a class of `org.apache.kafka.tools`, or of `kafka.`."""
    name = tool if tool.startswith("kafka.") else f"{TOOLS}.{tool}"
    return ["java", *JVM, "-cp", f"{JARS}/*", name, *arguments]


def run(tool: str, *arguments: str, stdin: bytes = b"", timeout: float = TIMEOUT_SECONDS) -> bytes:
    """Runs a tool to its end and returns what it printed. Raises ToolError, and TimeoutExpired."""
    done = subprocess.run(command(tool, *arguments), input=stdin, capture_output=True, timeout=timeout)
    if done.returncode:
        output = (done.stdout[-2000:] + done.stderr[-4000:]).decode(errors="replace")
        raise ToolError(f"{tool} {' '.join(arguments)} ended with {done.returncode}\n{output}")
    return done.stdout


def properties(flag: str, **values: str | int) -> list[str]:
    """`flag name=value` for each value."""
    return [part for name, value in values.items() for part in (flag, f"{name}={value}")]
