"""The metadata log: bucket first, copy second; what a start accepts and refuses; appends with an unknown outcome."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kbroker.clock import ManualClock
from kbroker.cluster import image, metadata_log
from kbroker.cluster.metadata_log import MetadataLog, MetadataUnavailable
from kbroker.cluster.records import (
    BrokerConfig,
    ClientMetricsConfigs,
    GroupConfigs,
    MetadataRecord,
    PartitionsAdded,
    ProducerIdBlock,
    TopicConfigs,
    TopicCreated,
    TopicDeleted,
)
from kbroker.cluster.replica import APPLIED, MetadataReplica
from kbroker.cluster.sqlite_store import SqliteStore
from kbroker.cluster.store import Compare, Delete, Put
from kbroker.errors import ErrorCode, KafkaError, StartError
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import StoreDenied
from kbroker.storage.stores.store_faults import Fault, FaultyStore, When
from tests.unit.cluster.metadata_fakes import Bucket, BucketLog

A, B = b"A" * 16, b"B" * 16
HISTORY: list[list[MetadataRecord]] = [
    [TopicCreated("a", A, 1, {"retention.ms": "5"}), TopicCreated("b", B, 3, {})],
    [PartitionsAdded(A, 4)],
    [ProducerIdBlock(1000)],
    [TopicConfigs(B, {"cleanup.policy": "compact"})],
    [BrokerConfig(-1, {"x": "y"})],
    [TopicDeleted(A)],
]


class FailingStore(SqliteStore):
    """Its transactions fail while `broken`."""

    broken = False

    def transact(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> int | None:
        if self.broken:
            raise OSError("disk full")
        return super().transact(compares, operations)


class Start:
    """One start of a broker on a bucket and a data directory."""

    def __init__(self, log: Any, folder: Path, cluster_id: str = "cluster") -> None:
        self.clock = ManualClock()
        self.store = FailingStore(folder / "metadata.sqlite", self.clock)
        self.fenced: list[Exception] = []
        self.log = MetadataLog(log, MetadataReplica(self.store, cluster_id), self.clock, self.fenced.append)

    def load(self) -> MetadataLog:
        self.log.load()
        return self.log

    def crash(self) -> None:
        self.store.close()


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


def append_history(log: MetadataLog, history: list[list[MetadataRecord]] = HISTORY) -> None:
    for records in history:
        log.append(records)


def test_the_image_after_a_restart_equals_the_one_before(bucket: Bucket, tmp_path: Path) -> None:
    first = Start(BucketLog(bucket), tmp_path)
    append_history(first.load())
    first.crash()
    assert Start(BucketLog(bucket), tmp_path).load().image == first.log.image


def test_the_bucket_alone_is_enough(bucket: Bucket, tmp_path: Path) -> None:
    first = Start(BucketLog(bucket), tmp_path)
    append_history(first.load())
    (tmp_path / "new disk").mkdir()
    assert Start(BucketLog(bucket), tmp_path / "new disk").load().image == first.log.image


@pytest.mark.parametrize("records", range(len(HISTORY) + 1))
def test_a_crash_between_bucket_and_copy_loses_nothing(bucket: Bucket, tmp_path: Path, records: int) -> None:
    first = Start(BucketLog(bucket), tmp_path)
    append_history(first.load(), HISTORY[:records])
    first.crash()  # from here on the copy cannot be written
    append_history(first.log, HISTORY[records:])
    second = Start(BucketLog(bucket), tmp_path)
    assert second.store.get(APPLIED).value == str(records).encode()  # type: ignore[union-attr]
    assert second.load().image == first.log.image
    second.crash()
    assert Start(BucketLog(bucket), tmp_path).load().image == first.log.image


def test_a_copy_that_failed_once_catches_up_with_the_next_change(bucket: Bucket, tmp_path: Path) -> None:
    first = Start(BucketLog(bucket), tmp_path)
    log = first.load()
    log.append(HISTORY[0])
    first.store.broken = True
    log.append(HISTORY[1])
    first.store.broken = False
    log.append(HISTORY[2])
    first.crash()
    again = Start(BucketLog(bucket), tmp_path)
    assert again.load().image == log.image
    assert {row.key for row in again.store.range("topic/")} == {f"topic/{id_.hex()}" for id_ in (A, B)}


def test_an_unreadable_bucket_stops_the_start(bucket: Bucket, tmp_path: Path) -> None:
    Start(BucketLog(bucket), tmp_path).load().append(HISTORY[0])
    bucket.readable = False
    with pytest.raises(StartError, match="cannot read the metadata log"):
        Start(BucketLog(bucket), tmp_path).load()


def test_a_damaged_record_stops_the_start_and_is_named(bucket: Bucket, tmp_path: Path) -> None:
    append_history(Start(BucketLog(bucket), tmp_path).load(), HISTORY[:3])  # not in a checkpoint yet
    bucket.records[2] = ("changes", '{"version": 1, "records": [{"type": "topic_moved"}]}')
    with pytest.raises(StartError, match="metadata record 3"):
        Start(BucketLog(bucket), tmp_path).load()


def test_a_bucket_that_lost_records_stops_the_start_and_numbers_are_named(bucket: Bucket, tmp_path: Path) -> None:
    first = Start(BucketLog(bucket), tmp_path)
    append_history(first.load())
    first.crash()
    del bucket.records[-2:]
    with pytest.raises(StartError, match=r"up to 4 .* had seen 6"):
        Start(BucketLog(bucket), tmp_path).load()


def test_a_bucket_with_another_history_stops_the_start(bucket: Bucket, tmp_path: Path) -> None:
    first = Start(BucketLog(bucket), tmp_path)
    first.load().append([TopicCreated("a", A, 1, {})])
    first.crash()
    other = Bucket()
    (tmp_path / "other").mkdir()
    Start(BucketLog(other), tmp_path / "other").load().append([TopicCreated("a", B, 1, {})])
    with pytest.raises(StartError, match="differ at the same record 1"):
        Start(BucketLog(other), tmp_path).load()


def test_configs_of_an_earlier_kbroker_are_read(bucket: Bucket, tmp_path: Path) -> None:
    """In the bucket and in the copy as they were typed."""
    topic, group, metrics = {"retention.ms": " +05"}, {"share.isolation.level": " read_committed"}, {"metrics": "a, a"}
    first = Start(BucketLog(bucket), tmp_path)
    records: list[MetadataRecord] = [
        TopicCreated("a", A, 1, topic), GroupConfigs("g", group), ClientMetricsConfigs("m", metrics),
    ]  # fmt: skip
    first.load().append(records)
    row = json.dumps({"name": "a", "topic_id": A.hex(), "partitions": 1, "configs": topic}).encode()
    typed = [Put(f"topic/{A.hex()}", row), Put("group_config/g", json.dumps(group).encode())]
    first.store.transact([], [*typed, Put("client_metrics/m", json.dumps(metrics).encode())])
    first.crash()
    read = Start(BucketLog(bucket), tmp_path).load().image
    assert read == first.log.image
    assert dict(read.by_name["a"].configs) == {"retention.ms": "5"}
    assert read.group_configs == {"g": {"share.isolation.level": "read_committed"}}
    assert read.client_metrics == {"m": {"metrics": "a"}}


def test_the_copy_of_another_cluster_stops_the_start(bucket: Bucket, tmp_path: Path) -> None:
    first = Start(BucketLog(bucket), tmp_path)
    first.load()
    first.crash()
    with pytest.raises(StartError, match="cluster"):
        Start(BucketLog(bucket), tmp_path, "other").load()


def test_a_damaged_copy_stops_the_start(bucket: Bucket, tmp_path: Path) -> None:
    first = Start(BucketLog(bucket), tmp_path)
    append_history(first.load())
    first.store.transact([], [Put(f"topic/{B.hex()}", b"{}")])
    first.crash()
    with pytest.raises(StartError, match="damaged"):
        Start(BucketLog(bucket), tmp_path).load()


def test_while_the_bucket_is_unreachable_changes_are_refused_as_retriable(bucket: Bucket, tmp_path: Path) -> None:
    start = Start(BucketLog(bucket), tmp_path)
    log = start.load()
    bucket.faults = ["away"]
    with pytest.raises(MetadataUnavailable) as raised:
        log.append(HISTORY[0])
    assert raised.value.code == ErrorCode.NOT_CONTROLLER
    assert not log.image.by_name


def test_after_a_failure_changes_are_refused_at_once_for_a_while(bucket: Bucket, tmp_path: Path) -> None:
    objects = BucketLog(bucket)
    start = Start(objects, tmp_path)
    log = start.load()
    bucket.faults = ["away"]
    with pytest.raises(MetadataUnavailable):
        log.append(HISTORY[0])
    with pytest.raises(MetadataUnavailable):
        log.settle()
    assert objects.appends == 1
    start.clock.advance(1)
    assert list(log.settle()) == HISTORY[0]
    assert objects.appends == 2
    assert set(log.image.by_name) == {"a", "b"}


def test_an_append_whose_answer_was_lost_is_settled_and_applied_once(bucket: Bucket, tmp_path: Path) -> None:
    start = Start(BucketLog(bucket), tmp_path)
    log = start.load()
    bucket.faults = ["lost answer"]
    with pytest.raises(MetadataUnavailable):
        log.append(HISTORY[0])
    with pytest.raises(AssertionError):
        log.append(HISTORY[2])  # nothing may overtake it
    start.clock.advance(1)
    assert list(log.settle()) == HISTORY[0]
    assert list(log.settle()) == []
    assert len(bucket.records) == 1
    log.append(HISTORY[1])
    start.crash()
    assert Start(BucketLog(bucket), tmp_path).load().image == log.image


@pytest.mark.parametrize("arrived", [False, True])
def test_an_append_refused_by_the_store_is_in_doubt(tmp_path: Path, arrived: bool) -> None:
    """The refusal may be that of a second attempt, or of the look for the first one's outcome."""
    store = FaultyStore(MemoryStore())
    once = RetryPolicy(deadline_s=0.0)
    start = Start(NumberedLog(store, "root/_metadata", 1, b"1" * 16, retries=once), tmp_path)
    log = start.load()
    store.inject(Fault("put", When.AFTER if arrived else When.BEFORE))
    store.inject(Fault("get", error=StoreDenied))
    with pytest.raises(MetadataUnavailable):
        log.append(HISTORY[0])
    start.clock.advance(1)
    assert list(log.settle()) == HISTORY[0]
    log.append(HISTORY[2])
    assert (set(log.image.by_name), log.image.next_producer_id) == ({"a", "b"}, 1000)


