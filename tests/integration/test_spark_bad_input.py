"""Streams of real Spark whose topic, data or checkpoint is not what it was: an error in clear words, or every row."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import scenarios
from broker_process import BrokerProcess
from conftest import ON_A_FOLDER, Store
from scenarios import IDEMPOTENT, new_topic
from test_client_confluent import CLIENT as CONFLUENT
from test_spark_direct import delete_records, place
from until import until
from workload import Message

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240), ON_A_FOLDER]
_serial = itertools.count()


class Stream:
    """A topic, and a query of it into a table in memory, with a checkpoint that outlives the query."""

    def __init__(self, spark: Any, broker: BrokerProcess, store: Store, checkpoint: Path, partitions: int = 1) -> None:
        self.broker = broker
        self.topic = new_topic(broker, CONFLUENT, "bad-input", partitions)
        self.checkpoint = checkpoint
        self._spark, self._store = spark, store
        self._query: Any = None
        self._rows: list[str] = []
        self._offered = itertools.count()

    def send(self, count: int) -> list[str]:
        """Sends and flushes records; their values."""
        values = [f"{next(self._offered)}" for _ in range(count)]
        messages = [Message(None, value.encode(), (), None) for value in values]
        scenarios.send(self.broker, CONFLUENT, self.topic, {0: messages}, "none", IDEMPOTENT)
        self.broker.flush()
        return values

    def start(self, **options: str) -> None:
        given = {**place(self._store), "subscribe": self.topic, "startingOffsets": "earliest", **options}
        table = self._spark.readStream.format("kbroker").options(**given).load()

        def take(batch: Any, number: int) -> None:
            self._rows += [bytes(row.value).decode() for row in batch.orderBy("offset").collect()]

        writer = table.select("offset", "value").writeStream.foreachBatch(take)
        self._query = writer.option("checkpointLocation", str(self.checkpoint)).start()

    def rows(self) -> list[str]:
        """The values of everything that the query has read, once it has read all there is."""
        self._query.processAllAvailable()
        return self._rows

    def failure(self) -> str:
        """Why the query ends."""
        with pytest.raises(Exception) as caught:  # noqa: PT011
            self._query.processAllAvailable()
        return str(caught.value)

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()

    def recreate(self) -> None:
        """Deletes the topic and creates it again."""
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap, "log_level": 0})
        admin.delete_topics([self.topic])[self.topic].result(30)
        until(lambda: self.topic not in admin.list_topics(timeout=10).topics, "deletion")
        admin.create_topics([NewTopic(self.topic, 1, 1)])[self.topic].result(30)


@pytest.fixture
def new_stream(spark: Any, broker: BrokerProcess, store: Store, tmp_path: Path) -> Iterator[Callable[[], Stream]]:
    made: list[Stream] = []

    def make() -> Stream:
        made.append(Stream(spark, broker, store, tmp_path / f"checkpoint-{next(_serial)}"))
        return made[-1]

    yield make
    for stream in made:
        stream.stop()


def test_a_topic_recreated_under_a_stream_is_an_error_or_read_from_its_beginning(
    new_stream: Callable[[], Stream],
) -> None:
    """Also where it has more records by then than the query had read of the one before."""
    for fail in ("true", "false"):
        stream = new_stream()
        before = stream.send(10)
        stream.start(failOnDataLoss=fail)
        assert stream.rows() == before
        stream.recreate()
        after = stream.send(25)
        if fail == "true":  # the query may have looked in between
            seen = rf"topic {stream.topic} was deleted and recreated|{stream.topic}-0 are gone"
            assert re.search(seen, stream.failure())
        else:
            assert stream.rows() == before + after


def test_a_topic_recreated_while_the_query_is_down_is_an_error_or_read_from_its_beginning(
    new_stream: Callable[[], Stream],
) -> None:
    stream = new_stream()
    before = stream.send(10)
    stream.start()
    assert stream.rows() == before
    stream.stop()
    stream.recreate()
    after = stream.send(25)
    stream.start()
    assert f"topic {stream.topic} was deleted and recreated" in stream.failure()
    stream.start(failOnDataLoss="false")
    assert stream.rows() == before + after


def test_records_deleted_under_a_stream_are_an_error_or_left_out(new_stream: Callable[[], Stream]) -> None:
    for fail in ("true", "false"):
        stream = new_stream()
        before = stream.send(10)
        stream.start(failOnDataLoss=fail)
        assert stream.rows() == before
        stream.stop()
        after = stream.send(20)
        delete_records(stream.broker, stream.topic, 15)
        stream.start(failOnDataLoss=fail)
        if fail == "true":
            assert f"offsets 10 to 14 of {stream.topic}-0 no longer exist" in stream.failure()
        else:
            assert stream.rows() == before + after[5:]


def test_a_checkpoint_of_something_else_is_an_error(new_stream: Callable[[], Stream]) -> None:
    """Of another topic, and with an offset that is none."""
    one, other = new_stream(), new_stream()
    for stream in (one, other):
        stream.send(10)
    one.start()
    assert len(one.rows()) == 10
    one.stop()
    other.checkpoint = one.checkpoint
    other.start()
    assert f"the checkpoint is of {one.topic}, which this query does not read" in other.failure()
    assert other._rows == []
    offsets = max(one.checkpoint.glob("offsets/[0-9]*"))
    header, metadata, _ = offsets.read_text().splitlines()
    for rubbish in ("[5]", '{"version": 9}', json.dumps({one.topic: {"0": "x"}}), json.dumps({one.topic: {"0": -5}})):
        offsets.write_text("\n".join((header, metadata, rubbish)))
        offsets.with_name(f".{offsets.name}.crc").unlink(missing_ok=True)
        one.start()
        assert "the checkpoint holds an offset that is not of this source" in one.failure(), rubbish
    offsets.write_bytes(bytes(range(256)))
    one.start()
    assert one.failure()  # Spark's own
    assert len(one._rows) == 10
