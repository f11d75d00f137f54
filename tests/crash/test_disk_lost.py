"""The data directory is lost: flushed records come from the bucket, and no offset, epoch or id is used twice."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kbroker._fast.records.records import build_batch, iter_records
from tests.crash.checker import PARTITIONS, TOPIC, check_all
from tests.crash.ledger import Ledger
from tests.crash.load import COMMIT_RETRIABLE, Load
from tests.crash.raw_client import LATEST, RawClient, batches_of
from tests.crash.small_broker import Place, connect, refused_start, small_broker
from tests.integration.broker_process import BrokerProcess
from tests.integration.until import until

QUIET = (
    "--memory-bytes",
    "64MiB",
    "--arena-bytes",
    "8MiB",
    "--wal-bytes",
    "32MiB",
    "--flush-seconds",
    "3600",
)
NAME = "kept"
CONFIGS = {"retention.ms": "123456789", "max.message.bytes": "500000"}
GROUP = "readers"
BATCHES = 4
NOW_MS = int(time.time() * 1000)


@dataclass
class Facts:
    """What clients were answered."""

    topic_id: bytes = b""
    leader_epochs: list[int] = field(default_factory=list)
    values: list[list[bytes]] = field(default_factory=lambda: [[], []])
    producer_id: int = -1
    producer_epoch: int = -1
    last_batch: bytes = b""  # of the idempotent producer, to partition 0
    last_offset: int = -1
    committed: dict[int, tuple[int, str]] = field(default_factory=dict)


def commit(client: RawClient, facts: Facts, offset: int) -> None:
    """Commits once the coordinator is ready."""
    facts.committed = {partition: (offset, f"meta {partition}") for partition in range(2)}

    def done() -> bool:
        errors = set(client.commit(GROUP, NAME, facts.committed).values())
        assert errors <= COMMIT_RETRIABLE | {0}
        return errors == {0}

    until(done, "commit")


def fill(client: RawClient) -> Facts:
    """A topic with configs, data of an idempotent producer, commits."""
    client.create_topic(NAME, 2, CONFIGS)
    facts = Facts(topic_id=bytes(client.topic(NAME).topic_id))
    facts.producer_id, facts.producer_epoch = client.init_producer_id()
    produce_more(client, facts, BATCHES)
    commit(client, facts, 3)
    facts.leader_epochs = leader_epochs(client)
    return facts


def produce_more(client: RawClient, facts: Facts, batches: int) -> None:
    """Two records per batch, each batch to both partitions; the sequences continue."""
    for _ in range(batches):
        for partition, values in enumerate(facts.values):
            new = [b"%d/%d" % (partition, len(values) + i) for i in range(2)]
            batch = build_batch(
                # Of today: as in Kafka, a producer expires a day after the timestamp of its last record.
                [(b"key", value, NOW_MS + len(values), None) for value in new],
                producer_id=facts.producer_id,
                producer_epoch=facts.producer_epoch,
                base_sequence=len(values),
            )
            answer = client.produce(NAME, partition, batch)
            assert answer.error_code == 0, answer.error_message
            assert answer.base_offset == len(values)
            values += new
            if partition == 0:
                facts.last_batch, facts.last_offset = batch, answer.base_offset


def leader_epochs(client: RawClient) -> list[int]:
    """Leader epoch of each partition."""
    return [
        part.leader_epoch
        for part in sorted(client.topic(NAME).partitions, key=lambda part: part.partition_index)
    ]


def read(client: RawClient, partition: int) -> list[bytes]:
    """All values of a partition."""
    values: list[bytes] = []
    end = client.list_offset(NAME, partition, LATEST)
    while len(values) < end:
        data = client.fetch(NAME, partition, len(values), max_wait_ms=1000)
        assert data.error_code == 0
        for _, batch in batches_of(data):
            for record in iter_records(batch):
                if record.offset >= len(values):
                    assert record.offset == len(values)
                    values.append(bytes(record.value or b""))
    return values


def check(client: RawClient, facts: Facts) -> None:
    """All answers still hold, and offsets and sequences continue; leader epochs have grown."""
    topic = client.topic(NAME)
    assert topic.error_code == 0
    if facts.topic_id != bytes(16):
        assert bytes(topic.topic_id) == facts.topic_id
    configs = client.configs(NAME)
    assert {name: configs[name] for name in CONFIGS} == CONFIGS
    now = leader_epochs(client)
    assert all(new > old for new, old in zip(now, facts.leader_epochs, strict=True)), (
        now,
        facts.leader_epochs,
    )
    facts.leader_epochs = now
    for partition, values in enumerate(facts.values):
        assert read(client, partition) == values
    found: list[dict[int, tuple[int, str]] | int] = []
    until(lambda: isinstance(found.append(client.committed(GROUP, NAME, range(2))) or found[-1], dict), "loading")
    assert found[-1] == facts.committed
    # The producer's last batch again, as after a lost answer: the same offset, and nothing appended.
    again = client.produce(NAME, 0, facts.last_batch)
    assert (again.error_code, again.base_offset) == (0, facts.last_offset)
    assert client.list_offset(NAME, 0, LATEST) == len(facts.values[0])
    # A new producer id is unused, and the old producer continues with its sequences.
    assert client.init_producer_id()[0] > facts.producer_id
    produce_more(client, facts, 1)


@contextmanager
def running(broker: BrokerProcess, *extra: str) -> Iterator[RawClient]:
    """A started broker and a connection; killed at the end if it still runs."""
    broker.start(*extra)
    try:
        with connect(broker) as client:
            yield client
    finally:
        broker.kill()


def test_after_a_clean_stop_the_bucket_is_enough(tmp_path: Path, place: Place) -> None:
    first = small_broker(tmp_path / "first", place, small=QUIET)
    with running(first) as client:
        facts = fill(client)
        assert first.stop() == 0, first.log()
    shutil.rmtree(first.data_dir)
    for name in ("second", "third"):
        broker = small_broker(tmp_path / name, place, small=QUIET)
        with running(broker) as client:
            assert "adopting cluster" in broker.log()
            check(client, facts)
            assert broker.stop() == 0, broker.log()


def test_without_its_disk_a_killed_broker_needs_a_take_over(tmp_path: Path, place: Place) -> None:
    first = small_broker(tmp_path / "first", place, small=QUIET)
    with running(first) as client:
        facts = fill(client)
        first.flush()
        # After the flush: acknowledged on the disk that is about to be lost.
        batch = build_batch([(b"key", b"only on disk", 0, None)])
        assert client.produce(NAME, 1, batch).base_offset == len(facts.values[1])
    shutil.rmtree(first.data_dir)
    second = small_broker(tmp_path / "second", place, small=QUIET)
    refusal = refused_start(second)
    assert refusal.code == 1
    assert "--take-over" in refusal.line
    assert str(first.pid) in refusal.line
    # The same folder name again, empty: still another data directory.
    again = small_broker(first.data_dir, place, small=QUIET)
    assert "--take-over" in refused_start(again).line
    with running(second, "--take-over") as client:
        assert "took over from" in second.log()
        check(client, facts)
        assert second.stop() == 0, second.log()
    with running(small_broker(tmp_path / "third", place, small=QUIET)) as client:
        check(client, facts)


@pytest.mark.parametrize("written_since", [True, False], ids=["written since", "not written since"])
def test_the_wal_of_a_superseded_broker_is_not_recovered(
    tmp_path: Path, place: Place, written_since: bool
) -> None:
    first = small_broker(tmp_path / "first", place, small=QUIET)
    with running(first) as client:
        facts = fill(client)
        first.flush()
        assert client.produce(NAME, 1, build_batch([(b"key", b"lost", 0, None)])).error_code == 0
    second = small_broker(tmp_path / "second", place, small=QUIET)
    with running(second, "--take-over") as client:
        if written_since:
            check(client, facts)
        else:
            facts.leader_epochs = leader_epochs(client)
        assert second.stop() == 0
    wal = {path.name for path in (first.data_dir / "wal").iterdir()}
    for _ in range(2):  # a start that failed changes nothing for the next one
        refusal = refused_start(first)
        assert refusal.code == 1
        assert "another broker took over (epoch 2" in refusal.line
        assert {path.name for path in (first.data_dir / "wal").iterdir()} >= wal
    # The successor and the failed starts have released their claims.
    with running(second) as client:
        check(client, facts)
        assert second.stop() == 0
    # Without the old log the first directory may serve again.
    shutil.rmtree(first.data_dir / "wal")
    with running(first) as client:
        check(client, facts)


def test_a_lost_metadata_database_is_rebuilt(tmp_path: Path, place: Place) -> None:
    broker = small_broker(tmp_path / "data", place, small=QUIET)
    with running(broker) as client:
        facts = fill(client)
    for path in broker.data_dir.glob("metadata.db*"):
        path.unlink()
    with running(broker) as client:
        check(client, facts)


@pytest.mark.crash
def test_a_clean_stop_under_load_loses_nothing(tmp_path: Path, place: Place) -> None:
    """A clean stop while clients produce: exit 0, and the bucket alone has everything that was acknowledged."""
    broker = small_broker(tmp_path / "first", place).start()
    ledger = Ledger(PARTITIONS)
    try:
        with connect(broker) as client:
            client.create_topic(TOPIC, PARTITIONS)
        load = Load((broker.host, broker.port), TOPIC, ledger, 7)
        with load.running():
            ledger.wait_for_more(1_500)
            assert broker.stop() == 0, broker.log()
            shutil.rmtree(broker.data_dir)
            successor = small_broker(tmp_path / "second", place)
            successor.port = broker.port
            broker = successor.start()
            ledger.wait_for_more(500)
        records = check_all(broker, ledger, finished=True)
        assert records >= ledger.counts()[0] > 0
        assert broker.stop() == 0, broker.log()
    finally:
        broker.kill()
