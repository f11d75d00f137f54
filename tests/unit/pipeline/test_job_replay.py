"""The replay's tasks without Spark: every row once and in order, whichever request or answer is lost."""

from __future__ import annotations

import functools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker._fast.records.records import iter_batches, iter_records
from kbroker.client.connection import ClientConnection
from kbroker.client.producer_session import ProducerSettings
from kbroker.errors import ErrorCode
from kbroker.pipeline.broker_tail import BrokerError
from kbroker.pipeline.jobs import replay_producer, replay_tasks
from kbroker.pipeline.jobs.replay import check_path, topic_options
from kbroker.pipeline.jobs.replay_producer import (
    Progress,
    ReplayProducer,
    ReplayTarget,
    checksum_of,
    partition_count,
)
from kbroker.pipeline.jobs.session import JobError
from kbroker.pipeline.options import Place
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.apis.cluster.k03_metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kbroker.protocol.apis.groups.k09_offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from kbroker.protocol.apis.groups.k10_find_coordinator import Coordinator, FindCoordinatorResponse
from kbroker.protocol.apis.records.k00_produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from kbroker.protocol.apis.transactions.k22_init_producer_id import InitProducerIdResponse
from kbroker.protocol.apis.transactions.k24_add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from kbroker.protocol.apis.transactions.k25_add_offsets_to_txn import AddOffsetsToTxnResponse
from kbroker.protocol.apis.transactions.k26_end_txn import EndTxnResponse
from kbroker.protocol.apis.transactions.k28_txn_offset_commit import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kbroker.protocol.fields import Message
from kbroker.protocol.partitioner import partition_of
from tests.unit.client.fake_broker import FakeBroker

