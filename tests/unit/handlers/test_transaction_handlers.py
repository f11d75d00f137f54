"""The transaction APIs in every version, from request bytes to response bytes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kbroker._fast.records.records import build_batch, iter_batches
from kbroker.app.internal_topics import LoggedTopic
from kbroker.cluster.image import CONSUMER_OFFSETS, TRANSACTION_STATE
from kbroker.coordinator.transaction.config import TransactionConfig
from kbroker.coordinator.transaction.coordinator import TransactionCoordinator
from kbroker.coordinator.transaction.marker_sink import MarkerSink
from kbroker.errors import ErrorCode
from kbroker.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_producers,
    describe_transactions,
    end_txn,
    find_coordinator,
    init_producer_id,
    list_transactions,
    write_txn_markers,
)
from kbroker.protocol.apis.groups.k10_find_coordinator import FindCoordinatorRequest
from kbroker.protocol.apis.transactions import k24_add_partitions_to_txn as k24
from kbroker.protocol.apis.transactions import k27_write_txn_markers as k27
from kbroker.protocol.apis.transactions import k61_describe_producers as k61
from kbroker.protocol.apis.transactions.k22_init_producer_id import InitProducerIdRequest
from kbroker.protocol.apis.transactions.k25_add_offsets_to_txn import AddOffsetsToTxnRequest
from kbroker.protocol.apis.transactions.k26_end_txn import EndTxnRequest
from kbroker.protocol.apis.transactions.k65_describe_transactions import DescribeTransactionsRequest
from kbroker.protocol.apis.transactions.k66_list_transactions import ListTransactionsRequest
from tests.unit.handlers.admin_context import LEADER_EPOCH, AdminBroker

OFFSETS_PARTITIONS = 50


def done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


class Groups:
    """The part of the group coordinator that transactions ask."""

    def __init__(self, broker: AdminBroker) -> None:
        self.broker = broker
        self.markers: list[tuple[int, int, int, int, bool]] = []

    def locate(self) -> Future[ErrorCode]:
        self.broker.topics.ensure_internal_topic(CONSUMER_OFFSETS)
        return done(ErrorCode.NONE)

    def write_marker(self, *marker: Any) -> Future[ErrorCode]:
        self.markers.append(marker)
        return done(ErrorCode.NONE)


class Client(AdminBroker):
    """Asks handlers through the codecs; the coordinator's own thread runs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.groups = Groups(self)
        self.context.groups = self.groups
        self.context.transactions = TransactionCoordinator(
            TransactionConfig(),
            self.clock,
            topic=LoggedTopic(TRANSACTION_STATE, self.topics, self.logs, self.context.cold_reader),
            markers=MarkerSink(self.logs.partition, self.groups.write_marker, lambda *_: True, self.clock.now_ms),
            producer_ids=self.context.producer_ids,
            newest_leader_epoch=lambda: LEADER_EPOCH,
        )
        self.context.transactions.start()

    def ask(self, module: ModuleType, version: int, request: Any) -> Any:
        answer = self.start(module, version, request)
        if isinstance(answer, Future):
            while not answer.done():
                self.wal.sync()
                self.wal.drain_commits()
        return self.receive(module, version, answer)

    def close(self) -> None:
        self.context.transactions.stop()
        super().close()

    # -- requests ------------------------------------------------------------------------------------------------

    def init(self, version: int = 5, **fields: Any) -> Any:
        fields = {"transactional_id": "x", "transaction_timeout_ms": 60_000, **fields}
        return self.ask(init_producer_id, version, InitProducerIdRequest(**fields))

    def add(self, producer: tuple[int, int], topics: dict[str, list[int]], version: int = 3, id: str = "x") -> Any:
        asked = [k24.AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in topics.items()]
        request = k24.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=id,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=asked,
        )
        answer = self.ask(add_partitions_to_txn, version, request)
        return errors_of(answer.results_by_topic_v3_and_below)

    def end(self, producer: tuple[int, int], commit: bool, version: int = 4, id: str = "x") -> Any:
        request = EndTxnRequest(
            transactional_id=id, producer_id=producer[0], producer_epoch=producer[1], committed=commit
        )
        return self.ask(end_txn, version, request)

    def describe(self, *ids: str) -> list[Any]:
        request = DescribeTransactionsRequest(transactional_ids=list(ids))
        return list(self.ask(describe_transactions, 0, request).transaction_states)

    def settle(self, id: str = "x") -> str:
        """The state when no markers are on the way any more."""
        while (state := str(self.describe(id)[0].transaction_state)).startswith("Prepare"):
            pass
        return state

    def produce(self, producer: tuple[int, int], topic: str = "t", index: int = 0, sequence: int = 0) -> None:
        batch = build_batch(
            [(None, b"v", 0, None)],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
            transactional=True,
        )
        self.partition(topic, index).append_bytes(batch, self.clock.now_ms())
        assert self.wal.sync()

    def control_batches(self, topic: str, index: int = 0) -> list[tuple[int, int]]:
        partition = self.partition(topic, index)
        self.wal.sync()
        data = partition.read_bytes(0, partition.next_offset, 1 << 20) if partition.next_offset else b""
        return [(h.producer_id, h.producer_epoch) for h, _ in iter_batches(data or b"") if h.is_control]


