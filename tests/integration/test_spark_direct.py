"""format("kbroker") on real Spark: rows against what was sent and against Spark's kafka source."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import scenarios
from broker_process import BrokerProcess
from conftest import ON_A_FOLDER, Store, require
from scenarios import IDEMPOTENT, new_topic
from test_client_confluent import CLIENT as CONFLUENT
from workload import CODECS, Message, Sent, generated, spread

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]
JARS = Path(__file__).parents[2] / ".tools" / "spark"


@pytest.fixture(scope="module")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One session; the workers find the S3 server's credentials in their environment."""
    require(shutil.which("java"), "no java on PATH")
    require(importlib.util.find_spec("pyspark"), "no pyspark: pip install '.[spark]'")
    jars = sorted(JARS.glob("*.jar"))
    require(len(jars) >= 4, "no Spark Kafka jars in .tools/spark: run scripts/fetch_spark_jars.sh")
    import kbroker.pipeline

    patch = pytest.MonkeyPatch()
    patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    for name, value in request.getfixturevalue("s3").environment().items():
        patch.setenv(name, value)
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("kbroker-direct")
        .config("spark.jars", ",".join(map(str, jars)))
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    kbroker.pipeline.register(session)
    yield session
    session.stop()
    patch.undo()
    os.environ.pop("PYSPARK_PYTHON", None)


def place(store: Store) -> dict[str, str]:
    """Options that name the broker's bucket."""
    given = dict(zip(store.options[::2], store.options[1::2], strict=True))
    found = {"object.store": given["--object-store"]}
    if "--s3-endpoint" in given:
        found["s3.endpoint"] = given["--s3-endpoint"]
    return found


def direct(spark: Any, store: Store, topic: str, **options: str) -> Any:
    return spark.read.format("kbroker").options(**place(store), subscribe=topic, **options).load()


def by_kafka(spark: Any, broker: BrokerProcess, topic: str, **options: str) -> Any:
    given = {"kafka.bootstrap.servers": broker.bootstrap, "kafka.fetch.max.wait.ms": "10", "subscribe": topic}
    return spark.read.format("kafka").options(**given, **options).load()


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


def test_batch_read_while_the_broker_runs_and_when_it_is_stopped(
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
def test_transactions(broker: BrokerProcess, store: Store, spark: Any) -> None:
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
def test_positions_and_filters(broker: BrokerProcess, store: Store, spark: Any) -> None:
    """Offsets and times, as the kafka source finds them; filters with Spark's setting on and off."""
    topic = new_topic(broker, CONFLUENT, "direct-positions", 2)
    messages = [Message(None, b"v%d" % i, (), 1_700_000_000_000 + i * 1000) for i in range(100)]
    scenarios.send(broker, CONFLUENT, topic, spread(messages, 2), "zstd", IDEMPOTENT)
    broker.flush()
    for options in (
        {"startingOffsets": f'{{"{topic}":{{"0":7,"1":-2}}}}', "endingOffsets": f'{{"{topic}":{{"0":-1,"1":9}}}}'},
        {"startingTimestamp": "1700000020000", "endingTimestamp": "1700000060000"},
        {"startingOffsetsByTimestamp": f'{{"{topic}":{{"0":1700000050000,"1":0}}}}'},
    ):
        assert rows(direct(spark, store, topic, **options)) == rows(by_kafka(spark, broker, topic, **options))
    wanted = "partition = 1 and offset >= 10 and timestamp < timestamp'2023-11-14 22:14:00Z'"
    expected = rows(by_kafka(spark, broker, topic).where(wanted))
    assert expected
    for setting in ("true", "false"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", setting)
        assert rows(direct(spark, store, topic).where(wanted)) == expected


@ON_A_FOLDER
def test_stream_restarts_from_its_checkpoint(broker: BrokerProcess, store: Store, spark: Any, tmp_path: Path) -> None:
    """Two runs with data between them, limited and in one go: each row once."""
    topic = new_topic(broker, CONFLUENT, "direct-stream", 2)
    total = 0

    def run(**trigger: Any) -> list[int]:
        """A run over all there is; how many rows each micro-batch had."""
        limit = {} if "availableNow" in trigger else {"maxOffsetsPerTrigger": "40", "trigger": "processingTime"}
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

    for seed, trigger in enumerate(
        ({"processingTime": "0 seconds"}, {"processingTime": "0 seconds"}, {"availableNow": True})
    ):
        scenarios.send(broker, CONFLUENT, topic, spread(generated(100, seed=seed), 2), "lz4", IDEMPOTENT)
        broker.flush()
        sizes = run(**trigger)
        total += 100
        assert sum(sizes) == 100
        assert max(sizes) <= 42 or "availableNow" in trigger
        read = sorted((row.partition, row.offset) for row in spark.read.parquet(str(tmp_path / "out")).collect())
        assert read == [(partition, offset) for partition in (0, 1) for offset in range(total // 2)]


@ON_A_FOLDER
def test_errors_say_what_is_wrong(broker: BrokerProcess, store: Store, spark: Any, tmp_path: Path) -> None:
    """Wrong options, missing topics and stores, and an object that is gone."""
    topic = new_topic(broker, CONFLUENT, "direct-errors", 1)
    scenarios.send(broker, CONFLUENT, topic, {0: generated(50, seed=1)}, "none", IDEMPOTENT)
    broker.flush()

    def message(**options: str) -> str:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            spark.read.format("kbroker").options(**{**place(store), "subscribe": topic, **options}).load().collect()
        return str(caught.value)

    assert "no option 'startoffsets'; did you mean 'startingoffsets'" in message(startOffsets="earliest")
    assert "no topic nix in cluster" in message(subscribe="nix")
    assert "starting offset can't be latest" in message(startingOffsets="latest")
    assert "does not exist" in message(**{"object.store": f"file:{tmp_path}/nix"})
    objects = Path(place(store)["object.store"].removeprefix("file:"))
    for path in objects.rglob("*.pack"):
        path.unlink()
    for path in objects.rglob("*.obj"):
        path.unlink()
    assert "is in the manifest but not in the store" in message()
    assert rows(direct(spark, store, topic, failOnDataLoss="false")) == []