def test_a_crash_with_an_append_in_doubt_finds_it_in_the_bucket(bucket: Bucket, tmp_path: Path) -> None:
    start = Start(BucketLog(bucket), tmp_path)
    log = start.load()
    bucket.faults = ["lost answer"]
    with pytest.raises(MetadataUnavailable):
        log.append(HISTORY[0])
    start.crash()
    assert set(Start(BucketLog(bucket), tmp_path).load().image.by_name) == {"a", "b"}


def test_a_superseded_broker_is_notified_and_changes_nothing(bucket: Bucket, tmp_path: Path) -> None:
    start = Start(BucketLog(bucket), tmp_path)
    log = start.load()
    bucket.faults = ["fenced"]
    with pytest.raises(MetadataUnavailable):
        log.append(HISTORY[0])
    assert len(start.fenced) == 1
    assert not log.image.by_name


def test_checkpoints_bound_what_a_start_reads(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_log, "CHECKPOINT_INTERVAL", 4)
    log = Start(BucketLog(bucket), tmp_path).load()
    append_history(log)
    assert bucket.checkpoint is not None
    assert bucket.checkpoint[0] == 4
    bucket.records[:4] = [("gone", "{}")] * 4
    (tmp_path / "new disk").mkdir()
    assert Start(BucketLog(bucket), tmp_path / "new disk").load().image == log.image