def errors_of(topics: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.name, result.partition_index): result.partition_error_code
        for topic in topics
        for result in topic.results_by_partition
    }


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    client = Client(tmp_path)
    client.create("t", partitions=2)
    yield client
    client.close()


def identity(answer: Any) -> tuple[int, int]:
    assert answer.error_code == 0
    return answer.producer_id, answer.producer_epoch


# -- the producer's way ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_init_in_every_version(client: Client, version: int) -> None:
    first = identity(client.init(version))
    assert identity(client.init(version)) == (first[0], 1)
    assert client.init(version, transaction_timeout_ms=0).error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert client.init(version, transactional_id="").error_code == ErrorCode.INVALID_REQUEST
    other = identity(client.init(version, transactional_id=None, transaction_timeout_ms=0))
    assert other[1] == 0
    assert other[0] != first[0]


@pytest.mark.parametrize(("version", "error"), [(3, ErrorCode.INVALID_PRODUCER_EPOCH), (5, ErrorCode.PRODUCER_FENCED)])
def test_init_of_a_fenced_producer(client: Client, version: int, error: ErrorCode) -> None:
    producer_id, epoch = identity(client.init())
    client.init()
    client.init()
    assert client.init(version, producer_id=producer_id, producer_epoch=epoch).error_code == error
    assert client.init(version, producer_id=producer_id).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(4))
def test_a_transaction_commits_in_all_its_partitions(client: Client, version: int) -> None:
    producer = identity(client.init())
    assert client.add(producer, {"t": [0, 1]}, version) == {("t", 0): 0, ("t", 1): 0}
    client.produce(producer)
    partition = client.partition("t")
    assert partition.last_stable_offset() == 0
    assert client.end(producer, True, version).error_code == 0
    assert client.settle() == "CompleteCommit"
    assert partition.last_stable_offset() == partition.next_offset == 2
    assert client.control_batches("t") == client.control_batches("t", 1) == [producer]


def test_end_grants_the_next_epoch(client: Client) -> None:
    producer = identity(client.init())
    client.add(producer, {"t": [0]})
    answer = client.end(producer, False, version=5)
    assert identity(answer) == (producer[0], 1)
    assert client.settle() == "CompleteAbort"
    assert identity(client.end(producer, False, version=5)) == (producer[0], 1)
    assert client.control_batches("t") == [(producer[0], 1)]


@pytest.mark.parametrize("version", range(6))
def test_end_errors(client: Client, version: int) -> None:
    assert client.end((1, 0), True, version, id="").error_code == ErrorCode.INVALID_REQUEST
    assert client.end((1, 0), True, version).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    producer_id, epoch = identity(client.init())
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert client.end((producer_id, epoch + 1), True, version).error_code == fenced
    assert client.end((producer_id, epoch), True, version).error_code == ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("version", range(4))
