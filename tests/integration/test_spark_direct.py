"""format("kbroker") and the export job on real Spark: rows against what was sent and against Spark's kafka source."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import scenarios
import spark_export_job
from broker_process import BrokerProcess
from conftest import IN_A_BUCKET_WHEN_SLOW, ON_A_FOLDER, Store
from s3_proxy import refusing_proxy
from s3_server import S3Server
from scenarios import IDEMPOTENT, new_topic
from test_client_confluent import CLIENT as CONFLUENT
from workload import CODECS, Message, Sent, generated, spread

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


def place(store: Store) -> dict[str, str]:
    """Options that name the broker's bucket."""
    given = dict(zip(store.options[::2], store.options[1::2], strict=True))
    found = {"object.store": given["--object-store"]}
    if "--s3-endpoint" in given:
        found["s3.endpoint"] = given["--s3-endpoint"]
    return found


def direct(spark: Any, store: Store, topic: str, **options: str) -> Any:
    return spark.read.format("kbroker").options(**{**place(store), **chosen(topic, options)}).load()


def by_kafka(spark: Any, broker: BrokerProcess, topic: str, **options: str) -> Any:
    given = {"kafka.bootstrap.servers": broker.bootstrap, "kafka.fetch.max.wait.ms": "10"}
    return spark.read.format("kafka").options(**given, **chosen(topic, options)).load()


def chosen(topic: str, options: dict[str, str]) -> dict[str, str]:
    """The options, which may choose topics in another way."""
    return options if {"assign", "subscribePattern"} & set(options) else {"subscribe": topic, **options}