def test_the_last_deleted_topics_are_remembered(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "DELETED_MAX", 2)
    log = Start(BucketLog(bucket), tmp_path).load()
    ids = [bytes([number] * 16) for number in (1, 2, 3)]
    for number, topic_id in enumerate(ids):
        configs = {"kbroker.object.format": "kfs"} if number == 1 else {}
        log.append([TopicCreated(f"t{number}", topic_id, 1, configs)])
        log.append([TopicDeleted(topic_id)])
    log.close()
    remembered = {ids[1]: ("t1", "kfs"), ids[2]: ("t2", "klix")}
    bucket.records[:] = [("gone", "{}")] * len(bucket.records)  # all is in the checkpoint
    (tmp_path / "new disk").mkdir()
    again = Start(BucketLog(bucket), tmp_path / "new disk").load().image
    assert again.deleted == log.image.deleted == remembered


def test_a_few_records_are_in_a_checkpoint_after_a_while(bucket: Bucket, tmp_path: Path) -> None:
    start = Start(BucketLog(bucket), tmp_path)
    log = start.load()
    append_history(log)
    assert bucket.checkpoint is not None
    assert bucket.checkpoint[0] == 4  # the first one does not wait: seals of earlier starts may lie before it
    for block in range(2, 12):
        log.append([ProducerIdBlock(block * 1000)])
    assert bucket.checkpoint[0] == 4  # not all the time
    start.clock.advance(metadata_log.CHECKPOINT_SECONDS)
    log.append([ProducerIdBlock(12_000)])
    assert bucket.checkpoint[0] == 17
    start.clock.advance(metadata_log.CHECKPOINT_SECONDS)
    for block in range(13, 16):
        log.append([ProducerIdBlock(block * 1000)])
    assert bucket.checkpoint[0] == 17  # not for less than a few