pa = pytest.importorskip("pyarrow")

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [("target", pa.int32()), ("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS), ("ms", pa.int64())]
)
PARTITIONS = 3
VERSIONS = {
    ApiKey.METADATA: (9, 12),
    ApiKey.FIND_COORDINATOR: (4, 4),
    ApiKey.INIT_PRODUCER_ID: (3, 4),
    ApiKey.OFFSET_FETCH: (7, 7),
    ApiKey.ADD_PARTITIONS_TO_TXN: (3, 3),
    ApiKey.PRODUCE: (3, 11),
    ApiKey.ADD_OFFSETS_TO_TXN: (3, 3),
    ApiKey.TXN_OFFSET_COMMIT: (3, 3),
    ApiKey.END_TXN: (3, 4),
}
BUSY, LOADING = ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class TransactionalBroker:
    """What is committed, and the transactions that are open. `refuses(request)` says which are to be sent again."""

    def __init__(self) -> None:
        handlers = {key: getattr(self, key.name.lower()) for key in VERSIONS}
        self.broker = FakeBroker(handlers, VERSIONS)
        self.target = ReplayTarget(self.broker.bootstrap, "t", "j1", "none")
        self.reset()

    def reset(self) -> None:
        self.sequences: dict[str, int] = defaultdict(int)  # next of a producer's epoch
        self.committed: dict[int, list[bytes | None]] = defaultdict(list)  # values by partition
        self.offsets: dict[tuple[str, int], tuple[int, str]] = {}
        self.epochs: dict[str, int] = defaultdict(int)
        self.open: dict[str, tuple[list[Any], dict[Any, Any]]] = {}  # rows and offsets by transactional id
        self.requests = 0
        self.refused = -1  # which request

    def is_refused(self) -> bool:
        self.requests += 1
        return self.requests == self.refused

    def metadata(self, request: Any) -> Message:
        broker = MetadataResponseBroker(node_id=1, host=self.broker.host, port=self.broker.port)
        partitions = [MetadataResponsePartition(partition_index=index, leader_id=1) for index in range(PARTITIONS)]
        topics = [MetadataResponseTopic(name="t", partitions=partitions)] if request.topics else []
        return MetadataResponse(brokers=[broker], controller_id=1, topics=topics)

    def find_coordinator(self, request: Any) -> Message:
        (key,) = request.coordinator_keys
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE if self.is_refused() else 0
        found = Coordinator(key=key, node_id=1, host=self.broker.host, port=self.broker.port, error_code=code)
        return FindCoordinatorResponse(coordinators=[found])

    def init_producer_id(self, request: Any) -> Message:
        if self.is_refused():
            return InitProducerIdResponse(error_code=BUSY)
        self.open.pop(request.transactional_id, None)  # aborted
        self.epochs[request.transactional_id] += 1
        self.sequences[request.transactional_id] = 0
        return InitProducerIdResponse(producer_id=1, producer_epoch=self.epochs[request.transactional_id])

    def offset_fetch(self, request: Any) -> Message:
        assert request.require_stable
        partition = request.topics[0].partition_indexes[0]
        offset, metadata = self.offsets.get((request.group_id, partition), (-1, ""))
        code = ErrorCode.UNSTABLE_OFFSET_COMMIT if self.is_refused() else 0
        found = OffsetFetchResponsePartition(
            partition_index=partition, committed_offset=offset, metadata=metadata, error_code=code
        )
        return OffsetFetchResponse(topics=[OffsetFetchResponseTopic(name="t", partitions=[found])])

    def _transaction(self, transactional_id: str, epoch: int) -> Any:
        if epoch != self.epochs[transactional_id]:
            return None
        return self.open.setdefault(transactional_id, ([], {}))

    def add_partitions_to_txn(self, request: Any) -> Message:
        found = self._transaction(request.v3_and_below_transactional_id, request.v3_and_below_producer_epoch)
        code = ErrorCode.PRODUCER_FENCED if found is None else BUSY if self.is_refused() else 0
        results = [
            AddPartitionsToTxnPartitionResult(partition_index=each, partition_error_code=code)
            for each in request.v3_and_below_topics[0].partitions
        ]
        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=[AddPartitionsToTxnTopicResult(name="t", results_by_partition=results)]
        )

    def produce(self, request: Any) -> Message:
        data = request.topic_data[0].partition_data[0]
        ((header, _),) = iter_batches(data.records, check_crc=True)
        found = self._transaction(request.transactional_id, header.producer_epoch)
        expected = self.sequences[request.transactional_id]
        code = 0
        if found is None:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        elif self.is_refused():
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif header.base_sequence > expected:
            code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        elif header.base_sequence == expected:
            self.sequences[request.transactional_id] += header.record_count
            found[0].extend((data.index, record.value) for record in iter_records(data.records))
        answered = [PartitionProduceResponse(index=data.index, error_code=code)]
        return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=answered)])

    def add_offsets_to_txn(self, request: Any) -> Message:
        return AddOffsetsToTxnResponse(error_code=LOADING if self.is_refused() else 0)

    def txn_offset_commit(self, request: Any) -> Message:
        code = ErrorCode.NOT_COORDINATOR if self.is_refused() else 0
        one = request.topics[0].partitions[0]
        if not code:
            _, offsets = self._transaction(request.transactional_id, request.producer_epoch)
            offsets[request.group_id, one.partition_index] = (one.committed_offset, one.committed_metadata)
        answered = [TxnOffsetCommitResponsePartition(partition_index=one.partition_index, error_code=code)]
        return TxnOffsetCommitResponse(topics=[TxnOffsetCommitResponseTopic(name="t", partitions=answered)])

    def end_txn(self, request: Any) -> Message:
        if request.producer_epoch != self.epochs[request.transactional_id]:
            return EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED)
        if self.is_refused():
            return EndTxnResponse(error_code=BUSY)
        rows, offsets = self.open.pop(request.transactional_id, ([], {}))
        for partition, value in rows:
            self.committed[partition].append(value)
        self.offsets.update(offsets)
        return EndTxnResponse()


