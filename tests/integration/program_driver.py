"""Client libraries of other languages, each driven through a program of its own.

A program reads one JSON request per line and writes one JSON answer per line. go/lines/lines.go lists the requests;
every program understands the same ones.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from scenarios import Mode
from workload import Delivered, Message, Read, Shape

TOOLS = Path(__file__).parents[2] / ".tools"
NODE_MODULES = TOOLS / "node/node_modules"
NODE_SOURCES = Path(__file__).parent / "node"
DEADLINE_SECONDS = 40.0  # a program's own deadline is 30 s


class ClientError(RuntimeError):
    """The library's error, in its own words."""


class ClientProgram:
    """A running program. Leaving the `with` block kills it, and its clients with it, without a clean close."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **environ}
        )
        self._unread = b""

    def ask(self, do: str, **request: Any) -> Any:
        """The result of a request. Raises ClientError."""
        self.post(do, **request)
        return self.answer()

    def post(self, do: str, **request: Any) -> None:
        """Sends a request whose `answer` is taken later; one at a time."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """The result of the posted request. Raises ClientError; AssertionError when no answer comes."""
        answer = json.loads(self._line())
        if error := answer.get("error"):
            raise ClientError(error)
        return answer["result"]

    def _line(self) -> bytes:
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        deadline = time.monotonic() + DEADLINE_SECONDS
        pieces = [self._unread]
        while b"\n" not in pieces[-1]:
            seconds = max(deadline - time.monotonic(), 0)
            assert select.select([descriptor], [], [], seconds)[0], "no answer"
            pieces.append(os.read(descriptor, 1 << 20))
            assert pieces[-1], f"the program ended: {self.process.wait()}"
        line, _, self._unread = b"".join(pieces).partition(b"\n")
        return line

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    def __enter__(self) -> ClientProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class ProgramDriver:
    """A library behind its program: a `scenarios.Driver`. It keeps one program per broker address until `close`.

    `command` starts the program; the broker's address is its next argument, then `arguments`.
    """

    partitions = 3

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *arguments: str,
        large_codec: str = "zstd",
        shape: Shape = Shape.ANY,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.shape = shape
        self.large_codec = large_codec  # for large messages
        self._command = command
        self._arguments = arguments
        self._environ = environ or {}
        self._programs: dict[str, ClientProgram] = {}

    def start(self, bootstrap: str) -> ClientProgram:
        """A new program, which the caller ends."""
        return ClientProgram([*self._command, bootstrap, *self._arguments], self._environ)

    def program(self, bootstrap: str) -> ClientProgram:
        """The program for requests that leave nothing open."""
        if bootstrap not in self._programs:
            self._programs[bootstrap] = self.start(bootstrap)
        return self._programs[bootstrap]

    def close(self) -> None:
        for program in self._programs.values():
            program.kill()
        self._programs.clear()

    def installed(self) -> bool:
        """Whether the program can run on this machine."""
        return all(map(shutil.which, self._command[:1])) and all(
            map(os.path.exists, (*self._command[1:], *self._environ.values()))
        )

    def send(
        self, bootstrap: str, topic: str, messages: Sequence[tuple[int | None, Message]], *, codec: str, mode: Mode
    ) -> None:
        self.program(bootstrap).ask("send", **to_send(topic, messages, codec=codec, mode=mode))

    def read_assigned(self, bootstrap: str, topic: str, counts: Mapping[int, int]) -> Read:
        return was_read(self.program(bootstrap).ask("read", topic=topic, counts=counts))

    def read_subscribed(self, bootstrap: str, topic: str, group: str, count: int) -> Read:
        program = self.program(bootstrap)
        read = was_read(program.ask("read_group", topic=topic, group=group, count=count))
        committed = program.ask("committed", topic=topic, group=group)
        assert committed == {str(partition): len(messages) for partition, messages in read.items()}
        return read


FRANZ_GO = ProgramDriver("franz-go", [str(TOOLS / "bin/franz_go")])
SARAMA = ProgramDriver("sarama", [str(TOOLS / "bin/sarama")], "max")
# Without a configured version, sarama assumes an old broker and sends older versions of most requests.
SARAMA_BY_DEFAULT = ProgramDriver("sarama-default", [str(TOOLS / "bin/sarama")], "default")
KAFKAJS = ProgramDriver(
    "kafkajs",
    ["node", str(NODE_SOURCES / "kafkajs.js")],
    large_codec="gzip",
    shape=Shape.BYTES,  # it cannot write null headers
    environ={"NODE_PATH": str(NODE_MODULES)},
)


def case(driver: ProgramDriver, *values: str) -> Any:
    """Parameters of a test that one client runs: the driver, then these."""
    marks = [pytest.mark.feature("sarama" if driver is SARAMA_BY_DEFAULT else driver.name)]
    if "s3" in values:
        marks.append(pytest.mark.s3)
    return pytest.param(driver, *values, marks=marks, id="-".join([driver.name, *values]))


EVERY_CLIENT = pytest.mark.parametrize("driver", [case(FRANZ_GO), case(SARAMA), case(KAFKAJS)], indirect=True)


def to_send(
    topic: str, messages: Sequence[tuple[int | None, Message]], *, codec: str = "none", mode: Mode
) -> dict[str, Any]:
    """The fields of a request to send."""
    return {
        "topic": topic,
        "codec": codec,
        "acks": mode.acks,
        "idempotent": mode.idempotent,
        "messages": [as_json(partition, message) for partition, message in messages],
    }


def as_json(partition: int | None, message: Message) -> dict[str, Any]:
    """A message in a request."""
    return {
        "partition": partition,
        "key": _base64(message.key),
        "value": _base64(message.value),
        "headers": [{"name": name, "value": _base64(value)} for name, value in message.headers],
        "timestamp": message.timestamp_ms,
    }


def was_read(messages: Sequence[Mapping[str, Any]]) -> Read:
    """Messages of an answer, by partition."""
    read: Read = {}
    for message in messages:
        headers = tuple((header["name"], _bytes(header["value"])) for header in message["headers"])
        read.setdefault(message["partition"], []).append(
            Delivered(
                message["offset"], _bytes(message["key"]), _bytes(message["value"]), headers, message["timestamp"]
            )
        )
    return read


def _base64(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else b64decode(value)
