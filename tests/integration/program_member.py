"""A member of a consumer group that runs in a client library's program."""

from __future__ import annotations

from typing import Any

import scenarios
from broker_process import BrokerProcess
from program_driver import ProgramDriver
from scenarios import IDEMPOTENT
from workload import Message, Sent, spread

PARTITIONS = 4


class Member:
    """A group member in a program of its own."""

    def __init__(self, driver: ProgramDriver, broker: BrokerProcess, topic: str, **options: str) -> None:
        self.program = driver.start(broker.bootstrap)
        self.program.ask("join", topic=topic, group=f"group-of-{topic}", **options)

    def seen(self) -> dict[str, Any]:
        """What it owns and has read, and how often its assignment changed."""
        seen: dict[str, Any] = self.program.ask("member")
        return seen

    def owned(self) -> set[int]:
        return set(self.seen()["owned"])

    def read(self) -> list[tuple[int, int]]:
        """(partition, offset) of all it has read, sorted."""
        return sorted((partition, offset) for partition, offset in self.seen()["read"])


def places(count: int, first: int = 0) -> list[tuple[int, int]]:
    """(partition, offset) of messages with these offsets in every partition."""
    return [(partition, offset) for partition in range(PARTITIONS) for offset in range(first, count)]


def send_evenly(broker: BrokerProcess, driver: ProgramDriver, topic: str, each: int) -> None:
    """Sends the same number of messages to every partition."""
    sent: Sent = spread([Message(None, b"%d" % number) for number in range(each * PARTITIONS)], PARTITIONS)
    scenarios.send(broker, driver, topic, sent, "none", IDEMPOTENT)