class Faults:
    """Ends the connection or the program at one of a run's requests: before it is sent, or once it is answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent = self.answered = 0
        self.point = -1
        self.before = True
        self.error: Callable[[], BaseException] = ConnectionResetError
        send, receive = ClientConnection.send, ClientConnection.receive

        def send_or_fail(connection: ClientConnection, request: Message, newest: int | None = None) -> None:
            self.sent += 1
            if self.before and self.sent == self.point:
                raise self.error()
            send(connection, request, newest)

        def receive_or_fail(connection: ClientConnection) -> Any:
            found = receive(connection)
            self.answered += 1
            if not self.before and self.answered == self.point:
                raise self.error()
            return found

        monkeypatch.setattr(ClientConnection, "send", send_or_fail)
        monkeypatch.setattr(ClientConnection, "receive", receive_or_fail)

    def at(self, point: int, when: str, error: Callable[[], BaseException]) -> None:
        self.sent = self.answered = 0
        self.point, self.before, self.error = point, when == "before", error

    @property
    def is_past(self) -> bool:
        return self.point > (self.sent if self.before else self.answered)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[TransactionalBroker]:
    found = TransactionalBroker()
    monkeypatch.setattr(replay_tasks, "settle", lambda: None)
    monkeypatch.setattr(threading.Event, "wait", lambda self, timeout=None: False)
    yield found
    found.broker.close()


def rows_of(count, partitions=1, first=0):
    rows = [
        {"target": n % partitions, "key": b"k%d" % (n % 3), "value": b"%d" % n, "headers": None, "ms": n}
        for n in range(first, first + count)
    ]
    return sorted(rows, key=lambda row: row["target"])


def replay(broker, rows, size=7):
    batches = [pa.RecordBatch.from_pylist(rows[at : at + size], SCHEMA) for at in range(0, len(rows), size)]
    (done,) = replay_tasks.replay_rows(broker.target, batches)
    return {row["partition"]: (row["sent"], row["skipped"]) for row in done.to_pylist()}


def values(count, partition=0, partitions=1):
    return [b"%d" % n for n in range(count) if n % partitions == partition]


def test_rows_of_each_partition_in_order_and_a_second_run_sends_nothing(broker, monkeypatch):
    monkeypatch.setattr(replay_tasks, "CHUNK_ROWS", 5)
    assert replay(broker, rows_of(40, 3)) == {0: (14, 0), 1: (13, 0), 2: (13, 0)}
    assert replay(broker, rows_of(40, 3)) == {0: (0, 14), 1: (0, 13), 2: (0, 13)}
    assert replay(broker, rows_of(46, 3)) == {0: (2, 14), 1: (2, 13), 2: (2, 13)}
    assert broker.committed == {p: values(46, p, 3) for p in range(3)}


@pytest.mark.parametrize("when", ["before", "after", "refused"])
def test_every_row_is_sent_once_whichever_request_fails(
    broker: TransactionalBroker, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The connection breaks before the broker sees a request, or after it did; or it asks to come again."""
    monkeypatch.setattr(replay_tasks, "CHUNK_ROWS", 4)
    monkeypatch.setattr(replay_producer, "BATCH_BYTES", 100)  # more than one batch in a chunk
    faults = Faults(monkeypatch)
    point = 3 if when != "refused" else 1  # the first contact is waited for, and counted as a connection of its own
    while True:
        broker.reset()
        if when == "refused":
            broker.refused = point
        else:
            faults.at(point, when, ConnectionResetError)
        assert replay(broker, rows_of(10)) == {0: (10, 0)}, point
        assert broker.committed == {0: values(10)}, point
        assert broker.offsets["kbroker-replay-j1", 0][0] == 10
        if broker.requests < point if when == "refused" else faults.is_past:
            break
        point += 1
    assert point > 15


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_killed_at_any_point_is_continued(
    broker: TransactionalBroker, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setattr(replay_tasks, "CHUNK_ROWS", 4)
    faults = Faults(monkeypatch)
    point = 1
    while True:
        broker.reset()
        faults.at(point, when, KeyboardInterrupt)
        try:
            replay(broker, rows_of(10))
        except KeyboardInterrupt:
            committed = len(broker.committed[0])
            assert broker.committed[0] == values(10)[:committed]
            faults.at(-1, when, KeyboardInterrupt)
            assert replay(broker, rows_of(10)) == {0: (10 - committed, committed)}
        else:
            break
        assert broker.committed == {0: values(10)}, point
        point += 1
    assert point > 15


def test_another_source_is_refused(broker):
    replay(broker, rows_of(10))
    for other in (rows_of(10)[::-1], rows_of(9)):
        with pytest.raises(RuntimeError, match="the source has changed"):
            replay(broker, other)
    assert broker.committed == {0: values(10)}


def test_the_second_of_two_runs_fences_the_first(broker):
    """The second fences the first, whose next chunk fails and is not in."""
    first, second = (ReplayProducer(broker.target, 0) for _ in range(2))
    rows = [(None, b"%d" % n, 0, ()) for n in range(4)]
    done = first.send(rows[:2], first.open())
    assert second.open() == done == Progress(2, checksum_of(rows[:2], 0))
    with pytest.raises(BrokerError, match="another run of job j1"):
        first.send(rows[2:], done)
    assert second.send(rows[2:], done).rows == 4
    assert broker.committed == {0: values(4)}


def test_an_unreachable_broker_is_named(broker, monkeypatch):
    impatient = functools.partial(ProducerSettings, delivery_s=0.01)
    monkeypatch.setattr(replay_producer, "ProducerSettings", impatient)
    broker.broker.close()
    with pytest.raises(RuntimeError, match=f"t-0 at {broker.target.bootstrap}: no broker answers"):
        replay(broker, rows_of(1))


def test_large_rows_have_batches_of_their_own(broker, monkeypatch):
    monkeypatch.setattr(replay_producer, "BATCH_BYTES", 1000)
    rows = [(b"k", b"x" * size, 0, [("h", None)]) for size in (10, 2000, 10, 900, 900)]
    assert [len(part) for part in replay_producer._batches(rows)] == [1, 1, 2, 1]
    assert [len(part) for part in replay_producer._batches(rows[:1] * 30)] == [19, 11]


def test_keyed_rows_go_to_the_partition_of_kafkas_clients(monkeypatch):
    monkeypatch.setattr(replay_tasks, "settle", lambda: None)
    rows = [
        {"target": None, "key": b"k", "value": b"v"}, {"target": None, "key": None, "value": b"v"},
        {"target": None, "key": None, "value": None}, {"target": 2, "key": b"k", "value": b"v"},
    ]  # fmt: skip
    batch = pa.RecordBatch.from_pylist(rows, pa.schema(list(SCHEMA)[:3]))
    found = [batch.column("target").to_pylist() for batch in replay_tasks.with_targets(3, [batch, batch])]
    assert found[0] == found[1]
    assert found[0][0] == partition_of(b"k", 3)
    assert found[0][3] == 2
    assert all(0 <= target < 3 for target in found[0])
    with pytest.raises(RuntimeError, match="a row is of partition 2; the topic has 2"):
        list(replay_tasks.with_targets(2, [batch]))


def test_bad_addresses_and_options_are_refused(broker):
    for wrong in ("host", "host:x", ":1", "host:70000"):
        with pytest.raises(BrokerError, match="is not HOST:PORT"):
            partition_count(wrong, "t")
    with pytest.raises(BrokerError, match="no broker answers"):
        partition_count("127.0.0.1:1", "t")
    assert partition_count(broker.target.bootstrap, "t") == PARTITIONS
    assert replay_tasks.parse_options(["a=b=c"]) == {"a": "b=c"}
    with pytest.raises(JobError, match="KEY=VALUE"):
        replay_tasks.parse_options(["a"])


@pytest.mark.parametrize("path", ["{}/none", "file:{}/none", "file://{}/none"])
def test_a_local_table_that_is_missing_is_said_before_spark_starts(path: str, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="--path: there is no "):
        check_path(path.format(tmp_path), "parquet")


@pytest.mark.parametrize("path", ["{}", "file:{}", "{}/*.parquet", "s3a://lake/none", "hdfs://n/none"])
def test_a_table_that_is_there_or_only_spark_can_see_passes(path: str, tmp_path: Path) -> None:
    check_path(path.format(tmp_path), "parquet")
    check_path("catalog.table", "iceberg")


def test_a_topic_is_read_as_committed_from_the_job_s_place() -> None:
    place = Place("s3://b/p", None, "http://e", None)
    assert topic_options(place, "t") == {
        "object.store": "s3://b/p",
        "s3.endpoint": "http://e",
        "subscribe": "t",
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
    }
