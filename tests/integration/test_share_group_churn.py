"""Share groups of librdkafka while their topics are deleted and recreated: no state of the old topic is written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest
from broker_process import BrokerProcess
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from conftest import ON_A_FOLDER, SMALL, Store, require
from until import until

QUIET = {"log_level": 0}
TOPICS = ("first", "second")
GROUPS = 4
ROUNDS = 25  # of deletions; without the fix about one in ten has a write that comes too late


@pytest.fixture
def sharing(store: Store, tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data", *store.options, "--share-groups", *SMALL, environ=store.environ)
    yield process.start()
    process.kill()


def make(admin: AdminClient, topic: str) -> None:
    """The producer may have created it already, by its metadata requests."""
    try:
        admin.create_topics([NewTopic(topic, 2)])[topic].result(10)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


@ON_A_FOLDER
def test_share_groups_survive_deleted_and_recreated_topics(sharing: BrokerProcess) -> None:
    require(hasattr(confluent_kafka, "ShareConsumer"), "confluent-kafka without share consumers")
    bootstrap = {"bootstrap.servers": sharing.bootstrap, **QUIET}
    admin = AdminClient(bootstrap)
    for topic in TOPICS:
        make(admin, topic)
    ended = threading.Event()
    received = [0] * GROUPS
    failures: list[BaseException] = []

    def consume(number: int) -> None:
        groups = 0
        while not ended.is_set():
            groups += 1
            consumer = confluent_kafka.ShareConsumer({**bootstrap, "group.id": f"group-{number}-{groups % 3}"})
            consumer.subscribe(list(TOPICS))
            until_then = time.monotonic() + 1.5
            while not ended.is_set() and time.monotonic() < until_then:
                try:
                    received[number] += len(consumer.poll(0.2) or [])
                except KafkaException:
                    pass  # of a deleted topic
            consumer.close()

    def produce() -> None:
        producer = Producer({**bootstrap, "message.timeout.ms": 1000})
        while not ended.is_set():
            for topic in TOPICS:
                for _ in range(20):
                    producer.produce(topic, b"value")
            producer.flush(0.05)

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                failures.append(error)

        return run

    works: list[Callable[[], None]] = [produce, *(lambda n=n: consume(n) for n in range(GROUPS))]  # type: ignore[misc]
    threads = [threading.Thread(target=guarded(work)) for work in works]
    for thread in threads:
        thread.start()
    try:
        for place in range(ROUNDS):
            topic = TOPICS[place % len(TOPICS)]
            before = sum(received)
            until(lambda before=before: sum(received) > before or failures, "record")  # type: ignore[misc]
            admin.delete_topics([topic])[topic].result(10)
            make(admin, topic)
    finally:
        ended.set()
        for thread in threads:
            thread.join(60)
    assert failures == []
    assert sharing.stop() == 0
    log = sharing.log()
    assert "share state of" not in log
    assert "Traceback" not in log
    assert " ERROR " not in log
