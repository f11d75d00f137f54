"""The replay's tasks without Spark: every row once and in order, whichever request or answer is lost."""

import threading
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from kbroker._fast.records.records import iter_batches, iter_records
from kbroker.errors import ErrorCode
from kbroker.pipeline.broker_tail import BrokerError
from kbroker.pipeline.jobs import replay_producer, replay_tasks
from kbroker.pipeline.jobs.replay import check_path, topic_options
from kbroker.pipeline.jobs.replay_producer import Progress, ReplayProducer, ReplayTarget, checksum_of, connect
from kbroker.pipeline.jobs.session import JobError
from kbroker.pipeline.options import Place
from kbroker.protocol.partitioner import partition_of

pa = pytest.importorskip("pyarrow")

TARGET = ReplayTarget("broker:9092", "t", "j1", "none")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [("target", pa.int32()), ("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS), ("ms", pa.int64())]
)


class TransactionalBroker:
    """One partition each: what is committed, and the transaction that is open. `fault(request)` may raise or answer."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.sequences = defaultdict(int)  # next of a producer's epoch
        self.committed = defaultdict(list)  # partition -> values
        self.offsets = {}
        self.epochs = defaultdict(int)
        self.open = {}  # transactional id -> (rows, offsets)
        self.requests = 0
        self.fault = lambda request, apply: apply()

    def connect(self, bootstrap):
        def call(request):
            self.requests += 1
            return self.fault(request, lambda: self.answer(request))

        return SimpleNamespace(call=call, close=lambda: None)

    def answer(self, request):
        handle = getattr(self, type(request).__name__)
        return handle(request)

    def FindCoordinatorRequest(self, request):
        return SimpleNamespace(error_code=0)

    def InitProducerIdRequest(self, request):
        self.open.pop(request.transactional_id, None)  # aborted
        self.epochs[request.transactional_id] += 1
        epoch = self.epochs[request.transactional_id]
        self.sequences[request.transactional_id] = 0
        return SimpleNamespace(error_code=0, producer_id=1, producer_epoch=epoch)

    def OffsetFetchRequest(self, request):
        assert request.require_stable
        partition = request.topics[0].partition_indexes[0]
        offset, metadata = self.offsets.get((request.group_id, partition), (-1, ""))
        found = SimpleNamespace(error_code=0, committed_offset=offset, metadata=metadata)
        return SimpleNamespace(error_code=0, topics=[SimpleNamespace(partitions=[found])])

    def _transaction(self, transactional_id, epoch):
        if epoch != self.epochs[transactional_id]:
            return None
        return self.open.setdefault(transactional_id, ([], {}))

    def AddPartitionsToTxnRequest(self, request):
        found = self._transaction(request.v3_and_below_transactional_id, request.v3_and_below_producer_epoch)
        code = 0 if found is not None else ErrorCode.PRODUCER_FENCED
        results = [SimpleNamespace(results_by_partition=[SimpleNamespace(partition_error_code=code)])]
        return SimpleNamespace(results_by_topic_v3_and_below=results)

    def ProduceRequest(self, request):
        data = request.topic_data[0].partition_data[0]
        ((header, _),) = iter_batches(data.records, check_crc=True)
        found = self._transaction(request.transactional_id, header.producer_epoch)
        code, text = 0, None
        if found is None:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        elif header.base_sequence != self.sequences[request.transactional_id]:
            code, text = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "sequence"
        else:
            self.sequences[request.transactional_id] += header.record_count
            found[0].extend((data.index, record.value) for record in iter_records(data.records))
        return SimpleNamespace(
            responses=[SimpleNamespace(partition_responses=[SimpleNamespace(error_code=code, error_message=text)])]
        )

    def AddOffsetsToTxnRequest(self, request):
        return SimpleNamespace(error_code=0)

    def TxnOffsetCommitRequest(self, request):
        _, offsets = self._transaction(request.transactional_id, request.producer_epoch)
        one = request.topics[0].partitions[0]
        offsets[request.group_id, one.partition_index] = (one.committed_offset, one.committed_metadata)
        return SimpleNamespace(topics=[SimpleNamespace(partitions=[SimpleNamespace(error_code=0)])])

    def EndTxnRequest(self, request):
        if request.producer_epoch != self.epochs[request.transactional_id]:
            return SimpleNamespace(error_code=ErrorCode.PRODUCER_FENCED)
        rows, offsets = self.open.pop(request.transactional_id, ([], {}))
        for partition, value in rows:
            self.committed[partition].append(value)
        self.offsets.update(offsets)
        return SimpleNamespace(error_code=0)


@pytest.fixture
def broker(monkeypatch):
    found = TransactionalBroker()
    monkeypatch.setattr(replay_producer, "connect", found.connect)
    monkeypatch.setattr(replay_tasks, "settle", lambda: None)
    monkeypatch.setattr(threading.Event, "wait", lambda self, timeout=None: False)
    return found


def rows_of(count, partitions=1, first=0):
    rows = [
        {"target": n % partitions, "key": b"k%d" % (n % 3), "value": b"%d" % n, "headers": None, "ms": n}
        for n in range(first, first + count)
    ]
    return sorted(rows, key=lambda row: row["target"])


def replay(rows, size=7):
    batches = [pa.RecordBatch.from_pylist(rows[at : at + size], SCHEMA) for at in range(0, len(rows), size)]
    (done,) = replay_tasks.replay_rows(TARGET, batches)
    return {row["partition"]: (row["sent"], row["skipped"]) for row in done.to_pylist()}


def values(count, partition=0, partitions=1):
    return [b"%d" % n for n in range(count) if n % partitions == partition]


def test_rows_of_each_partition_in_order_and_a_second_run_sends_nothing(broker, monkeypatch):
    monkeypatch.setattr(replay_tasks, "CHUNK_ROWS", 5)
    assert replay(rows_of(40, 3)) == {0: (14, 0), 1: (13, 0), 2: (13, 0)}
    assert replay(rows_of(40, 3)) == {0: (0, 14), 1: (0, 13), 2: (0, 13)}
    assert replay(rows_of(46, 3)) == {0: (2, 14), 1: (2, 13), 2: (2, 13)}
    assert broker.committed == {p: values(46, p, 3) for p in range(3)}


@pytest.mark.parametrize("when", ["before", "after", "refused"])
def test_every_row_is_sent_once_whichever_request_fails(broker, monkeypatch, when):
    """The connection breaks before the broker sees a request, or after it did; or it asks to come again."""
    monkeypatch.setattr(replay_tasks, "CHUNK_ROWS", 4)
    monkeypatch.setattr(replay_producer, "BATCH_BYTES", 100)  # more than one batch in a chunk
    point = 0
    while True:
        broker.reset()

        def fault(request, apply, point=point):
            if broker.requests != point + 1:
                return apply()
            if when == "after":
                apply()
            if when != "refused":
                raise ConnectionResetError("broken")
            return refusal()

        broker.fault = fault
        assert replay(rows_of(10)) == {0: (10, 0)}, point
        assert broker.committed == {0: values(10)}, point
        assert broker.offsets["kbroker-replay-j1", 0][0] == 10
        if broker.requests <= point:
            break
        point += 1
    assert point > 15


def refusal():
    """The broker's answer when its coordinator has just moved, or a transaction of before is being ended."""
    code = ErrorCode.CONCURRENT_TRANSACTIONS
    part = SimpleNamespace(error_code=code, partition_error_code=code, error_message=None)
    topic = SimpleNamespace(partitions=[part], results_by_partition=[part], partition_responses=[part])
    return SimpleNamespace(
        error_code=code, topics=[topic], responses=[topic], results_by_topic_v3_and_below=[topic]
    )  # fmt: skip


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_killed_at_any_point_is_continued(broker, monkeypatch, when):
    monkeypatch.setattr(replay_tasks, "CHUNK_ROWS", 4)
    point = 0
    while True:
        broker.reset()

        def fault(request, apply, point=point):
            if broker.requests != point + 1:
                return apply()
            if when == "after":
                apply()
            raise KeyboardInterrupt

        broker.fault = fault
        try:
            replay(rows_of(10))
        except KeyboardInterrupt:
            committed = len(broker.committed[0])
            assert broker.committed[0] == values(10)[:committed]
            assert replay(rows_of(10)) == {0: (10 - committed, committed)}
        else:
            break
        assert broker.committed == {0: values(10)}, point
        point += 1
    assert point > 15


def test_another_source_is_refused(broker):
    replay(rows_of(10))
    for other in (rows_of(10)[::-1], rows_of(9)):
        with pytest.raises(RuntimeError, match="the source has changed"):
            replay(other)
    assert broker.committed == {0: values(10)}


def test_the_second_of_two_runs_fences_the_first(broker):
    """The second fences the first, whose next chunk fails and is not in."""
    first, second = (ReplayProducer(TARGET, 0, lambda seconds: None) for _ in range(2))
    rows = [(None, b"%d" % n, 0, ()) for n in range(4)]
    done = first.send(rows[:2], first.open())
    assert second.open() == done == Progress(2, checksum_of(rows[:2], 0))
    with pytest.raises(BrokerError, match="another run of job j1"):
        first.send(rows[2:], done)
    assert second.send(rows[2:], done).rows == 4
    assert broker.committed == {0: values(4)}


def test_an_unreachable_broker_is_named(broker):
    def fault(request, apply):
        raise ConnectionResetError("gone")

    broker.fault = fault
    with pytest.raises(RuntimeError, match="t-0 at broker:9092: gone"):
        replay(rows_of(1))


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


def test_bad_addresses_and_options_are_refused():
    for wrong in ("host", "host:x", ":1", "host:70000"):
        with pytest.raises(BrokerError, match="is not HOST:PORT"):
            connect(wrong)
    with pytest.raises(BrokerError, match="no broker answers"):
        connect("127.0.0.1:1")
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
