"""Java on this machine: Apache Kafka's tools from the jars in .tools, and our own programs in tests/integration/java.

Sources in java/clients use public client classes alone and run with each version of the clients; those in java/share
need share groups, which older clients do not have; those in java/apps use Streams, Connect, tools or internals of one
version; those in java/mirror use MirrorMaker 2, of which the release of its own jars is older.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import zlib
from pathlib import Path

TOOLS_FOLDER = Path(__file__).parents[2] / ".tools"
JARS = TOOLS_FOLDER / "kafka"
CLIENT_JARS = TOOLS_FOLDER / "kafka-clients"
MIRROR_JARS = TOOLS_FOLDER / "kafka-mirror"
SOURCES = Path(__file__).parent / "java"
TOOLS = "org.apache.kafka.tools"
CLIENT_VERSIONS = ("3.9.2", "4.4.0")
NEWEST_CLIENTS = CLIENT_VERSIONS[-1]
CLIENT_NEEDS = ("lz4-java-*", "snappy-java-*", "zstd-jni-*", "slf4j-api-*", "slf4j-nop-*")
# Short runs: a small heap, no second compiler, no parallel collector, and the class archive of scripts/fetch_tools.sh,
# which saves two fifths of a start. A JVM with other jars first in its class path cannot use it, and must not say so
# on its standard output.
JVM = (
    "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dfile.encoding=UTF-8",
    "-Xshare:auto", f"-XX:SharedArchiveFile={JARS / 'classes.jsa'}", "-Xlog:disable",
)  # fmt: skip
COMPILE_SECONDS = 90.0
CLASSES = TOOLS_FOLDER / "classes"


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


def compiled_clients(version: str) -> str:
    """The class path of the programs in java/clients, compiled against this version of the clients."""
    libraries = clients_classpath(version)
    return f"{_compiled(version, libraries, 'clients')}:{libraries}"


def compiled_share() -> str:
    """The class path of the programs in java/share, which older clients than the newest cannot compile."""
    libraries = clients_classpath(NEWEST_CLIENTS)
    return f"{_compiled('share', libraries, 'clients', 'share')}:{libraries}"


def compiled_apps() -> str:
    """The class path of all programs, compiled against the jars in .tools/kafka, which come first (see JVM)."""
    return f"{apps_classpath()}:{_compiled('apps', apps_classpath(), 'clients', 'apps')}"


def compiled_mirror() -> str:
    """The class path of MirrorMaker 2 and the programs in java/mirror."""
    libraries = f"{MIRROR_JARS}/*:{apps_classpath()}"
    return f"{libraries}:{_compiled('mirror', libraries, 'clients', 'mirror')}"


def _compiled(name: str, libraries: str, *sources: str) -> Path:
    """The folder of the compiled classes, which all runs share as long as the sources stay. Raises ToolError."""
    files = [path for folder in sources for path in sorted((SOURCES / folder).glob("*.java"))]
    checksum = zlib.crc32(b"".join([libraries.encode(), *(path.read_bytes() for path in files)]))
    target = CLASSES / f"{name}-{checksum:08x}"
    CLASSES.mkdir(exist_ok=True)
    with open(CLASSES / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            for old in CLASSES.glob(f"{name}-????????"):
                shutil.rmtree(old)
            unfinished = CLASSES / "unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            _compile(files, libraries, unfinished)
            unfinished.rename(target)
    return target


def _compile(files: list[Path], libraries: str, folder: Path) -> None:
    flags = ("-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC", "-proc:none", "-nowarn", "-encoding", "UTF-8")
    done = subprocess.run(
        ["javac", *flags, "-d", str(folder), "-cp", libraries, *map(str, files)],
        capture_output=True,
        timeout=COMPILE_SECONDS,
    )
    if done.returncode:
        raise ToolError((done.stdout + done.stderr).decode(errors="replace"))
