"""Runs `kbroker consume` and `kbroker produce` as a person would, in a process of their own."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

TIMEOUT_SECONDS = 120
SECONDS = 30
_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    output: bytes
    errors: str

    @property
    def lines(self) -> list[str]:
        return self.output.decode().splitlines()


@dataclass(frozen=True, slots=True)
class RecordCommands:
    """Commands for one cluster."""

    bootstrap: str
    environ: dict[str, str] = field(default_factory=dict)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "kbroker", *arguments, "--bootstrap-server", self.bootstrap]

    @contextlib.contextmanager
    def started(self, *arguments: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
        """A running command with pipes; killed at the end if it still runs."""
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | options
        environ = {**os.environ, **self.environ}
        with subprocess.Popen(self.command(*arguments), env=environ, **pipes) as running:
            try:
                yield running
            finally:
                running.kill()

    def ended(self, *arguments: str, lines: bytes = b"") -> Ended:
        """Runs a command to its end. No traceback is ever printed."""
        done = subprocess.run(
            self.command(*arguments), input=lines, capture_output=True, timeout=TIMEOUT_SECONDS,
            env={**os.environ, **self.environ}, check=False,
        )  # fmt: skip
        errors = done.stderr.decode()
        assert "Traceback" not in errors, errors
        return Ended(done.returncode, done.stdout, errors)

    def produce(self, topic: str, lines: bytes, *options: str) -> None:
        ended = self.ended("produce", topic, *options, lines=lines)
        assert ended.code == 0, ended.errors

    def consume(self, topic: str, *options: str) -> Ended:
        """To the ends of the partitions; whatever `options` say, it succeeds."""
        ended = self.ended("consume", topic, "--until-end", *options)
        assert ended.code == 0, ended.errors
        return ended

    def records(self, topic: str, *options: str) -> list[dict]:
        """What `consume --json` prints to the ends of the partitions."""
        return [json.loads(line) for line in self.consume(topic, "--json", *options).lines]

    def values(self, topic: str, *options: str) -> Sequence[str]:
        return [record["value"] for record in self.records(topic, *options)]


def new_topic(bootstrap: str, partitions: int = 1, **configs: str) -> str:
    topic = f"records-{next(_serial)}"
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    new = NewTopic(topic, partitions, 1, config={name.replace("_", "."): value for name, value in configs.items()})
    admin.create_topics([new])[topic].result(SECONDS)
    return topic


def numbers(count: int, start: int = 0) -> bytes:
    return b"".join(b"%d\n" % number for number in range(start, count))


def transactions(bootstrap: str, topic: str) -> Producer:
    """Records 0 to 9 committed, 10 to 14 aborted, 15 to 19 committed; each five end with a marker."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(SECONDS)
    for start, end in ((0, producer.commit_transaction), (5, producer.commit_transaction),
                       (10, producer.abort_transaction), (15, producer.commit_transaction)):  # fmt: skip
        producer.begin_transaction()
        for number in range(start, start + 5):
            producer.produce(topic, str(number))
        assert producer.flush(SECONDS) == 0
        end(SECONDS)
    return producer
