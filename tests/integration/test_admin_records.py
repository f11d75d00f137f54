"""DeleteRecords and DescribeLogDirs of real clients and tools."""

from __future__ import annotations

from pathlib import Path

import pytest
import scenarios
from broker_process import BrokerProcess
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from conftest import ON_A_FOLDER
from scenarios import IDEMPOTENT, end_offsets, new_topic
from test_client_confluent import CLIENT, QUIET
from until import until
from workload import generated, spread

SECONDS = 20.0


@pytest.fixture
def admin(broker: BrokerProcess) -> AdminClient:
    """librdkafka's admin client, without re-bootstrap: see test_admin_clients."""
    settings = {**QUIET, "bootstrap.servers": broker.bootstrap, "metadata.recovery.strategy": "none"}
    return AdminClient(settings)


def delete(admin: AdminClient, topic: str, offset: int, partition: int = 0) -> int:
    """The low watermark afterwards. Raises KafkaException."""
    asked = [TopicPartition(topic, partition, offset)]
    (future,) = admin.delete_records(asked, request_timeout=SECONDS).values()
    low: int = future.result(SECONDS).low_watermark
    return low


def earliest(broker: BrokerProcess, topic: str) -> int:
    """Asked by a new client: an old one knows the leader epoch before a restart."""
    admin = AdminClient({**QUIET, "bootstrap.servers": broker.bootstrap})
    (future,) = admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.earliest()}, request_timeout=SECONDS).values()
    offset: int = future.result(SECONDS).offset
    return offset


def send(broker: BrokerProcess, topic: str, count: int, partitions: int = 1) -> None:
    scenarios.send(broker, CLIENT, topic, spread(generated(count, seed=count), partitions), "none", IDEMPOTENT)


def test_deleted_records_stay_deleted_after_a_kill_and_a_lost_disk(broker: BrokerProcess, admin: AdminClient) -> None:
    """A kill -9 right after the answer; then the loss of the disk with more deleted than was flushed."""
    topic = new_topic(broker, CLIENT, "shortened", 1)
    send(broker, topic, 50)
    assert delete(admin, topic, 20) == 20
    broker.kill()
    broker.start()
    assert earliest(broker, topic) == 20
    broker.flush()
    send(broker, topic, 30)
    assert delete(admin, topic, 70) == 70
    broker.kill()
    broker.start()
    assert (earliest(broker, topic), end_offsets(broker, topic, 1)) == (70, [80])
    send(broker, topic, 5)
    assert broker.stop() == 0
    scenarios.lose_disk(broker)
    broker.start()
    assert (earliest(broker, topic), end_offsets(broker, topic, 1)) == (70, [85])
    assert delete(admin, topic, 1) == 70
    assert delete(admin, topic, -1) == 85


@ON_A_FOLDER
def test_records_that_cannot_be_deleted_are_an_error(broker: BrokerProcess, admin: AdminClient) -> None:
    topic = new_topic(broker, CLIENT, "kept", 1)
    compacted = new_topic(broker, CLIENT, "compacted", 1, cleanup_policy="compact")
    send(broker, topic, 5)
    for name, offset, code in (
        (topic, 6, KafkaError.OFFSET_OUT_OF_RANGE),
        (compacted, 0, KafkaError.POLICY_VIOLATION),
    ):
        with pytest.raises(KafkaException) as raised:
            delete(admin, name, offset)
        assert raised.value.args[0].code() == code


@ON_A_FOLDER
def test_objects_of_deleted_records_are_deleted(broker: BrokerProcess, admin: AdminClient) -> None:
    topic = new_topic(broker, CLIENT, "freed", 1, file_delete_delay_ms="0")
    folder = Path(broker.options[broker.options.index("--object-store") + 1].removeprefix("file:"))

    def holders() -> set[str]:
        return {str(path) for path in folder.rglob("*") if path.suffix in (".obj", ".pack")}

    broker.flush()  # so that records of other tests share no object with this one
    before = holders()
    send(broker, topic, 40)
    broker.flush()
    (added,) = holders() - before
    assert delete(admin, topic, -1) == 40
    until(lambda: added not in holders(), f"deletion of {added}")
    send(broker, topic, 5)
    assert end_offsets(broker, topic, 1) == [45]
