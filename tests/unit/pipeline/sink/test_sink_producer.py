"""What a task's producer asks of its broker before the first record."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from kbroker.pipeline.sink import producer, task_producer
from kbroker.pipeline.sink.batch_writer import can_follow
from kbroker.pipeline.sink.options import SinkOptions, parse_options
from kbroker.pipeline.sink.producer import SinkProducer
from kbroker.pipeline.sink.task_producer import give_back, idle_producer


class Client:
    """A confluent-kafka producer that writes down what is asked of it."""

    asked: list[str]
    fails = False

    def __init__(self, settings: dict[str, Any]) -> None:
        self.asked.append("new")

    def list_topics(self, topic: str, timeout: float) -> None:
        self.asked.append(topic)
        if self.fails:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def init_transactions(self, timeout: float) -> None:
        self.asked.append("id")

    def begin_transaction(self) -> None:
        self.asked.append("begin")

    def poll(self, timeout: float) -> int:
        return 0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(Client, "asked", found, raising=False)
    monkeypatch.setattr(producer, "Producer", Client)
    monkeypatch.setattr(task_producer, "_idle", {})
    return found


OF_LIBRDKAFKA = {"kafka__socket__keepalive__enable": "true"}


def options(**more: str) -> SinkOptions:
    given = {name.replace("__", "."): value for name, value in more.items()}
    return parse_options({"kafka.bootstrap.servers": "b:9092"} | given, streaming=False)


def test_a_new_producer_asks_for_metadata_until_its_broker_is_connected(asked: list[str]) -> None:
    idle_producer(options(topic="t", **OF_LIBRDKAFKA))
    assert asked == ["new", "t", "t"]


def test_a_producer_that_was_given_back_has_its_id(asked: list[str]) -> None:
    settings = options(topic="t", **OF_LIBRDKAFKA)
    first = idle_producer(settings)
    give_back(first)
    asked.clear()
    assert idle_producer(settings) is first
    assert asked == []


@pytest.mark.parametrize("given", [OF_LIBRDKAFKA, {"topic": "t", "kafka__acks": "1"}])
def test_without_a_topic_or_without_idempotence_nothing_is_asked(asked: list[str], given: dict[str, str]) -> None:
    idle_producer(options(**given))
    assert asked == ["new"]


def test_a_transaction_is_begun_when_its_broker_is_connected(asked: list[str]) -> None:
    SinkProducer(options(topic="t"), "id").begin()
    assert asked == ["new", "t", "t", "id", "begin"]


def test_a_broker_that_does_not_answer_is_left_to_the_records(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, "fails", True)
    idle_producer(options(topic="t", **OF_LIBRDKAFKA))
    assert asked == ["new", "t"]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"kafka__acks": "-1", "kafka__linger__ms": "5", "kafka__batch__size": "16384", "kafka__client__id": "c"},
        {"kafka__compression__type": "zstd", "kafka__security__protocol": "PLAINTEXT"},
        {"kafka__buffer__memory": "1000000", "kafka__max__request__size": "5000000"},
    ],
)
def test_settings_that_kbrokers_client_knows_need_no_other(given: dict[str, str]) -> None:
    assert can_follow(options(**given))


@pytest.mark.parametrize(
    "given",
    [
        {"kafka__acks": "1"},
        {"kafka__enable__idempotence": "false"},
        {"kafka__security__protocol": "SASL_SSL"},
        {"kafka__partitioner": "consistent_random"},
        {"kafka__compression__type": "none at all"},
        {"kafka__compression__level": "3"},
        {"kafka__linger__ms": "0.5"},
        {"kafka__no__such__name": "1"},
    ],
)
def test_every_other_setting_is_left_to_librdkafka(given: dict[str, str]) -> None:
    assert not can_follow(options(**given))
