"""More producer ids than fit in memory, as fast as possible: what the broker accepts, refuses and remembers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_process import BrokerProcess
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from conftest import IN_A_BUCKET_WHEN_SLOW, Store
from producer_flood import ProducerFlood

from kbroker.app.memory import PROCESS_BYTES
from kbroker.limits import PRODUCER_ID_BYTES

NOT_ENOUGH_REPLICAS = 19
MIB = 1 << 20
IDS, FIVE_MILLION = 150_000, 5_000_000
PARTITIONS = 4
LEAST_SHARE = "kbroker.producer.id.memory.share=0.01"
IDS_OF_AN_ADDRESS = (192 * MIB // 100) // PRODUCER_ID_BYTES // 4
SOON_MS = 50


SMALL = ("--memory-bytes", "192MiB", "--arena-bytes", "16MiB", "--wal-bytes", "256MiB")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Not started; its objects are in a folder."""
    process = BrokerProcess(tmp_path / "data", *SMALL)
    yield process
    process.kill()


@pytest.fixture
def stored(store: Store, tmp_path: Path) -> Iterator[BrokerProcess]:
    """Not started; its objects are in the store."""
    process = BrokerProcess(tmp_path / "data", *SMALL, *store.options, environ=store.environ)
    yield process
    process.kill()


def rss_bytes(broker: BrokerProcess) -> int:
    """Memory of the process without file mappings."""
    status = Path(f"/proc/{broker.pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) << 10


def highest_rss_bytes(broker: BrokerProcess) -> int:
    """Since the start, file mappings included."""
    status = Path(f"/proc/{broker.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def create(broker: BrokerProcess, name: str, partitions: int) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
    return admin


@IN_A_BUCKET_WHEN_SLOW
def test_a_flood_of_producer_ids_takes_bounded_memory(stored: BrokerProcess) -> None:
    broker = stored
    broker.start("--set", "kbroker.producer.id.min.idle.ms=0")
    create(broker, "flood", PARTITIONS)
    address = (broker.host, broker.port)
    with ProducerFlood(address, "flood") as flood:
        assert flood.send(range(10**9, 10**9 + 2_000), partitions=PARTITIONS) == {0: 2_000}
    broker.flush()
    before = rss_bytes(broker)
    share = IDS // 5
    for n in range(5):
        with ProducerFlood(address, "flood", source=f"127.0.0.{n + 1}") as flood:
            assert flood.send(range(n * share, (n + 1) * share), partitions=PARTITIONS) == {0: share}
    broker.flush()
    assert rss_bytes(broker) - before < 72 * MIB
    broker.kill()
    broker.start("--set", "kbroker.producer.id.min.idle.ms=0")
    assert rss_bytes(broker) - before < 72 * MIB
    with ProducerFlood(address, "flood") as flood:  # the newest are known: no sequence but the next, and duplicates
        newest = range(IDS - 1_000, IDS)
        assert flood.send(newest, sequence=2, partitions=PARTITIONS) == {45: 1_000}
        assert flood.send(newest, sequence=0, partitions=PARTITIONS) == {0: 1_000}
        assert flood.send(newest, sequence=1, partitions=PARTITIONS) == {0: 1_000}
        assert flood.send(range(1_000), sequence=7, partitions=PARTITIONS) == {0: 1_000}  # forgotten: any sequence
    assert broker.stop() == 0
    broker.start()
    assert rss_bytes(broker) - before < 72 * MIB


def test_new_producer_ids_are_refused_while_known_ones_continue(broker: BrokerProcess) -> None:
    broker.start("--set", LEAST_SHARE)
    create(broker, "full", 1)
    address = (broker.host, broker.port)
    known = range(IDS_OF_AN_ADDRESS)
    with (
        ProducerFlood(address, "full") as flood,
        ProducerFlood(address, "full", timeout_ms=SOON_MS) as late,
        ProducerFlood(address, "full", source="127.0.0.2") as other,
    ):
        assert flood.send(known) == {0: len(known)}
        assert late.send(range(10**6, 10**6 + 3)) == {NOT_ENOUGH_REPLICAS: 3}
        for sequence in range(1, 7):
            assert flood.send(known, sequence=sequence) == {0: len(known)}
        assert flood.send(known, sequence=2) == {0: len(known)}  # a duplicate of five batches before
        assert other.send(range(2 * 10**6, 2 * 10**6 + 100)) == {0: 100}
    broker.kill()
    broker.start("--set", LEAST_SHARE)
    with ProducerFlood(address, "full") as flood:
        assert flood.send(known, sequence=2) == {0: len(known)}
        assert flood.send(known, sequence=8) == {45: len(known)}
        assert flood.send(known, sequence=7) == {0: len(known)}


def test_a_client_waits_until_there_is_room(broker: BrokerProcess) -> None:
    broker.start("--set", LEAST_SHARE)
    admin = create(broker, "wait", 1)
    with ProducerFlood((broker.host, broker.port), "wait") as flood:
        assert flood.send(range(10**6, 10**6 + IDS_OF_AN_ADDRESS)) == {0: IDS_OF_AN_ADDRESS}
    settings = {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "request.timeout.ms": 1_000}
    outcomes: list[object] = []
    producer = Producer(settings)
    producer.produce("wait", b"value", on_delivery=lambda error, message: outcomes.append(error or message.offset()))
    assert producer.flush(4) == 1
    assert outcomes == []
    entry = ConfigEntry("kbroker.producer.id.min.idle.ms", "0", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)
    assert producer.flush(30) == 0
    assert outcomes == [IDS_OF_AN_ADDRESS]


@pytest.mark.slow
def test_five_million_producer_ids_fit_192_mib(tmp_path: Path) -> None:
    """As fast as possible, with default shares of the memory; takes five minutes."""
    broker = BrokerProcess(tmp_path / "data", "--memory-bytes", "192MiB")
    broker.start("--set", "kbroker.producer.id.min.idle.ms=0")
    try:
        create(broker, "flood", PARTITIONS)
        share = FIVE_MILLION // 20
        for n in range(20):
            with ProducerFlood((broker.host, broker.port), "flood", source=f"127.0.0.{n + 1}") as flood:
                assert flood.send(range(n * share, (n + 1) * share), partitions=PARTITIONS) == {0: share}
        broker.flush()
        assert highest_rss_bytes(broker) < 192 * MIB + PROCESS_BYTES
        broker.kill()
        broker.start("--set", "kbroker.producer.id.min.idle.ms=0")
        assert highest_rss_bytes(broker) < 192 * MIB + PROCESS_BYTES
        with ProducerFlood((broker.host, broker.port), "flood") as flood:
            newest = range(FIVE_MILLION - 1_000, FIVE_MILLION)
            assert flood.send(newest, sequence=2, partitions=PARTITIONS) == {45: 1_000}
    finally:
        broker.kill()
