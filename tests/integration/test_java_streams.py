"""Kafka Streams counts words while its processes and the broker are killed.

With exactly_once_v2 every word's counts come out as 1, 2, 3, ... without a gap or a repeat, and the last are the exact
totals; with at_least_once no word is counted too low.
"""

from __future__ import annotations

import collections
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import java_tools
import pytest
from broker_process import BrokerProcess
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from conftest import SMALL, Store, require
from java_program import JavaProgram
from scenarios import new_topic
from served_apis import TRANSACTIONS, api_versions, need, settings
from test_client_confluent import CLIENT, QUIET
from until import until

from kbroker.protocol.api_keys import ApiKey

pytestmark = [pytest.mark.java, pytest.mark.slow]
PARTITIONS = 2
WORDS = [f"word-{number}" for number in range(12)]
LINES = 120  # sent at a time
SESSION_MS = 6_000
SECONDS = 60.0
SEED = 11
Counts = dict[str, list[int]]


@pytest.fixture(scope="module")
def broker_process(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that often checks for transactions that timed out."""
    require(not java_tools.missing(), java_tools.missing())
    data_dir: Path = tmp_path_factory.mktemp(store.kind) / "data"
    fast = settings(transaction_abort_timed_out_transaction_cleanup_interval_ms=500)
    process = BrokerProcess(data_dir, *store.options, *SMALL, environ={**store.environ, **fast})
    yield process
    process.kill()


class WordCount:
    """The application in one or more processes, its input and its output."""

    def __init__(self, broker: BrokerProcess, class_path: str, folder: Path, guarantee: str) -> None:
        self.broker = broker
        self.lines = new_topic(broker, CLIENT, "lines", PARTITIONS)
        self.counts = new_topic(broker, CLIENT, "counts", PARTITIONS)
        self._name = f"app-{self.lines}"
        self.repartitioned = f"{self._name}-words-repartition"
        self.sent: collections.Counter[str] = collections.Counter()
        self.programs: list[JavaProgram] = []
        self._draw = random.Random(SEED)
        self._class_path = class_path
        self._folder = folder
        self._guarantee = guarantee

    def new_process(self) -> JavaProgram:
        """Another process of the application."""
        number = len(self.programs)
        options = {
            "bootstrap.servers": self.broker.bootstrap,
            "processing.guarantee": self._guarantee,
            "state.dir": str(self._folder / f"state-{number}"),
            "commit.interval.ms": "100",
            "transaction.timeout.ms": "5000",
            "session.timeout.ms": str(SESSION_MS),
            "heartbeat.interval.ms": "500",
            "replication.factor": "1",
            "repartition.purge.interval.ms": "1000",
        }
        arguments = [self._name, self.lines, self.counts, *(f"{name}={v}" for name, v in options.items())]
        log = self._folder / f"app-{number}.log"
        self.programs.append(JavaProgram(self._class_path, "StreamsWordCount", *arguments, log_path=log))
        return self.programs[-1]

    def send(self) -> None:
        """Sends lines of words, which all are acknowledged."""
        producer = Producer({**QUIET, "bootstrap.servers": self.broker.bootstrap, "enable.idempotence": True})
        for number in range(LINES):
            words = self._draw.choices(WORDS, k=self._draw.randrange(1, 6))
            self.sent.update(words)
            producer.produce(self.lines, " ".join(words), partition=number % PARTITIONS)
        assert producer.flush(30) == 0

    def read_counts(self, enough: Callable[[Counts], bool], what: str) -> Counts:
        """The committed counts of each word in order, from the first on, once there are enough."""
        settings = {**QUIET, "bootstrap.servers": self.broker.bootstrap, "group.id": "none"}
        consumer = Consumer(settings | {"isolation.level": "read_committed", "enable.auto.commit": False})
        try:
            consumer.assign([TopicPartition(self.counts, partition, 0) for partition in range(PARTITIONS)])
            found: Counts = collections.defaultdict(list)
            deadline = time.monotonic() + SECONDS
            while not enough(found):
                assert time.monotonic() < deadline, f"no {what}: {found}; {self._state()}"
                message = consumer.poll(0.5)
                if message is not None and not message.error():
                    found[message.key().decode()].append(int.from_bytes(message.value(), "big"))
            return found
        finally:
            consumer.close()

    def wait_for_half(self) -> None:
        """Waits until half of the words sent have been counted."""
        half = self.sent.total() // 2
        self.read_counts(lambda found: sum(map(len, found.values())) >= half, f"{half} counts")

    def all_counted(self) -> Counts:
        """The counts once each word has come to its total or beyond."""
        return self.read_counts(
            lambda found: all(max(found[word], default=0) >= total for word, total in self.sent.items()), "all counts"
        )

    def _state(self) -> list[Sequence[object]]:
        return [(program.killed_ns is not None, program.events[-3:]) for program in self.programs]

    def kill(self) -> None:
        for program in self.programs:
            program.kill()


@pytest.fixture
def word_count(request: pytest.FixtureRequest, broker: BrokerProcess, tmp_path: Path) -> Iterator[WordCount]:
    """The application, not started; the parameter is its processing guarantee."""
    application = WordCount(broker, java_tools.compiled_apps(), tmp_path, request.param)
    yield application
    application.kill()


@pytest.mark.parametrize("word_count", ["exactly_once_v2"], indirect=True)
def test_exactly_once_counts_are_exact_despite_kills(word_count: WordCount) -> None:
    broker = word_count.broker
    need(broker, *TRANSACTIONS)
    first = word_count.new_process()
    word_count.send()
    first.wait_event("state", "RUNNING")
    word_count.wait_for_half()
    broker.kill()
    word_count.new_process()
    broker.start()
    word_count.send()
    word_count.wait_for_half()
    first.kill()
    word_count.send()
    third = word_count.new_process()
    third.wait_event("state", "RUNNING")
    broker.kill()
    broker.start()
    word_count.send()
    assert_exact(word_count)
    for program in word_count.programs[1:]:
        program.finish()
    assert_exact(word_count)


def assert_exact(word_count: WordCount) -> None:
    """Each word was counted up to its total in steps of one."""
    counted = word_count.all_counted()
    assert counted == {word: list(range(1, total + 1)) for word, total in word_count.sent.items()}


@pytest.mark.parametrize("word_count", ["at_least_once"], indirect=True)
def test_at_least_once_counts_are_not_too_low_despite_kills(word_count: WordCount) -> None:
    """No word is counted too low; and Streams deletes what it has read of its repartition topic."""
    broker = word_count.broker
    first = word_count.new_process()
    word_count.send()
    word_count.wait_for_half()
    broker.kill()
    broker.start()
    word_count.send()
    word_count.wait_for_half()
    first.kill()
    second = word_count.new_process()
    word_count.send()
    word_count.all_counted()
    if ApiKey.DELETE_RECORDS in {api.api_key for api in api_versions(broker).api_keys}:
        until(lambda: earliest_offset(broker, word_count.repartitioned) > 0, "deletion of what was read")
    second.finish()


def earliest_offset(broker: BrokerProcess, topic: str) -> int:
    """The least of the topic's first offsets."""
    admin = AdminClient({**QUIET, "bootstrap.servers": broker.bootstrap})
    asked = {TopicPartition(topic, partition): OffsetSpec.earliest() for partition in range(PARTITIONS)}
    return min(future.result(20).offset for future in admin.list_offsets(asked).values())
