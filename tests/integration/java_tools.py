"""Java on this machine: Apache Kafka's tools from the jars in .tools, and our own programs in tests/integration/java.

Sources in java/clients use public client classes alone and run with each version of the clients; those in java/share
need share groups, which older clients do not have; those in java/apps use Streams, Connect, tools or internals of one
version; those in java/mirror use MirrorMaker 2, of which the release of its own jars is older.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

TOOLS_FOLDER = Path(__file__).parents[2] / ".tools"
JARS = TOOLS_FOLDER / "kafka"
CLIENT_JARS = TOOLS_FOLDER / "kafka-clients"
MIRROR_JARS = TOOLS_FOLDER / "kafka-mirror"
SOURCES = Path(__file__).parent / "java"
TOOLS = "org.apache.kafka.tools"
CLIENT_VERSIONS = ("3.9.2", "4.4.0")
NEWEST_CLIENTS = CLIENT_VERSIONS[-1]
CLIENT_NEEDS = ("lz4-java-*", "snappy-java-*", "zstd-jni-*", "slf4j-api-*", "slf4j-nop-*")
# Short runs: a small heap, no second compiler, no parallel collector, and classes from the archive that
# scripts/fetch_tools.sh makes of the jars in .tools/kafka: it spares two fifths of a start. A JVM that cannot use it,
# because other jars come first in its class path, goes without, and is not to say so on its standard output.
JVM = (
    "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dfile.encoding=UTF-8",
    "-Xshare:auto", f"-XX:SharedArchiveFile={JARS / 'classes.jsa'}", "-Xlog:disable",
)  # fmt: skip
TIMEOUT_SECONDS = 90.0


class ToolError(RuntimeError):
    """A tool ended with an error; the message holds its output."""


def missing() -> str:
    """What is not on this machine, or an empty string."""
    for program in ("java", "javac"):
        if shutil.which(program) is None:
            return f"no {program} on PATH"
    if not list(JARS.glob("kafka-tools-*.jar")) or not list(CLIENT_JARS.glob(f"kafka-clients-{NEWEST_CLIENTS}.jar")):
        return "no Kafka jars in .tools: run scripts/fetch_tools.sh"
    return ""


def command(tool: str, *arguments: str) -> list[str]:
    """The command line of one tool: a class of `org.apache.kafka.tools`."""
    return ["java", *JVM, "-cp", apps_classpath(), full_name(tool), *arguments]


def full_name(tool: str) -> str:
    """The class of a tool."""
    return f"{TOOLS}.{tool}"


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


def clients_classpath(version: str) -> str:
    """The clients of one version and what they load."""
    needed = [path for pattern in CLIENT_NEEDS for path in sorted(JARS.glob(f"{pattern}.jar"))]
    return ":".join(map(str, [CLIENT_JARS / f"kafka-clients-{version}.jar", *needed]))


def apps_classpath() -> str:
    """Everything in .tools/kafka."""
    return f"{JARS}/*"


def compiled_clients(folders: pytest.TempPathFactory, version: str) -> str:
    """The class path of the programs in java/clients, compiled against this version of the clients."""
    libraries = clients_classpath(version)
    return f"{_compiled(folders, version, libraries, 'clients')}:{libraries}"


def compiled_share(folders: pytest.TempPathFactory) -> str:
    """The class path of the programs in java/share, which older clients than the newest cannot compile."""
    libraries = clients_classpath(NEWEST_CLIENTS)
    return f"{_compiled(folders, 'share', libraries, 'clients', 'share')}:{libraries}"


def compiled_apps(folders: pytest.TempPathFactory) -> str:
    """The class path of all programs, compiled against the jars in .tools/kafka, which come first (see JVM)."""
    return f"{apps_classpath()}:{_compiled(folders, 'apps', apps_classpath(), 'clients', 'apps')}"


def compiled_mirror(folders: pytest.TempPathFactory) -> str:
    """The class path of MirrorMaker 2 and the programs in java/mirror."""
    libraries = f"{MIRROR_JARS}/*:{apps_classpath()}"
    return f"{libraries}:{_compiled(folders, 'mirror', libraries, 'clients', 'mirror')}"


def _compiled(folders: pytest.TempPathFactory, name: str, libraries: str, *sources: str) -> Path:
    """Compiles once in a test run; the folder of the classes. Raises ToolError."""
    target = folders.getbasetemp() / f"java-classes-{name}"
    if target.exists():
        return target
    files = [str(path) for folder in sources for path in sorted((SOURCES / folder).glob("*.java"))]
    unfinished = folders.mktemp(f"javac-{name}")
    flags = ("-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC", "-proc:none", "-nowarn", "-encoding", "UTF-8")
    done = subprocess.run(
        ["javac", *flags, "-d", str(unfinished), "-cp", libraries, *files], capture_output=True, timeout=TIMEOUT_SECONDS
    )
    if done.returncode:
        raise ToolError((done.stdout + done.stderr).decode(errors="replace"))
    unfinished.rename(target)
    return target
