"""The sink against a real broker, without Spark: where records go, and what a crash leaves of a job."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from broker_process import BrokerProcess
from conftest import ON_A_FOLDER, Store
from scenarios import new_topic
from sink_jobs import (
    Found,
    batch_job,
    given,
    open_transactions,
    query_of,
    read_committed,
    rows,
    stream_job,
    values_of,
    write,
)
from test_client_confluent import CLIENT as CONFLUENT
from until import until

from kbroker.client.broker_connections import BrokerConnections
from kbroker.pipeline.options import OptionError
from kbroker.pipeline.sink import batch_writer, producer
from kbroker.pipeline.sink.commit import JobCommit
from kbroker.pipeline.sink.decisions import Decision, decide, last_decision
from kbroker.pipeline.sink.errors import SinkError
from kbroker.pipeline.sink.job import abort, commit, start_batch
from kbroker.pipeline.sink.task import Job, Task, Written, write_rows
from kbroker.pipeline.sink.transactions import Transactions, connect
from kbroker.protocol.partitioner import partition_of

pytestmark = [pytest.mark.timeout(120), ON_A_FOLDER]
TRANSACTIONAL = {"kbroker__transactional": "true"}
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def decide_and_die(job: Job, written: list[Written], epoch: int) -> None:
    """What a driver that is killed after its decision has done."""
    client = connect(job.checked())
    attempts = tuple((each.task, each.attempt) for each in written)
    decide(client, query_of(job), job.options["topic"], Decision(epoch, attempts))
    client.close()


def abort_from_outside(job: Job, transactional_id: str) -> None:
    """What the broker does when a transaction's time is over."""
    client = connect(job.checked())
    Transactions(client, job.checked()).abort(transactional_id)
    client.close()


def test_records_land_where_javas_client_puts_them(broker: BrokerProcess) -> None:
    topic = new_topic(broker, CONFLUENT, "sink-keys", 5)
    keys = [f"key-{number}" for number in range(200)] + ["", "é"]
    job = batch_job(broker.bootstrap, topic)
    assert write(job, 0, keys).rows == len(keys)
    found = read_committed(broker.bootstrap, topic, 5)
    assert sorted(found) == sorted(Found(partition_of(key.encode(), 5), key.encode(), key.encode(), []) for key in keys)


