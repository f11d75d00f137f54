"""The consumer without a cluster: what it knows at the start, and how it fails."""

from __future__ import annotations

from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaTimeoutError

from kbroker.cli.client_properties import ClientProperties
from kbroker.cli.failure import CommandFailed
from kbroker.cli.records import consumer
from kbroker.cli.records.consumer import CLOSE_MS, TopicConsumer
from kbroker.cli.records.reading import Reading


class Library:
    """kafka-python's consumer, which knows `high_watermarks`; its commits are never answered."""

    DEFAULT_CONFIG = {"connections_max_idle_ms": 1}

    def __init__(self, **configs: Any) -> None:
        self.high_watermarks: dict[int, int] = {}
        self.timeouts_ms: list[int] = []
        self._assigned: list[TopicPartition] = []

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._assigned = partitions

    def seek(self, partition: TopicPartition, offset: int) -> None:
        pass

    def assignment(self) -> list[TopicPartition]:
        return self._assigned

    def highwater(self, partition: TopicPartition) -> int | None:
        return self.high_watermarks.get(partition.partition)

    def commit(self, timeout_ms: int) -> None:
        self.timeouts_ms.append(timeout_ms)
        raise KafkaTimeoutError(None)

    def close(self, autocommit: bool, timeout_ms: int) -> None:
        self.timeouts_ms.append(timeout_ms)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()

    class Made(Library):
        def __new__(cls, **configs: Any) -> Any:
            return made

    monkeypatch.setattr(consumer, "KafkaConsumer", Made)
    return made


def test_the_lag_is_not_known_before_all_partitions_are(library: Library) -> None:
    reading = TopicConsumer(ClientProperties(), Reading("t", [0, 1], {0: 5, 1: 7}))
    assert reading.lag() is None
    library.high_watermarks[0] = 8
    assert reading.lag() is None
    library.high_watermarks[1] = 7
    assert reading.lag() == 3


def test_a_member_without_partitions_knows_no_lag(library: Library) -> None:
    assert TopicConsumer(ClientProperties(), Reading("t", [], {})).lag() is None


def test_a_commit_that_no_broker_answers_is_said_so_after_10_seconds(library: Library) -> None:
    reading = TopicConsumer(ClientProperties("b:1"), Reading("t", [0], {}, group="g"))
    with pytest.raises(CommandFailed) as failure:
        reading.close()
    assert failure.value.message == "group g: the offsets were not committed: no broker answers at b:1"
    assert library.timeouts_ms[0] == CLOSE_MS == 10_000
    assert library.timeouts_ms[1] <= CLOSE_MS