def test_a_clean_stop_leaves_little_to_read(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())

    def opened(epoch: int, name: str) -> tuple[NumberedLog, Start]:
        (tmp_path / name).mkdir(exist_ok=True)
        objects = NumberedLog(store, "root/_metadata", epoch, bytes([epoch]) * 16)
        start = Start(objects, tmp_path / name)
        start.load()
        return objects, start

    objects, first = opened(1, "first")
    append_history(first.log)
    first.log.close()
    assert objects.checkpoint_number == objects.last_number == 7
    first.crash()
    # Starts that change nothing leave seals; the copy still knows the same last record.
    for epoch in range(2, 8):
        objects, start = opened(epoch, "first")
        assert objects.last_number - objects.checkpoint_number <= 2
        assert start.log.image == first.log.image
        start.log.close()
        start.crash()
    assert objects.checkpoint_number > 7
    damaged = f"root/_metadata/checkpoint-{objects.checkpoint_number:020d}.ckp"
    store.put(damaged, b"rot")
    _, again = opened(8, "first")  # from the one before, and seals
    assert again.log.image == first.log.image
    again.log.append([ProducerIdBlock(9000)])
    store.outage = True
    again.log.close()  # raises nothing


def test_the_number_of_a_record_in_a_checkpoint_is_checked(bucket: Bucket, tmp_path: Path) -> None:
    log = Start(BucketLog(bucket), tmp_path).load()
    append_history(log)
    for number in (7, -1, "x", True):
        bucket.checkpoint = (6, json.dumps(log.image.to_json() | {"number": number}))
        (tmp_path / "other").mkdir(exist_ok=True)
        with pytest.raises(StartError, match="checkpoint 6"):
            Start(BucketLog(bucket), tmp_path / "other").load()


def test_a_change_that_is_too_large_is_refused_and_blocks_nothing(bucket: Bucket, tmp_path: Path) -> None:
    objects = BucketLog(bucket)
    log = Start(objects, tmp_path).load()
    real, objects.append = objects.append, _too_large  # type: ignore[method-assign]
    with pytest.raises(KafkaError) as raised:
        log.append(HISTORY[0])
    assert raised.value.code == ErrorCode.POLICY_VIOLATION
    objects.append = real  # type: ignore[method-assign]
    assert list(log.settle()) == []
    log.append(HISTORY[0])


def _too_large(kind: str, payload: object) -> int:
    raise ValueError("too large")


def test_over_the_real_numbered_log_a_second_broker_fences_the_first(tmp_path: Path) -> None:
    store = MemoryStore()
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    first = Start(NumberedLog(store, "root/_metadata", 1, b"1" * 16), tmp_path / "1")
    append_history(first.load(), HISTORY[:3])
    second = Start(NumberedLog(store, "root/_metadata", 2, b"2" * 16), tmp_path / "2")
    assert second.load().image == first.log.image
    with pytest.raises(MetadataUnavailable):
        first.log.append(HISTORY[3])
    assert first.fenced
    append_history(second.log, HISTORY[3:])
    second.crash()
    third = Start(NumberedLog(store, "root/_metadata", 3, b"3" * 16), tmp_path / "2")
    assert third.load().image == second.log.image