def test_nulls_headers_and_partitions_are_kept(broker: BrokerProcess) -> None:
    topic = new_topic(broker, CONFLUENT, "sink-columns", 3)
    fields = [("value", "string"), ("headers", "array<struct<key:string,value:binary>>"), ("partition", "int"),
              ("topic", "string")]  # fmt: skip
    options = given(broker.bootstrap, topic, {})
    del options["topic"]
    batch = pa.RecordBatch.from_pydict({
        "value": pa.array(["a", None], pa.string()),
        "headers": pa.array([[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None], HEADERS),
        "partition": pa.array([2, 1], pa.int32()),
        "topic": pa.array([topic, topic], pa.string()),
    })  # fmt: skip
    write_rows(start_batch(options, fields, False), Task(0, 0, None, None), [batch])
    assert read_committed(broker.bootstrap, topic, 3) == [
        Found(1, None, None, []),
        Found(2, None, b"a", [("h", b"1"), ("h", None)]),
    ]


def test_what_cannot_be_written_is_said_in_one_line(broker: BrokerProcess) -> None:
    topic = new_topic(broker, CONFLUENT, "sink-refused", 1, **{"max.message.bytes": "1000"})
    job = batch_job(broker.bootstrap, topic)
    size = r"\(a record of 40\d\d bytes; max.message.bytes is 1000\)"
    with pytest.raises(SinkError, match=rf"^{topic}-0: Broker: Message size too large {size}$"):
        write(job, 0, ["small", "x" * 2000])
    with pytest.raises(SinkError, match=r"\(a record of 40\d\d bytes; kafka.max.request.size is 3000\)$"):
        write(batch_job(broker.bootstrap, topic, kafka__max__request__size="3000"), 0, ["x" * 2000])
    far = Job(job.options, [("value", "string"), ("partition", "int")], False, None)
    batch = pa.RecordBatch.from_pydict({"value": pa.array(["a"]), "partition": pa.array([7], pa.int32())})
    with pytest.raises(SinkError, match=rf"^{topic}-7: Local: Unknown partition$"):
        write_rows(far, Task(0, 0, None, None), [batch])
    with pytest.raises(OptionError, match=r'No such configuration property: "no.such.name"'):
        batch_job(broker.bootstrap, topic, kafka__no__such__name="1")
    with pytest.raises(OptionError, match="Save mode Overwrite not allowed for kbroker"):
        start_batch(job.options, job.fields, True)


def test_a_broker_that_is_not_there_is_said_before_the_first_task(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer, "CONTACT_SECONDS", 0.5)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(SinkError, match=rf"^no broker answers at {address}: .*Connection refused"):
        batch_job(address, "any")


def test_a_task_that_outlives_its_aborted_job_writes_nothing(broker: BrokerProcess) -> None:
    topic = new_topic(broker, CONFLUENT, "sink-late", 1)
    job = batch_job(broker.bootstrap, topic, **TRANSACTIONAL)

    def late() -> Iterator[pa.RecordBatch]:
        yield rows(["early"])
        abort(job, [])
        yield rows(["late"])

    with pytest.raises(SinkError):
        write_rows(job, Task(0, 0, None, None), late())
    with pytest.raises(SinkError, match="the job was aborted while task 1 began"):
        write(job, 1, ["later"])
    assert values_of(broker.bootstrap, topic) == []
    assert open_transactions(broker.bootstrap) == []


def test_an_aborted_job_can_be_run_again_under_its_id(broker: BrokerProcess) -> None:
    """As the error of a commit says; nothing had been decided to be committed."""
    topic = new_topic(broker, CONFLUENT, "sink-again", 1)
    job = batch_job(broker.bootstrap, topic, **TRANSACTIONAL)
    abort(job, [write(job, 0, ["a"])])
    again = batch_job(broker.bootstrap, topic, **TRANSACTIONAL, kbroker__job__id=str(job.id))
    for _ in range(2):
        commit(again, [write(again, 0, ["a"])])
    assert values_of(broker.bootstrap, topic) == ["a"]
    assert open_transactions(broker.bootstrap) == []


def test_a_job_in_transactions_is_seen_as_a_whole_or_not_at_all(broker: BrokerProcess) -> None:
    topic = new_topic(broker, CONFLUENT, "sink-job", 2)
    job = batch_job(broker.bootstrap, topic, **TRANSACTIONAL)
    written = [write(job, task, [f"{task}-{number}" for number in range(50)]) for task in range(3)]
    written.append(write(job, 3, []))
    assert written[3].transaction is None
    assert values_of(broker.bootstrap, topic, 2) == []
    commit(job, written)
    assert values_of(broker.bootstrap, topic, 2) == sorted(f"{t}-{n}" for t in range(3) for n in range(50))
    assert open_transactions(broker.bootstrap) == []


def test_a_job_that_fails_leaves_nothing(broker: BrokerProcess) -> None:
    topic = new_topic(broker, CONFLUENT, "sink-abort", 1)
    job = batch_job(broker.bootstrap, topic, **TRANSACTIONAL)
    written = write(job, 0, ["a"])
    write(job, 1, ["b"])  # a task whose report is lost
    assert len(open_transactions(broker.bootstrap)) == 2
    abort(job, [written, None])
    assert open_transactions(broker.bootstrap) == []
    bad = Job({**job.options, "topic": topic}, [("value", "string"), ("partition", "int")], False, f"{job.id}b")
    batch = pa.RecordBatch.from_pydict({"value": pa.array(["a", "b"]), "partition": pa.array([0, -5], pa.int32())})
    with pytest.raises(SinkError, match="Invalid partition: -5"):
        write_rows(bad, Task(0, 0, None, None), [rows([]), batch])
    assert open_transactions(broker.bootstrap) == []
    assert values_of(broker.bootstrap, topic) == []


def test_only_the_attempt_that_reports_is_committed(broker: BrokerProcess) -> None:
    """A speculative copy of a task wrote the same rows."""
    topic = new_topic(broker, CONFLUENT, "sink-speculative", 1)
    job = batch_job(broker.bootstrap, topic, **TRANSACTIONAL)
    write(job, 0, ["a", "b"], attempt=0)
    commit(job, [write(job, 0, ["a", "b"], attempt=1)])
    assert values_of(broker.bootstrap, topic) == ["a", "b"]
    assert open_transactions(broker.bootstrap) == []


def test_a_commit_waits_for_a_broker_that_restarts(broker: BrokerProcess) -> None:
    topic = new_topic(broker, CONFLUENT, "sink-restart", 1)
    job = batch_job(broker.bootstrap, topic, **TRANSACTIONAL)
    written = write(job, 0, ["a"])
    broker.kill()
    starting = threading.Timer(0.3, broker.start)
    starting.start()
    try:
        commit(job, [written])
    finally:
        starting.join()
    assert values_of(broker.bootstrap, topic) == ["a"]


@pytest.mark.parametrize("more", [{}, TRANSACTIONAL], ids=["plain", "transactional"])
def test_each_row_is_written_once_while_its_broker_dies(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, more: dict[str, str]
) -> None:
    """Requests are unanswered when it is killed; what they hold is sent again under the same sequence numbers."""
    monkeypatch.setattr(batch_writer, "REQUEST_BYTES", 10_000)
    topic = new_topic(broker, CONFLUENT, "sink-killed", 3)
    job = batch_job(broker.bootstrap, topic, **more)
    values = [[f"{part}-{number}" for number in range(1000)] for part in range(9)]
    starting: list[threading.Timer] = []

    def dying() -> Iterator[pa.RecordBatch]:
        for part, found in enumerate(values):
            yield rows(found)
            if part in (3, 6):
                for each in starting:
                    each.join()  # it takes requests before its start is over
                broker.kill()
                starting.append(threading.Timer(0.3, broker.start))
                starting[-1].start()

    try:
        commit(job, [write_rows(job, Task(0, 0, None, None), dying())])
    finally:
        for each in starting:
            each.join()
    assert len(starting) == 2
    assert values_of(broker.bootstrap, topic, 3) == sorted(value for found in values for value in found)
    for partition in range(3):  # rows that were sent first come first
        found = [each.value for each in read_committed(broker.bootstrap, topic, 3) if each.partition == partition]
        assert found == [
            value.encode() for part in values for value in part if partition_of(value.encode(), 3) == partition
        ]


def test_rows_of_many_topics_keep_their_order(broker: BrokerProcess) -> None:
    topics = [new_topic(broker, CONFLUENT, "sink-many", 1) for _ in range(3)]
    options = given(broker.bootstrap, topics[0], {})
    del options["topic"]
    fields = [("topic", "string"), ("value", "string")]
    found = [(topics[number * 7 % 3], str(number)) for number in range(500)]
    batch = pa.RecordBatch.from_pydict({"topic": [each[0] for each in found], "value": [each[1] for each in found]})
    write_rows(start_batch(options, fields, False), Task(0, 0, None, None), [batch.slice(0, 300), batch.slice(300)])
    for topic in topics:
        values = [(each.value or b"").decode() for each in read_committed(broker.bootstrap, topic)]
        assert values == [value for name, value in found if name == topic]


@pytest.mark.parametrize("more", [{}, TRANSACTIONAL], ids=["plain", "transactional"])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_batches_fit_into_what_a_topic_takes(broker: BrokerProcess, more: dict[str, str], codec: str) -> None:
    """They are split where they do not, and keep their order."""
    topic = new_topic(broker, CONFLUENT, "sink-small", 2, **{"max.message.bytes": "3000"})
    job = batch_job(broker.bootstrap, topic, kafka__compression__type=codec, **more)
    chosen = random.Random(3)
    values = [f"{number}-{chosen.randbytes(chosen.randrange(200)).hex()}" for number in range(2000)]
    commit(job, [write_rows(job, Task(0, 0, None, None), [rows(values[:1500]), rows(values[1500:])])])
    for partition in range(2):
        found = [each.value for each in read_committed(broker.bootstrap, topic, 2) if each.partition == partition]
        assert found == [each.encode() for each in values if partition_of(each.encode(), 2) == partition]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_are_compressed_as_asked(broker: BrokerProcess, codec: str) -> None:
    topic = new_topic(broker, CONFLUENT, "sink-codec", 1)
    values = [f"value-{number:04}" for number in range(1000)]
    write(batch_job(broker.bootstrap, topic, kafka__compression__type=codec), 0, values)
    assert values_of(broker.bootstrap, topic) == values


@pytest.mark.parametrize("more", [{}, TRANSACTIONAL], ids=["plain", "transactional"])
def test_a_setting_of_librdkafka_alone_is_followed(broker: BrokerProcess, more: dict[str, str]) -> None:
    topic = new_topic(broker, CONFLUENT, "sink-other", 2)
    job = batch_job(broker.bootstrap, topic, kafka__socket__keepalive__enable="true", **more)
    commit(job, [write(job, 0, ["a", "b"])])
    assert values_of(broker.bootstrap, topic, 2) == ["a", "b"]


def test_a_job_with_an_id_is_done_once(broker: BrokerProcess) -> None:
    topic = new_topic(broker, CONFLUENT, "sink-job-id", 1)
    for values in (["a"], ["b"]):
        job = batch_job(broker.bootstrap, topic, **TRANSACTIONAL, kbroker__job__id=f"once-{topic}")
        commit(job, [write(job, 0, values)])
    assert values_of(broker.bootstrap, topic) == ["a"]


def test_a_micro_batch_that_was_decided_is_finished_and_not_written_again(broker: BrokerProcess) -> None:
    topic = new_topic(broker, CONFLUENT, "sink-decided", 1)
    job = stream_job(broker.bootstrap, topic, **TRANSACTIONAL)
    commit(job, [write(job, 0, ["a"], epoch=0)], 0)
    decide_and_die(job, [write(job, 0, ["b"], epoch=1), write(job, 1, ["c"], epoch=1, attempt=2)], 1)
    assert values_of(broker.bootstrap, topic) == ["a"]
    for _ in range(2):  # the second time it is finished already
        again = [write(job, task, ["x"], epoch=1) for task in range(2)]
        assert all(each.decided and each.rows == 0 for each in again)
        commit(job, again, 1)
        assert values_of(broker.bootstrap, topic) == ["a", "b", "c"]
    commit(job, [write(job, 0, ["d"], epoch=2)], 2)
    assert values_of(broker.bootstrap, topic) == ["a", "b", "c", "d"]
    client = connect(job.checked())
    assert last_decision(client, query_of(job)) == Decision(2, ((0, 0),))
    client.close()


def test_a_micro_batch_that_was_not_decided_is_written_anew(broker: BrokerProcess) -> None:
    topic = new_topic(broker, CONFLUENT, "sink-undecided", 1)
    job = stream_job(broker.bootstrap, topic, **TRANSACTIONAL)
    for task in range(3):
        write(job, task, [f"old-{task}"], epoch=0)
    commit(job, [write(job, 0, ["new"], epoch=0)], 0)
    assert values_of(broker.bootstrap, topic) == ["new"]
    assert open_transactions(broker.bootstrap) == []


class Died(BaseException):
    """The driver was killed."""


@pytest.mark.parametrize("is_sent", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("aborts", [False, True], ids=["killed", "failed"])
def test_a_driver_may_die_at_any_request(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, is_sent: bool, aborts: bool
) -> None:
    """At the first request of a commit, the second, and so on; then the micro-batch runs again. One whose commit only
    failed is aborted before."""
    topic = new_topic(broker, CONFLUENT, "sink-died", 1)
    job = stream_job(broker.bootstrap, topic, **TRANSACTIONAL)
    call = BrokerConnections.call
    left, expected = 0, []

    def dying(self: BrokerConnections, *given: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0 and not is_sent:
            raise Died
        answer = call(self, *given)
        if left < 0:
            raise Died
        return answer

    epoch, died = -1, True
    while died:
        epoch += 1
        values = [f"{epoch}-{task}" for task in range(2)]
        expected += values
        written = [write(job, task, [value], epoch=epoch) for task, value in enumerate(values)]
        left, died = epoch, False
        with monkeypatch.context() as patch:
            patch.setattr(BrokerConnections, "call", dying)
            try:
                commit(job, written, epoch)
            except Died:
                died = True
        if died:
            if aborts:
                abort(job, written, epoch)
            commit(job, [write(job, task, [value], epoch=epoch) for task, value in enumerate(values)], epoch)
    assert epoch > 8
    assert values_of(broker.bootstrap, topic) == sorted(expected)
    assert open_transactions(broker.bootstrap) == []


def test_an_abort_spares_what_was_decided(broker: BrokerProcess) -> None:
    """Spark aborts a micro-batch whose commit has failed."""
    topic = new_topic(broker, CONFLUENT, "sink-spared", 1)
    job = stream_job(broker.bootstrap, topic, **TRANSACTIONAL)
    written = [write(job, 0, ["a"], epoch=0)]
    write(job, 1, ["loser"], epoch=0)
    decide_and_die(job, written, 0)
    abort(job, written, 0)
    commit(job, [write(job, 0, ["x"], epoch=0)], 0)
    assert values_of(broker.bootstrap, topic) == ["a"]


def test_nothing_is_committed_if_a_transaction_has_ended(broker: BrokerProcess) -> None:
    topic = new_topic(broker, CONFLUENT, "sink-timed-out", 1)
    job = batch_job(broker.bootstrap, topic, **TRANSACTIONAL)
    written = [write(job, task, [f"{task}"]) for task in range(2)]
    assert written[1].transaction is not None
    abort_from_outside(job, written[1].transaction.transactional_id)
    with pytest.raises(SinkError, match=r"^nothing was committed: transaction kbroker-spark-\w+-1-0 is not open"):
        commit(job, written)
    abort(job, written)
    assert values_of(broker.bootstrap, topic) == []


def test_a_transaction_without_time_for_its_commit_is_not_committed(broker: BrokerProcess) -> None:
    class Later:
        """The clock of a driver that comes late."""

        def now_ms(self) -> int:
            return (1 << 62) - 1

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

    topic = new_topic(broker, CONFLUENT, "sink-late", 1)
    job = batch_job(broker.bootstrap, topic, **TRANSACTIONAL)
    written = [write(job, 0, ["a"])]
    client = connect(job.checked())
    with pytest.raises(SinkError, match="not for long enough"):
        JobCommit(client, job.checked(), str(job.id), Later()).commit(written, 0)  # type: ignore[arg-type]
    client.close()
    abort(job, written)


def test_a_decision_that_the_broker_has_overtaken_is_said(broker: BrokerProcess) -> None:
    topic = new_topic(broker, CONFLUENT, "sink-lost", 1)
    job = stream_job(broker.bootstrap, topic, **TRANSACTIONAL)
    written = [write(job, task, [f"{task}"], epoch=0) for task in range(2)]
    decide_and_die(job, written, 0)
    assert written[0].transaction is not None
    abort_from_outside(job, written[0].transaction.transactional_id)
    again = [write(job, 0, ["x"], epoch=0)]
    with pytest.raises(SinkError, match=f"micro-batch 0 of {query_of(job)} is committed in part.*delete the group"):
        commit(job, again, 0)
    until(lambda: values_of(broker.bootstrap, topic) == ["1"], "other part")
