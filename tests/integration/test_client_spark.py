"""Spark's own Kafka source and sink: batch write and read of small topics, every record counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import scenarios
from broker_process import BrokerProcess
from conftest import IN_A_BUCKET_WHEN_SLOW, ON_A_FOLDER
from scenarios import IDEMPOTENT, new_topic
from test_client_confluent import CLIENT as CONFLUENT
from workload import CODECS, Delivered, Message, Read, Sent, assert_delivered, generated, spread, text

pytestmark = [pytest.mark.feature("Spark"), pytest.mark.spark, pytest.mark.timeout(240)]


def source(spark: Any, broker: BrokerProcess, topic: str, **options: str) -> Any:
    """The topic as a batch table. A lost offset is an error; the waits are short, as they add up."""
    return (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "true")
        .option("kafka.fetch.max.wait.ms", "10")
        .options(**options)
        .load()
    )


def read_all(spark: Any, broker: BrokerProcess, topic: str, **options: str) -> Read:
    """Everything in the topic by Spark."""
    columns = ("partition", "offset", "key", "value", "headers", "cast(timestamp as double) * 1000 as stamp")
    read: Read = {}
    for row in sorted(source(spark, broker, topic, **options).selectExpr(*columns).collect()):
        headers = tuple((header.key, _bytes(header.value)) for header in row.headers or ())
        delivered = Delivered(row.offset, _bytes(row.key), _bytes(row.value), headers, round(row.stamp))
        read.setdefault(row.partition, []).append(delivered)
    return read


def _bytes(data: bytearray | None) -> bytes | None:
    return None if data is None else bytes(data)


@pytest.mark.feature("produce and consume")
@IN_A_BUCKET_WHEN_SLOW
def test_a_batch_query_reads_every_record_once(broker: BrokerProcess, spark: Any) -> None:
    """Data of every codec in objects, log files and memory, read in full, and in more splits than partitions."""
    topic = new_topic(broker, CONFLUENT, "spark-read")
    total: Sent = {}
    for number, codec in enumerate(CODECS):
        sent = spread(generated(200, seed=number), CONFLUENT.partitions)
        scenarios.send(broker, CONFLUENT, topic, sent, codec, IDEMPOTENT)
        scenarios.add(total, sent)
        if number == 1:
            assert broker.stop() == 0
            scenarios.lose_disk(broker)
            broker.start()
        elif number == 3:
            broker.kill()
            broker.start()
    assert_delivered(total, read_all(spark, broker, topic))
    assert_delivered(total, read_all(spark, broker, topic, minPartitions="8"))


@pytest.mark.feature("produce and consume")
@ON_A_FOLDER
def test_another_client_reads_what_the_sink_wrote(broker: BrokerProcess, spark: Any) -> None:
    """Text with headers."""
    topic = new_topic(broker, CONFLUENT, "spark-write")
    lines = text()[:2000]
    rows = [(number % 3, line.key, line.value) for number, line in enumerate(lines)]
    frame = spark.createDataFrame(rows, "partition int, key binary, value binary").coalesce(1)
    headers = "array(named_struct('key', 'by', 'value', cast('spark' as binary))) as headers"
    (
        frame.selectExpr("partition", "key", "value", headers)
        .write.format("kafka")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("topic", topic)
        .option("includeHeaders", "true")
        .option("kafka.compression.type", "zstd")
        .save()
    )
    sent = spread([Message(line.key, line.value, (("by", b"spark"),)) for line in lines], 3)
    assert_delivered(sent, CONFLUENT.read_assigned(broker.bootstrap, topic, {i: len(sent[i]) for i in range(3)}))
    assert_delivered(sent, read_all(spark, broker, topic))


@ON_A_FOLDER
def test_a_query_starts_at_a_time(broker: BrokerProcess, spark: Any) -> None:
    """startingOffsetsByTimestamp finds records in objects and in memory."""
    topic = new_topic(broker, CONFLUENT, "spark-time", 1)
    messages = [Message(None, b"v%d" % i, (), 1_700_000_000_000 + i * 1000) for i in range(100)]
    scenarios.send(broker, CONFLUENT, topic, {0: messages[:50]}, "none", IDEMPOTENT)
    broker.flush()
    scenarios.send(broker, CONFLUENT, topic, {0: messages[50:]}, "none", IDEMPOTENT)
    for first in (20, 80):
        start = f'{{"{topic}": {{"0": {messages[first].timestamp_ms}}}}}'
        read = source(spark, broker, topic, startingOffsetsByTimestamp=start).select("offset").collect()
        assert sorted(row.offset for row in read) == list(range(first, 100))


@ON_A_FOLDER
def test_a_stream_copies_each_record_once(broker: BrokerProcess, spark: Any, tmp_path: Path) -> None:
    """Source and sink of Structured Streaming: in small micro-batches, and with a checkpoint between two runs."""
    source, target = (new_topic(broker, CONFLUENT, what, 2) for what in ("spark-from", "spark-to"))
    options = {"kafka.bootstrap.servers": broker.bootstrap, "kafka.fetch.max.wait.ms": "10"}
    total: Sent = {}
    for seed in range(2):
        sent = spread([Message(b"k", b"%d-%d" % (seed, number)) for number in range(100)], 2)
        scenarios.send(broker, CONFLUENT, source, sent, "zstd", IDEMPOTENT)
        scenarios.add(total, sent)
        if seed == 0:
            broker.flush()
        query = (
            spark.readStream.format("kafka")
            .options(**options, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="40")
            .load()
            .select("partition", "key", "value")
            .writeStream.format("kafka")
            .options(**options, topic=target, checkpointLocation=str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        assert sum(progress.numInputRows for progress in query.recentProgress) == 100
    assert_delivered(total, read_all(spark, broker, target))
