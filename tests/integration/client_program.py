"""A client library of another language, as a program that is told what to do: a JSON request per line, an answer each.

What the requests are is in go/lines/lines.go; each library's program understands the same ones.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scenarios import Mode
from workload import Delivered, Message, Read, Shape

TOOLS = Path(__file__).parents[2] / ".tools"
NODE_MODULES = TOOLS / "node/node_modules"
NODE_SOURCES = Path(__file__).parent / "node"
DEADLINE_SECONDS = 40.0  # the programs' own is 30


class ClientError(RuntimeError):
    """The library's error, as it words it."""


class ClientProgram:
    """A running program. Leaving the `with` block ends it, and what it has open with it, without a goodbye."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **environ}
        )
        self._left = bytearray()

    def ask(self, do: str, **request: Any) -> Any:
        """The result of a request. Raises ClientError."""
        self.post(do, **request)
        return self.answer()

    def post(self, do: str, **request: Any) -> None:
        """Makes a request whose `answer` is taken later; one at a time."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """The result of the request posted. Raises ClientError; AssertionError when no answer comes."""
        answer = json.loads(self._line())
        if error := answer.get("error"):
            raise ClientError(error)
        return answer["result"]

    def _line(self) -> bytes:
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        deadline = time.monotonic() + DEADLINE_SECONDS
        pieces: list[bytes] = [bytes(self._left)]
        while b"\n" not in pieces[-1]:
            waits = max(deadline - time.monotonic(), 0)
            assert select.select([descriptor], [], [], waits)[0], "no answer"
            pieces.append(os.read(descriptor, 1 << 20))
            assert pieces[-1], f"the program ended: {self.process.wait()}"
        line, _, left = b"".join(pieces).partition(b"\n")
        self._left = bytearray(left)
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


class ProgramClient:
    """A library by its program: the `Driver` of `scenarios`. One program per broker address lives until `close`."""

    partitions = 3

    def __init__(
        self,
        name: str,
        command: Callable[[str], Sequence[str]],
        *,
        shape: Shape = Shape.ANY,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.shape = shape
        self._command = command
        self._environ = environ or {}
        self._programs: dict[str, ClientProgram] = {}

    def start(self, bootstrap: str) -> ClientProgram:
        """A program of its own, for the caller to end."""
        return ClientProgram(self._command(bootstrap), self._environ)

    def program(self, bootstrap: str) -> ClientProgram:
        """The program for requests that leave nothing open."""
        if bootstrap not in self._programs:
            self._programs[bootstrap] = self.start(bootstrap)
        return self._programs[bootstrap]

    def close(self) -> None:
        for program in self._programs.values():
            program.kill()
        self._programs.clear()

    def missing(self) -> bool:
        """Whether the program has not been built here."""
        return not all(Path(part).exists() for part in self._command("") if part.startswith("/"))

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
