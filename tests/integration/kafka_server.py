"""A real Apache Kafka for tests: one KRaft node from the jars in .tools, on a log folder that it leaves in place."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
from pathlib import Path

import java_tools

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
START_SECONDS = 60
HEAP = ("-Xmx384m", "-Xms128m")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class KafkaServer:
    """Node 1, with these properties beside what it needs. `start` formats the folder if nothing has; `stop` is a clean
    one."""

    def __init__(self, log_folder: Path, **properties: str) -> None:
        self._extra = "".join(f"{name.replace('_', '.')}={value}\n" for name, value in properties.items())
        self.log_folder = log_folder
        self.port = _free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._controller_port = _free_port()
        self._properties = log_folder.with_name(f"{log_folder.name}.properties")
        self._output = log_folder.with_name(f"{log_folder.name}.out")

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> KafkaServer:
        """Returns when clients can connect. RuntimeError with its output when it exits before."""
        self._properties.write_text(
            f"""process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{self._controller_port}
listeners=PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{self._controller_port}
advertised.listeners=PLAINTEXT://{self.bootstrap}
controller.listener.names=CONTROLLER
log.dirs={self.log_folder}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
{self._extra}"""
        )
        java = ["java", *java_tools.JVM, *HEAP, "-cp", java_tools.apps_classpath()]
        if not (self.log_folder / "meta.properties").exists():
            format_command = [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._properties)]
            subprocess.run(format_command, check=True, capture_output=True, timeout=START_SECONDS)
        with open(self._output, "ab") as output:
            self.process = subprocess.Popen(
                [*java, "kafka.Kafka", str(self._properties)], stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )
        for _ in range(START_SECONDS * 10):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return self
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.1)
                break
        self.kill()
        raise RuntimeError(f"Kafka does not start: {self._output.read_text()[-4000:]}")

    def stop(self) -> None:
        """SIGTERM, and waits for its end."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(START_SECONDS)

    def kill(self) -> None:
        """Ends it at once."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