def rows(table: Any) -> list[tuple]:
    return sorted(table.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def as_sent(found: list[Any]) -> Sent:
    sent: Sent = {}
    for row in found:
        headers = tuple((header.key, _bytes(header.value)) for header in row.headers or ())
        stamp = round(row.timestamp.timestamp() * 1000)
        sent.setdefault(row.partition, []).append(Message(_bytes(row.key), _bytes(row.value), headers, stamp))
    return sent


def _bytes(data: bytearray | None) -> bytes | None:
    return None if data is None else bytes(data)


def test_a_batch_query_works_with_and_without_the_broker(
    broker: BrokerProcess, store: Store, spark: Any
) -> None:
    """Every codec, nulls and headers, in objects of several flushes; the tail of what is not flushed yet."""
    topic = new_topic(broker, CONFLUENT, "direct", 4)  # partition 3 stays empty
    total: Sent = {}
    for number, codec in enumerate(CODECS):
        sent = spread(generated(60, seed=number), 3)
        scenarios.send(broker, CONFLUENT, topic, sent, codec, IDEMPOTENT)
        scenarios.add(total, sent)
        if number in (0, 3):
            broker.flush()
    tail = {"tail": "broker", "kafka.bootstrap.servers": broker.bootstrap}
    with_tail = rows(direct(spark, store, topic, includeHeaders="true", **tail))
    assert with_tail == rows(by_kafka(spark, broker, topic, includeHeaders="true"))
    assert as_sent(with_tail) == total
    assert broker.stop() == 0
    try:
        table = direct(spark, store, topic, includeHeaders="true", minPartitions="6")
        assert rows(table) == with_tail
        few = direct(spark, store, topic, columns="partition,offset")
        assert few.columns == ["partition", "offset"]
        assert few.where("partition = 1 and offset >= 5").count() == len(total[1]) - 5
    finally:
        broker.start()


@ON_A_FOLDER
def test_transactions_are_read_as_by_the_kafka_source(broker: BrokerProcess, store: Store, spark: Any) -> None:
    """Aborted, committed and open transactions, some flushed and some not, as the kafka source reads them."""
    from confluent_kafka import Producer

    topic = new_topic(broker, CONFLUENT, "direct-transactions", 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    for number in range(8):
        producer.begin_transaction()
        producer.produce(topic, value=b"%d" % number, partition=0)
        producer.flush(30)
        if number == 5:
            broker.flush()  # in the middle of a transaction
        _ = producer.abort_transaction(30) if number % 2 else producer.commit_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, value=b"open", partition=0)
    producer.flush(30)
    tail = {"tail": "broker", "kafka.bootstrap.servers": broker.bootstrap}
    for isolation in ({"kafka.isolation.level": "read_committed"}, {}):
        expected = rows(by_kafka(spark, broker, topic, **isolation))
        assert rows(direct(spark, store, topic, **isolation, **tail)) == expected
        assert {bytes(row.value) for row in expected} >= {b"0", b"2", b"4", b"6"}
    broker.flush()
    committed = direct(spark, store, topic, **{"kafka.isolation.level": "read_committed"})
    assert [bytes(row.value) for row in rows(committed)] == [b"0", b"2", b"4", b"6"]
    producer.abort_transaction(30)


@ON_A_FOLDER
def test_positions_and_filters_work_as_in_the_kafka_source(broker: BrokerProcess, store: Store, spark: Any) -> None:
    """Offsets and times, as the kafka source finds them; filters, whatever Spark's setting for Python sources is."""
    topic = new_topic(broker, CONFLUENT, "direct-positions", 2)
    messages = [Message(None, b"v%d" % i, (), 1_700_000_000_000 + i * 1000) for i in range(100)]
    scenarios.send(broker, CONFLUENT, topic, spread(messages, 2), "zstd", IDEMPOTENT)
    broker.flush()
    for options in (
        {"startingOffsets": f'{{"{topic}":{{"0":7,"1":-2}}}}', "endingOffsets": f'{{"{topic}":{{"0":-1,"1":9}}}}'},
        {"startingTimestamp": "1700000020000", "endingTimestamp": "1700000060000"},
        {"startingOffsetsByTimestamp": f'{{"{topic}":{{"0":1700000050000,"1":0}}}}'},
        {"assign": f'{{"{topic}":[1]}}', "endingOffsets": f'{{"{topic}":{{"1":20}}}}'},
        {"subscribePattern": f"{topic}|{topic}.+", "minPartitions": "4"},
    ):
        found = rows(direct(spark, store, topic, **options))
        assert found == rows(by_kafka(spark, broker, topic, **options))
        assert found
    wanted = "partition = 1 and offset >= 10 and timestamp < timestamp'2023-11-14 22:14:00Z'"
    expected = rows(by_kafka(spark, broker, topic).where(wanted))
    assert expected
    for setting in ("true", "false"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", setting)
        assert rows(direct(spark, store, topic).where(wanted)) == expected


@ON_A_FOLDER
def test_segments_in_the_format_of_kafscale_are_read(broker: BrokerProcess, store: Store, spark: Any) -> None:
    """A topic that keeps its objects in another format, by tasks that begin within an object."""
    topic = new_topic(broker, CONFLUENT, "direct-segments", 2, **{"kbroker.object.format": "kfs"})
    for number, codec in enumerate(CODECS):
        scenarios.send(broker, CONFLUENT, topic, spread(generated(60, seed=number), 2), codec, IDEMPOTENT)
    broker.flush()
    objects = Path(place(store)["object.store"].removeprefix("file:"))
    assert list(objects.rglob(f"*{topic}*/**/*.kfs"))
    found = rows(direct(spark, store, topic, includeHeaders="true", minPartitions="5"))
    assert found == rows(by_kafka(spark, broker, topic, includeHeaders="true"))
    assert len(found) == 60 * len(CODECS)


@ON_A_FOLDER
def test_a_stream_continues_from_its_checkpoint(
    broker: BrokerProcess, store: Store, spark: Any, tmp_path: Path
) -> None:
    """Two runs with data between them, with and without a limit: each row once."""
    topic = new_topic(broker, CONFLUENT, "direct-stream", 2)
    total = 0

    def run(**trigger: Any) -> list[int]:
        """A run over all there is; how many rows each micro-batch had."""
        limit = {} if "availableNow" in trigger else {"maxOffsetsPerTrigger": "40"}
        options = {**place(store), "subscribe": topic, "startingOffsets": "earliest", **limit}
        table = spark.readStream.format("kbroker").options(**options).load().select("partition", "offset")
        query = (
            table.writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(**trigger)
            .start()
        )
        try:
            if limit:
                query.processAllAvailable()
            else:
                assert query.awaitTermination(60)
            return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
        finally:
            query.stop()

    for seed, trigger in enumerate(({"processingTime": "0 seconds"}, {"availableNow": True})):
        scenarios.send(broker, CONFLUENT, topic, spread(generated(100, seed=seed), 2), "lz4", IDEMPOTENT)
        broker.flush()
        sizes = run(**trigger)
        total += 100
        assert sum(sizes) == 100
        assert max(sizes) <= 42 or "availableNow" in trigger
        read = sorted((row.partition, row.offset) for row in spark.read.parquet(str(tmp_path / "out")).collect())
        assert read == [(partition, offset) for partition in (0, 1) for offset in range(total // 2)]


def failure(table: Callable[[], Any]) -> str:
    """The error message of a query that fails."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        table().collect()
    return str(caught.value)


def plan_of(table: Any) -> str:
    return table._jdf.queryExecution().executedPlan().toString()


@pytest.mark.slow
@pytest.mark.parametrize("store", [pytest.param("s3", marks=pytest.mark.s3)], indirect=True)
def test_missing_permissions_fail_the_query_or_the_task(
    broker: BrokerProcess, store: Store, spark: Any, s3: S3Server
) -> None:
    """Listing refused: the query does not start. Objects refused: the task fails, and names the object."""
    topic = new_topic(broker, CONFLUENT, "direct-denied", 1)
    scenarios.send(broker, CONFLUENT, topic, {0: generated(50, seed=1)}, "none", IDEMPOTENT)
    broker.flush()
    for denied in ("list-type", ".pack"):
        with refusing_proxy(s3.endpoint, lambda path, denied=denied: denied in path) as endpoint:
            for going_on in ("true", "false"):  # a refused request is not data loss
                options = {"s3.endpoint": endpoint, "failOnDataLoss": going_on}
                said = failure(lambda options=options: direct(spark, store, topic, **options))
                assert "StoreDenied" in said
                assert "AccessDenied" in said
                assert denied != ".pack" or re.search(r"_packs/\d+-\d+\.pack", said), said


@IN_A_BUCKET_WHEN_SLOW
def test_an_export_has_the_rows_that_were_sent(
    broker: BrokerProcess, store: Store, spark: Any, tmp_path: Path, s3: Any
) -> None:
    """Every codec, nulls and headers; with the broker stopped; into a folder or a bucket; read by plain Spark."""
    topic = new_topic(broker, CONFLUENT, "export", 4)  # partition 3 stays empty
    total: Sent = {}
    destination = f"{store.options[1]}-exported" if store.kind == "s3" else str(tmp_path / "out")
    arguments = (topic, destination, "--partition-by", "day", "--split-bytes", "8000", *spark_export_job.WITH_HEADERS)
    for round_ in range(2):
        for number, codec in enumerate(CODECS):
            sent = spread(generated(40, seed=10 * round_ + number), 3)
            scenarios.send(broker, CONFLUENT, topic, sent, codec, IDEMPOTENT)
            scenarios.add(total, sent)
        broker.flush()
        if round_:
            assert broker.stop() == 0
        try:
            summary = spark_export_job.export(store, *arguments)
        finally:
            if round_:
                broker.start()
        assert (summary["export"], summary["records"]) == (round_ + 1, 40 * len(CODECS))
    assert spark_export_job.export(store, *arguments)["export"] is None
    folder = tmp_path / "out"
    if store.kind == "s3":
        folder = s3.folder / destination.removeprefix("s3://")  # where versitygw keeps its objects
    assert spark_export_job.as_sent(spark_export_job.read_parquet(folder)) == total
    rows = [row.asDict(recursive=True) for row in spark.read.parquet(str(folder)).collect()]
    assert spark_export_job.as_sent(rows) == total
    assert {str(row["day"]) for row in rows} == {str(row["timestamp"].date()) for row in rows}
    assert all(row["topic"] == topic for row in rows)


@ON_A_FOLDER
def test_an_export_of_json_has_the_types_of_its_ddl_schema(
    broker: BrokerProcess, store: Store, spark: Any, tmp_path: Path
) -> None:
    """A Spark DDL string; the types are what Spark makes of it; a bad record is named."""
    topic = new_topic(broker, CONFLUENT, "export-json", 1)
    values = [b'{"id": %d, "tags": ["a"], "at": "2026-01-02T03:04:05Z"}' % i for i in range(20)] + [b"{bad"]
    messages = [Message(None, value, (), 1_700_000_000_000) for value in values]
    scenarios.send(broker, CONFLUENT, topic, {0: messages}, "none", IDEMPOTENT)
    broker.flush()
    schema = tmp_path / "schema.ddl"
    schema.write_text("id BIGINT, tags ARRAY<STRING>, at TIMESTAMP, missing STRUCT<d: DATE>\n")
    given = (topic, str(tmp_path / "out"), "--values", "json", "--schema", str(schema), "--flatten")
    found = spark_export_job.export(store, *given, "--bad-records", "column")
    assert (found["records"], found["bad_records"]) == (21, 1)
    table = spark.read.parquet(str(tmp_path / "out"))
    types = dict(table.dtypes)
    assert (types["id"], types["tags"], types["at"]) == ("bigint", "array<string>", "timestamp")
    assert types["missing"] == "struct<d:date>"
    assert [row.id for row in table.where("bad_reason is null").orderBy("id").collect()] == list(range(20))
    assert [bytes(row.bad_value) for row in table.where("bad_reason is not null").collect()] == [b"{bad"]


@ON_A_FOLDER
def test_an_export_leaves_aborted_records_out(broker: BrokerProcess, store: Store, spark: Any, tmp_path: Path) -> None:
    """Aborted records are left out; what is open waits for the next export."""
    from confluent_kafka import Producer

    topic = new_topic(broker, CONFLUENT, "export-transactions", 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)

    def transaction(value: bytes) -> None:
        producer.begin_transaction()
        producer.produce(topic, value=value, partition=0)
        producer.flush(30)

    def exported() -> list[bytes]:
        broker.flush()
        spark_export_job.export(store, topic, str(tmp_path))
        return sorted(row["value"] for row in spark_export_job.read_parquet(tmp_path))

    transaction(b"1")
    producer.commit_transaction(30)
    transaction(b"aborted")
    producer.abort_transaction(30)
    transaction(b"2")
    assert exported() == [b"1"]
    producer.commit_transaction(30)
    assert exported() == [b"1", b"2"]


@ON_A_FOLDER
def test_errors_of_an_export_are_one_line(
    broker: BrokerProcess, store: Store, spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    topic = new_topic(broker, CONFLUENT, "export-errors", 1)
    scenarios.send(broker, CONFLUENT, topic, {0: generated(50, seed=1)}, "none", IDEMPOTENT)
    broker.flush()
    out = str(tmp_path / "out")
    code, line = spark_export_job.error_of(store, capfd, "nix", out)
    assert (code, "no topic nix in cluster" in line) == (1, True), line
    schema = tmp_path / "schema"
    schema.write_text("id BIGINTT")
    code, line = spark_export_job.error_of(store, capfd, topic, out, "--values", "json", "--schema", str(schema))
    assert (code, "BIGINTT" in line) == (2, True), line
    schema.write_text("id BIGINT")
    code, line = spark_export_job.error_of(store, capfd, topic, out, "--values", "json", "--schema", str(schema))
    assert (code, f"kbroker: {topic}-0 offset 0: the value is not JSON" in line) == (1, True), line
    assert spark_export_job.read_parquet(tmp_path / "out") == []
    spark_export_job.export(store, topic, out)
    code, line = spark_export_job.error_of(store, capfd, topic, out, "--values", "json", "--schema", str(schema))
    assert (code, "values was raw and is json" in line) == (2, True), line
    closed = tmp_path / "closed"
    closed.write_text("a file")
    code, line = spark_export_job.error_of(store, capfd, topic, str(closed))
    assert (code, str(closed) in line) == (1, True), line


# Last: damages and deletes objects.


@ON_A_FOLDER
def test_errors_say_what_is_wrong(broker: BrokerProcess, store: Store, spark: Any, tmp_path: Path) -> None:
    """Wrong options, missing topics and stores, damaged objects and deleted objects."""
    topic = new_topic(broker, CONFLUENT, "direct-errors", 1)
    scenarios.send(broker, CONFLUENT, topic, {0: generated(50, seed=1)}, "none", IDEMPOTENT)
    broker.flush()

    def message(**options: str) -> str:
        return failure(lambda: direct(spark, store, topic, **options))

    assert "no option 'startoffsets'; did you mean 'startingoffsets'" in message(startOffsets="earliest")
    assert "no topic nix in cluster" in message(subscribe="nix")
    assert "starting offset can't be latest" in message(startingOffsets="latest")
    assert "does not exist" in message(**{"object.store": f"file:{tmp_path}/nix"})
    objects = Path(place(store)["object.store"].removeprefix("file:"))
    packs = sorted(objects.rglob("*.pack"))
    whole = {path: path.read_bytes() for path in packs}
    for path, data in whole.items():  # the same object to the store: size, and with it the ETag, stay
        times = path.stat()
        path.write_bytes(data[:60] + bytes(byte ^ 1 for byte in data[60:]))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    for going_on in ("true", "false"):  # damage is not data loss
        said = message(failOnDataLoss=going_on)
        assert "CorruptionError" in said
        assert re.search(r"_packs/\d+-\d+\.pack: ", said), said
    for path in packs:
        path.unlink()
    assert "is in the manifest but not in the store" in message()
    assert rows(direct(spark, store, topic, failOnDataLoss="false")) == []


@ON_A_FOLDER
def test_a_task_names_records_that_were_deleted_after_planning(broker: BrokerProcess, store: Store, spark: Any) -> None:
    """They are deleted by DeleteRecords and from the bucket."""
    topic = new_topic(broker, CONFLUENT, "direct-deleted", 1)
    objects = Path(place(store)["object.store"].removeprefix("file:"))
    before = set(objects.rglob("*.pack"))
    scenarios.send(broker, CONFLUENT, topic, {0: generated(50, seed=1)}, "none", IDEMPOTENT)
    broker.flush()
    first = set(objects.rglob("*.pack")) - before
    scenarios.send(broker, CONFLUENT, topic, {0: generated(30, seed=2)}, "none", IDEMPOTENT)
    broker.flush()
    planned = {going_on: direct(spark, store, topic, failOnDataLoss=going_on) for going_on in ("true", "false")}
    for table in planned.values():
        table._jdf.queryExecution().executedPlan().execute().getNumPartitions()  # plans the tasks
    delete_records(broker, topic, 50)
    for path in first:
        path.unlink(missing_ok=True)
    assert re.search(rf"offsets 0 to 49 of {topic}-0, in \S*\.pack, were deleted", failure(lambda: planned["true"]))
    assert [row.offset for row in rows(planned["false"])] == list(range(50, 80))


def delete_records(broker: BrokerProcess, topic: str, offset: int) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for future in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        future.result(30)
    broker.flush()


@ON_A_FOLDER
def test_a_copied_bucket_is_read(broker: BrokerProcess, store: Store, spark: Any, tmp_path: Path) -> None:
    """The same objects with other ETags: a folder's hold the time of the last change, which a copy need not keep."""
    topic = new_topic(broker, CONFLUENT, "direct-copied", 2)
    sent = spread(generated(60, seed=9), 2)
    scenarios.send(broker, CONFLUENT, topic, sent, "zstd", IDEMPOTENT)
    broker.flush()
    original = Path(place(store)["object.store"].removeprefix("file:"))
    shutil.copytree(original, tmp_path / "copy", copy_function=shutil.copyfile)
    copied = Store("folder", ("--object-store", f"file:{tmp_path / 'copy'}"))
    found = rows(direct(spark, copied, topic, includeHeaders="true"))
    assert as_sent(found) == sent
    assert found == rows(direct(spark, store, topic, includeHeaders="true"))
    for path in (tmp_path / "copy").rglob("*.pack"):
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 1
        path.write_bytes(data)
    with pytest.raises(Exception, match="the store's is another object"):
        direct(spark, copied, topic).collect()