def test_add_errors(client: Client, version: int) -> None:
    both = {"t": [0, 7], "unknown": [0]}
    missing = {
        ("t", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        ("t", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("unknown", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    producer_id, epoch = identity(client.init())
    assert client.add((producer_id, epoch), both, version) == missing
    assert client.describe("x")[0].transaction_state == "Empty"
    assert client.add((1, 0), {"t": [0]}, version, id="") == {("t", 0): ErrorCode.INVALID_REQUEST}
    assert client.add((1, 0), {"t": [0]}, version) == {("t", 0): ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert client.add((producer_id, epoch + 1), {"t": [0]}, version) == {("t", 0): fenced}


@pytest.mark.parametrize(
    ("version", "outside"), [(4, ErrorCode.INVALID_TXN_STATE), (5, ErrorCode.TRANSACTION_ABORTABLE)]
)
def test_add_and_verify_in_batches(client: Client, version: int, outside: ErrorCode) -> None:
    producer = identity(client.init())

    def transaction(id: str, index: int, verify_only: bool) -> k24.AddPartitionsToTxnTransaction:
        return k24.AddPartitionsToTxnTransaction(
            transactional_id=id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            verify_only=verify_only,
            topics=[k24.AddPartitionsToTxnTopic(name="t", partitions=[index])],
        )

    def ask(*transactions: k24.AddPartitionsToTxnTransaction) -> list[tuple[str, dict[tuple[str, int], int]]]:
        request = k24.AddPartitionsToTxnRequest(transactions=list(transactions))
        answer = client.ask(add_partitions_to_txn, version, request)
        assert answer.error_code == 0
        return [(each.transactional_id, errors_of(each.topic_results)) for each in answer.results_by_transaction]

    assert ask(transaction("x", 0, False), transaction("y", 1, False)) == [
        ("x", {("t", 0): 0}),
        ("y", {("t", 1): ErrorCode.INVALID_PRODUCER_ID_MAPPING}),
    ]
    assert ask(transaction("x", 0, True)) == [("x", {("t", 0): 0})]
    assert ask(transaction("x", 1, True)) == [("x", {("t", 1): outside})]
    assert client.describe("x")[0].topics[0].partitions == [0]


@pytest.mark.parametrize("version", range(5))
def test_the_groups_partition_joins_the_transaction(client: Client, version: int) -> None:
    def ask(group: str, producer: tuple[int, int], id: str = "x") -> int:
        request = AddOffsetsToTxnRequest(
            transactional_id=id, producer_id=producer[0], producer_epoch=producer[1], group_id=group
        )
        return int(client.ask(add_offsets_to_txn, version, request).error_code)

    producer = identity(client.init())
    assert ask("", producer) == ErrorCode.INVALID_GROUP_ID
    assert ask("g", producer, id="") == ErrorCode.INVALID_REQUEST
    assert CONSUMER_OFFSETS not in client.logs.by_name
    assert ask("kbroker-group", producer) == 0  # makes the topic
    assert ask("kbroker-group", producer) == 0
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert ask("g", (producer[0], producer[1] + 1)) == fenced
    (topic,) = client.describe("x")[0].topics
    assert (topic.topic, topic.partitions) == (CONSUMER_OFFSETS, [46])
    client.end(producer, True)
    assert client.settle() == "CompleteCommit"
    assert client.groups.markers == [(46, *producer, 3, True)]


def test_deleted_topic_does_not_hold_up_its_transactions(client: Client) -> None:
    producer = identity(client.init())
    client.add(producer, {"t": [0, 1]})
    client.topics.delete_topics([client.logs.by_name["t"].topic_id])
    assert client.end(producer, True).error_code == 0
    assert client.settle() == "CompleteCommit"


# -- operators ---------------------------------------------------------------------------------------------------


def write_marker(
    client: Client,
    producer: tuple[int, int],
    coordinator_epoch: int,
    *indexes: int,
    api_version: int = 1,
    **fields: int,
) -> list[int]:
    marker = k27.WritableTxnMarker(
        producer_id=producer[0],
        producer_epoch=producer[1],
        transaction_result=False,
        topics=[k27.WritableTxnMarkerTopic(name="t", partition_indexes=list(indexes))],
        coordinator_epoch=coordinator_epoch,
        **fields,
    )
    answer = client.ask(write_txn_markers, api_version, k27.WriteTxnMarkersRequest(markers=[marker]))
    assert [each.producer_id for each in answer.markers] == [producer[0]]
    (topic,) = answer.markers[0].topics
    assert [each.partition_index for each in topic.partitions] == list(indexes)
    return [each.error_code for each in topic.partitions]


def producers(client: Client, *indexes: int) -> list[Any]:
    request = k61.DescribeProducersRequest(topics=[k61.TopicRequest(name="t", partition_indexes=list(indexes))])
    (topic,) = client.ask(describe_producers, 0, request).topics
    return list(topic.partitions)


def test_producers_and_markers_of_a_partition_that_is_led_elsewhere(client: Client) -> None:
    client.produce((9, 2), sequence=4)
    client.logs.resign([(client.logs.by_name["t"].topic_id, 0)])
    first, second = producers(client, 0, 1)
    assert (first.error_code, first.active_producers) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])
    assert second.error_code == 0
    assert write_marker(client, (9, 2), 3, 0, 1) == [ErrorCode.NOT_LEADER_OR_FOLLOWER, 0]


def test_an_operator_can_abort_a_transaction(client: Client) -> None:
    client.produce((9, 2), sequence=4)
    first, second, missing = producers(client, 0, 1, 2)
    (active,) = first.active_producers
    assert (active.producer_id, active.producer_epoch, active.last_sequence) == (9, 2, 4)
    assert (active.current_txn_start_offset, active.coordinator_epoch) == (0, -1)
    assert second.active_producers == []
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    assert write_marker(client, (9, 2), 3, 0, 2) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert client.control_batches("t") == [(9, 2)]
    (active,) = producers(client, 0)[0].active_producers
    assert active.current_txn_start_offset == -1
    assert write_marker(client, (9, 1), 3, 0) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert write_marker(client, (9, 2), 2, 0) == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]


@pytest.mark.parametrize(("transaction_version", "same_epoch"), [(0, 0), (1, 0), (2, ErrorCode.INVALID_PRODUCER_EPOCH)])
def test_a_marker_of_an_earlier_transaction_fails(client: Client, transaction_version: int, same_epoch: int) -> None:
    client.produce((9, 2), sequence=0)

    def end(epoch: int, *indexes: int) -> list[int]:
        return write_marker(
            client, (9, epoch), 3, *indexes, api_version=2, transaction_version=transaction_version
        )

    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert end(2, 0, 1, 2) == [same_epoch, 0, missing]
    assert end(3, 2, 0) == [missing, 0]
    assert end(3, 0) == [0]  # a retry, as there is no transaction any more
    assert client.control_batches("t")[-2:] == [(9, 3), (9, 3)]


def test_describe(client: Client) -> None:
    producer = identity(client.init())
    client.add(producer, {"t": [1, 0]})
    known, unknown, empty = client.describe("x", "absent", "")
    assert known.error_code == 0
    assert (known.transactional_id, known.transaction_state) == ("x", "Ongoing")
    assert (known.producer_id, known.producer_epoch) == producer
    assert known.transaction_timeout_ms == 60_000
    assert known.transaction_start_time_ms == client.clock.now_ms()
    assert [(topic.topic, topic.partitions) for topic in known.topics] == [("t", [0, 1])]
    assert (unknown.transactional_id, unknown.error_code) == ("absent", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    assert empty.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(3))
def test_list(client: Client, version: int) -> None:
    def listed(**filters: Any) -> list[str]:
        answer = client.ask(list_transactions, version, ListTransactionsRequest(**filters))
        assert answer.error_code == 0
        return sorted(each.transactional_id for each in answer.transaction_states)

    first = identity(client.init(transactional_id="app-1"))
    client.init(transactional_id="app-2")
    client.add(first, {"t": [0]}, id="app-1")
    client.clock.advance(10)
    assert listed() == ["app-1", "app-2"]
    assert listed(state_filters=["Ongoing", "Dead"]) == ["app-1"]
    assert listed(state_filters=["ongoing"]) == []
    assert listed(producer_id_filters=[first[0]]) == ["app-1"]
    answer = client.ask(list_transactions, version, ListTransactionsRequest(state_filters=["Empty", "Odd"]))
    assert answer.unknown_state_filters == ["Odd"]
    assert [each.transactional_id for each in answer.transaction_states] == ["app-2"]
    if version >= 1:
        assert listed(duration_filter=9_999) == ["app-1"]
        assert listed(duration_filter=10_000) == []
    if version >= 2:
        assert listed(transactional_id_pattern="app-[2-9]") == ["app-2"]
        assert listed(transactional_id_pattern="app") == []
        assert listed(transactional_id_pattern="") == ["app-1", "app-2"]
        bad = client.ask(list_transactions, version, ListTransactionsRequest(transactional_id_pattern="("))
        assert bad.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize("version", range(1, 7))
def test_the_coordinator_is_this_broker(client: Client, version: int) -> None:
    request = FindCoordinatorRequest(key="x", key_type=1, coordinator_keys=["x", "y"])
    answer = client.ask(find_coordinator, version, request)
    found = answer.coordinators if version >= 4 else [answer]
    assert [(each.error_code, each.host, each.port) for each in found] == [(0, "broker.example", 9999)] * len(found)
    assert len(found) == (2 if version >= 4 else 1)
    assert TRANSACTION_STATE in client.logs.by_name
