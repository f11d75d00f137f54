"""Runs `kbroker topic` and the like as a person would, against a kbroker or an Apache Kafka."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from kbroker._fast.records.records import build_batch
from kbroker.client.cluster_client import ClusterClient
from kbroker.protocol.apis.records.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData

TIMEOUT_SECONDS = 120
PRODUCE_BY_NAME = 11  # before transactions take up partitions by themselves
_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: the lines that it printed."""

    output: list[str]
    errors: list[str]


@dataclass(frozen=True, slots=True)
class TopicCommands:
    """Commands for one cluster."""

    bootstrap: str
    is_kbroker: bool = True

    def run(self, *arguments: str, code: int = 0) -> Ended:
        """A command that must end with this code, and without a traceback."""
        done = subprocess.run(
            [sys.executable, "-m", "kbroker", *arguments, "--bootstrap-server", self.bootstrap],
            capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return Ended(done.stdout.splitlines(), done.stderr.splitlines())

    def rows(self, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
        """The objects that a command prints with --json."""
        return [json.loads(line) for line in self.run(*arguments, "--json", code=code).output]

    def new_topic(self, *options: str, partitions: int = 1) -> str:
        topic = f"commands-{next(_serial)}"
        self.run("topic", "create", topic, "-p", str(partitions), *options)
        return topic

    def described(self, topic: str) -> dict[str, Any]:
        (found,) = self.rows("topic", "describe", topic)
        return found

    def partitions(self, topic: str, field: str) -> list[Any]:
        """A field of each partition."""
        return [part[field] for part in self.described(topic)["partitions"]]

    def append(self, topic: str, timestamps: list[int], partition: int = 0, producer_id: int = -1) -> None:
        """A batch with a record for each timestamp; of a transaction that no coordinator knows, with a producer id."""
        open_transaction = producer_id >= 0
        batch = build_batch(
            [(b"key", b"value" * 20, timestamp, None) for timestamp in timestamps],
            producer_id=producer_id,
            producer_epoch=0 if open_transaction else -1,
            base_sequence=0 if open_transaction else -1,
            transactional=open_transaction,
        )
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
        request = ProduceRequest(
            transactional_id="lost" if open_transaction else None, acks=-1, timeout_ms=30_000, topic_data=[data]
        )
        client = ClusterClient(self.bootstrap)
        try:
            response = client.any_broker(request, PRODUCE_BY_NAME, _codes)  # a new topic's leader may not know yet
        finally:
            client.close()
        answer = response.responses[0].partition_responses[0]
        assert answer.error_code == 0, answer


def _codes(response: Any) -> list[int]:
    return [part.error_code for topic in response.responses for part in topic.partition_responses]
