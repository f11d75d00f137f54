"""ListOffsets and OffsetForLeaderEpoch over a real WAL; objects are asked where the WAL does not reach."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kbroker.errors import CorruptionError, ErrorCode
from kbroker.handlers import list_offsets, offset_for_leader_epoch
from kbroker.protocol.apis.records.k02_list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kbroker.protocol.apis.records.k23_offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kbroker.storage.stores.object_store import StoreUnavailable
from kbroker.wire.dispatch import Dispatcher
from tests.unit.handlers.admin_context import LEADER_EPOCH, AdminBroker
from tests.unit.wire.wire_harness import Client, wire_broker

LATEST_VERSION = list_offsets.HANDLER.max_version
NOTHING = (0, -1, -1)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[AdminBroker]:
    broker = AdminBroker(tmp_path)
    broker.create("t")
    yield broker
    broker.close()


def asking(
    timestamp: int, epoch: int = -1, isolation: int = 0, name: str = "t", index: int = 0, replica_id: int = -1
) -> ListOffsetsRequest:
    asked = ListOffsetsPartition(partition_index=index, current_leader_epoch=epoch, timestamp=timestamp)
    return ListOffsetsRequest(
        replica_id=replica_id, isolation_level=isolation, topics=[ListOffsetsTopic(name=name, partitions=[asked])]
    )


def answer_of(response: Any) -> tuple[int, int, int]:
    (partition,) = response.topics[0].partitions
    return partition.error_code, partition.offset, partition.timestamp


def ask(broker: AdminBroker, timestamp: int, version: int = LATEST_VERSION, **keywords: Any) -> tuple[int, int, int]:
    return answer_of(broker.ask(list_offsets, version, asking(timestamp, **keywords)))


def fill(broker: AdminBroker) -> None:
    broker.append("t", 100, 110)  # offsets 0, 1
    broker.append("t", 300)  # 2
    broker.append("t", 200, 300, 250)  # 3, 4, 5


@pytest.mark.parametrize("version", range(1, LATEST_VERSION + 1))
def test_earliest_latest_and_by_time_in_every_version(broker: AdminBroker, version: int) -> None:
    fill(broker)
    assert ask(broker, -1, version) == (0, 6, -1)
    assert ask(broker, -2, version) == (0, 0, -1)
    assert ask(broker, 105, version) == (0, 1, 110)


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [(0, (0, 0, 100)), (100, (0, 0, 100)), (111, (0, 2, 300)), (300, (0, 2, 300)), (301, NOTHING)],
)
def test_a_time_finds_the_next_record(broker: AdminBroker, timestamp: int, expected: tuple[int, int, int]) -> None:
    fill(broker)
    assert ask(broker, timestamp) == expected


def test_max_timestamp_is_the_first_record_that_holds_it(broker: AdminBroker) -> None:
    assert ask(broker, -3) == NOTHING
    fill(broker)
    assert ask(broker, -3) == (0, 2, 300)


def test_the_leader_epoch_comes_with_the_offset(broker: AdminBroker) -> None:
    fill(broker)
    for timestamp in (-1, -2, -3, 100):
        (partition,) = broker.ask(list_offsets, 8, asking(timestamp)).topics[0].partitions
        assert partition.leader_epoch == LEADER_EPOCH


def test_without_tiers_local_is_the_whole_log(broker: AdminBroker) -> None:
    fill(broker)
    broker.partition("t").log_start_offset = 2
    assert ask(broker, -4) == ask(broker, -2) == (0, 2, -1)
    assert ask(broker, -5) == ask(broker, -6) == NOTHING


@pytest.mark.parametrize(("timestamp", "since"), [(-3, 7), (-4, 8), (-5, 9), (-6, 11)])
def test_a_sentinel_above_the_version_is_unsupported(broker: AdminBroker, timestamp: int, since: int) -> None:
    assert ask(broker, timestamp, since - 1)[0] == ErrorCode.UNSUPPORTED_VERSION
    assert ask(broker, timestamp, since)[0] == 0


@pytest.mark.parametrize("timestamp", [-7, -(2**63)])
def test_unknown_sentinels_are_unsupported(broker: AdminBroker, timestamp: int) -> None:
    assert ask(broker, timestamp)[0] == ErrorCode.UNSUPPORTED_VERSION


def test_list_offsets_has_an_error_per_partition(broker: AdminBroker) -> None:
    assert ask(broker, -1, name="no") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    assert ask(broker, -1, index=1)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ask(broker, -1, index=-1)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ask(broker, -1, epoch=LEADER_EPOCH)[0] == 0
    assert ask(broker, -1, epoch=LEADER_EPOCH - 1)[0] == ErrorCode.FENCED_LEADER_EPOCH
    assert ask(broker, -1, epoch=LEADER_EPOCH + 1)[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
    broker.partition("t").resign()
    assert ask(broker, -1)[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_the_same_partition_twice_is_an_invalid_request(broker: AdminBroker) -> None:
    request = asking(-1)
    request.topics.append(asking(-2).topics[0])
    request.topics[1].partitions[0].partition_index = 0
    request.topics.append(asking(-1, name="no").topics[0])
    codes = [topic.partitions[0].error_code for topic in broker.ask(list_offsets, 8, request).topics]
    assert codes == [ErrorCode.INVALID_REQUEST] * 2 + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


class Stable:
    """A partition whose last stable offset lies below its high watermark: a transaction is open."""

    def __init__(self, partition: Any, offset: int) -> None:
        self._partition, self._offset = partition, offset

    def last_stable_offset(self) -> int:
        return self._offset

    def __getattr__(self, name: str) -> Any:
        return getattr(self._partition, name)


def test_read_committed_ends_at_the_last_stable_offset(broker: AdminBroker) -> None:
    fill(broker)
    log = broker.logs.by_name["t"]
    log.partitions = [Stable(log.partitions[0], 2)]
    assert ask(broker, -1, isolation=1) == (0, 2, -1)
    assert ask(broker, 105, isolation=1) == (0, 1, 110)
    assert ask(broker, 111, isolation=1) == NOTHING
    assert ask(broker, -3, isolation=1) == NOTHING
    assert ask(broker, -1, isolation=0) == (0, 6, -1)
    assert ask(broker, -1, isolation=1, replica_id=-2) == (0, 6, -1), "no consumer: up to the log end"


def test_deleted_records_are_never_the_answer(broker: AdminBroker) -> None:
    fill(broker)
    broker.append("t", 299)  # 6
    broker.partition("t").log_start_offset = 5
    assert ask(broker, 100) == (0, 5, 250)
    assert ask(broker, 260) == (0, 6, 299)  # the batch of offset 5 matches only below the log start
    assert ask(broker, 300) == NOTHING
    assert ask(broker, -3) == (0, 6, 299)


def make_cold(broker: AdminBroker) -> None:
    """The WAL begins at offset 10; below it only objects have data."""
    partition = broker.partition("t")
    partition.set_next_offset(10)
    broker.append("t", 500, 700)  # 10, 11
    assert partition.wal_start_offset() == 10


def test_objects_are_asked_and_the_earliest_match_wins(broker: AdminBroker) -> None:
    make_cold(broker)
    pending = broker.start(list_offsets, 8, asking(450))
    assert isinstance(pending, Future)
    assert not pending.done(), "an I/O thread must not wait for objects"
    broker.cold.answers[0].set_result((4, 460))
    assert answer_of(broker.receive(list_offsets, 8, pending)) == (0, 4, 460)
    pending = broker.start(list_offsets, 8, asking(450))
    broker.cold.answers[1].set_result(None)
    assert answer_of(broker.receive(list_offsets, 8, pending)) == (0, 10, 500)


@pytest.mark.parametrize(
    ("in_objects", "expected"),
    [((4, 900), (0, 4, 900)), ((4, 700), (0, 4, 700)), ((4, 699), (0, 11, 700)), (None, (0, 11, 700))],
)
def test_max_timestamp_is_over_both_tiers(
    broker: AdminBroker, in_objects: tuple[int, int] | None, expected: tuple[int, int, int]
) -> None:
    make_cold(broker)
    pending = broker.start(list_offsets, 8, asking(-3))
    broker.cold.answers[0].set_result(in_objects)
    assert answer_of(broker.receive(list_offsets, 8, pending)) == expected


def test_earliest_and_latest_never_ask_objects(broker: AdminBroker) -> None:
    make_cold(broker)
    assert ask(broker, -1) == (0, 12, -1)
    assert ask(broker, -2) == (0, 0, -1)
    assert broker.cold.asked == []


def test_no_objects_are_asked_where_the_wal_has_everything(broker: AdminBroker) -> None:
    fill(broker)
    assert not isinstance(broker.start(list_offsets, 8, asking(100)), Future)
    assert broker.cold.asked == []


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (StoreUnavailable("away"), ErrorCode.KAFKA_STORAGE_ERROR),
        (CorruptionError("bad footer"), ErrorCode.KAFKA_STORAGE_ERROR),
        (RuntimeError("bug"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_failed_cold_read_is_an_error_and_not_no_match(
    broker: AdminBroker, failure: Exception, code: ErrorCode
) -> None:
    make_cold(broker)
    broker.create("u")
    broker.append("u", 450)
    request = asking(450)
    request.topics.append(asking(450, name="u").topics[0])
    pending = broker.start(list_offsets, 8, request)
    broker.cold.answers[0].set_exception(failure)
    cold, warm = broker.receive(list_offsets, 8, pending).topics
    assert (cold.partitions[0].error_code, cold.partitions[0].offset) == (code, -1)
    assert (warm.partitions[0].error_code, warm.partitions[0].offset) == (0, 0)


def test_a_look_up_ends_with_the_leadership_however_long_the_store_takes(broker: AdminBroker) -> None:
    make_cold(broker)
    partition = broker.partition("t")
    pending = broker.start(list_offsets, 8, asking(450))
    partition.resign()
    partition.waiters.wake()
    assert answer_of(broker.receive(list_offsets, 8, pending)) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)
    broker.cold.answers[0].set_result((4, 460))
    assert answer_of(broker.receive(list_offsets, 8, pending)) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)
    assert len(partition.waiters) == 0


def test_a_look_up_that_succeeds_is_not_woken_again(broker: AdminBroker) -> None:
    make_cold(broker)
    pending = broker.start(list_offsets, 8, asking(450))
    broker.append("t", 800)
    broker.cold.answers[0].set_result((4, 460))
    assert answer_of(broker.receive(list_offsets, 8, pending)) == (0, 4, 460)
    partition = broker.partition("t")
    assert len(partition.waiters) == 0
    partition.resign()
    partition.waiters.wake()
    assert answer_of(broker.receive(list_offsets, 8, pending)) == (0, 4, 460)


def test_look_ups_run_on_workers_and_answers_keep_their_order(broker: AdminBroker, tmp_path: Path) -> None:
    fill(broker)
    on_worker: list[tuple[int, bool]] = []
    workers_may_go_on = threading.Event()

    def handle(context: Any, info: Any, request: ListOffsetsRequest) -> Any:
        timestamp = request.topics[-1].partitions[0].timestamp
        on_worker.append((timestamp, threading.current_thread().name.startswith("worker")))
        return list_offsets.handle(context, info, request)

    handlers = {2: list_offsets.HANDLER._replace(handle=handle)}
    folder = tmp_path / "wire"
    folder.mkdir()
    both = asking(-2)
    both.topics += asking(105, name="u").topics
    with (
        ThreadPoolExecutor(1, "worker") as workers,
        wire_broker(folder, dispatch=Dispatcher(handlers, broker.context, workers)) as wire,
        Client(wire) as client,
        Client(wire) as other,
    ):
        workers.submit(workers_may_go_on.wait, 20)
        sent = [client.send(2, LATEST_VERSION, request) for request in (asking(105), asking(-3), both, asking(-1))]
        for timestamp in (-1, -2, -4, -5, -6):
            assert answer_of(other.ask(2, LATEST_VERSION, asking(timestamp)))[0] == 0
        assert on_worker == [(-1, False), (-2, False), (-4, False), (-5, False), (-6, False)]
        workers_may_go_on.set()
        answers = [client.receive() for _ in sent]
    assert [correlation_id for correlation_id, _ in answers] == sent
    found = [response.topics[0].partitions[0].offset for _, response in answers]
    assert found == [1, 2, 0, 6]
    assert on_worker[5:] == [(105, True), (-3, True), (105, True), (-1, False)]


def end_offset(broker: AdminBroker, epoch: int, current: int = -1, **keywords: Any) -> tuple[int, int, int]:
    version = keywords.pop("version", 4)
    asked = OffsetForLeaderPartition(
        partition=keywords.get("index", 0), current_leader_epoch=current, leader_epoch=epoch
    )
    topic = OffsetForLeaderTopic(topic=keywords.get("name", "t"), partitions=[asked])
    request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic])
    (partition,) = broker.ask(offset_for_leader_epoch, version, request).topics[0].partitions
    return partition.error_code, partition.leader_epoch, partition.end_offset


@pytest.mark.parametrize("version", [2, 3, 4])
def test_an_epoch_ends_where_the_next_begins(broker: AdminBroker, version: int) -> None:
    fill(broker)
    assert end_offset(broker, LEADER_EPOCH, version=version) == (0, LEADER_EPOCH, 6)
    assert end_offset(broker, LEADER_EPOCH + 1, version=version) == (0, -1, -1)


def test_offset_for_leader_epoch_has_an_error_per_partition(broker: AdminBroker) -> None:
    assert end_offset(broker, 3, name="no") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    assert end_offset(broker, 3, index=9)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert end_offset(broker, 3, current=LEADER_EPOCH - 1)[0] == ErrorCode.FENCED_LEADER_EPOCH
    assert end_offset(broker, 3, current=LEADER_EPOCH + 1)[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
