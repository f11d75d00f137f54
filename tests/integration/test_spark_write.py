"""df.write and df.writeStream of format("kbroker") on real Spark, beside Spark's kafka sink."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broker_process import BrokerProcess
from conftest import ON_A_FOLDER
from scenarios import new_topic
from sink_jobs import open_transactions, read_committed, values_of
from test_client_confluent import CLIENT as CONFLUENT

from kbroker.pipeline.sink.decisions import last_decision
from kbroker.pipeline.sink.options import parse_options
from kbroker.pipeline.sink.transactions import connect

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240), ON_A_FOLDER]

ROWS = """
    select cast(id as string) key, concat('value-', id) value, cast(null as int) partition, cast(null as
    array<struct<key: string, value: binary>>) headers, id extra from range(300)
    union all select null, 'no key', 1, array(), 0
    union all select '', '', null, array(named_struct('key', 'h', 'value', cast('1' as binary)),
                                         named_struct('key', 'h', 'value', cast(null as binary))), 0
    union all select 'é', null, 2, null, 0
"""
TRANSACTIONAL = {"kbroker.transactional": "true"}


def options(broker: BrokerProcess, topic: str, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic, **more}


def failure(action: Callable[[], Any]) -> str:
    """What Spark says, on one line."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  each of Spark's has a class of its own
        action()
    return " ".join(str(caught.value).split())


def test_both_sinks_write_the_same_records(broker: BrokerProcess, spark: Any) -> None:
    table = spark.sql(ROWS)
    found = []
    for name in ("kafka", "kbroker"):
        topic = new_topic(broker, CONFLUENT, f"write-{name}", 3)
        table.write.format(name).options(**options(broker, topic)).mode("append").save()
        found.append(sorted(read_committed(broker.bootstrap, topic, 3), key=repr))
    assert found[0] == found[1]
    assert len(found[1]) == 303


def test_rows_go_to_the_topics_of_a_column(broker: BrokerProcess, spark: Any) -> None:
    topics = [new_topic(broker, CONFLUENT, "write-column", 1) for _ in range(2)]
    table = spark.range(10).selectExpr(f"if(id < 4, '{topics[0]}', '{topics[1]}') topic", "cast(id as string) value")
    given = {"kafka.bootstrap.servers": broker.bootstrap}
    table.write.format("kbroker").options(**given, **TRANSACTIONAL).mode("append").save()
    assert [len(values_of(broker.bootstrap, topic)) for topic in topics] == [4, 6]


REFUSED: list[tuple[list[str], dict[str, str | None]]] = [
    (["cast(id as string) key"], {}),
    (["id value"], {}),
    (["'a' value", "id partition"], {}),
    (["'a' value"], {"topic": None}),
    (["'a' value", "id topic"], {"topic": None}),
    (["'a' value"], {"kafka.key.serializer": "x"}),
]


def test_wrong_columns_and_options_are_refused_in_the_kafka_sinks_words(broker: BrokerProcess, spark: Any) -> None:
    for columns, given in REFUSED:
        chosen = {name: value for name, value in {**options(broker, "any"), **given}.items() if value is not None}
        said = []
        for name in ("kafka", "kbroker"):
            writer = spark.range(2).selectExpr(*columns).write.format(name).options(**chosen).mode("append")
            said.append(failure(writer.save))
        words = re.sub(r"^\[\w+\] |^.*requirement failed: ", "", said[0]).split(" SQLSTATE")[0]
        assert words in said[1]


def test_save_modes_but_append_are_refused(broker: BrokerProcess, spark: Any) -> None:
    table = spark.range(1).selectExpr("'a' value")
    for mode in ("overwrite", "ignore", "errorifexists"):
        writer = table.write.format("kbroker").options(**options(broker, "any")).mode(mode)
        said = failure(writer.save)
        assert re.search("Save mode Overwrite not allowed for kbroker|cannot be written in the .* mode", said)


def test_a_table_in_sql_takes_rows(broker: BrokerProcess, spark: Any) -> None:
    topic = new_topic(broker, CONFLUENT, "write-sql", 1)
    spark.sql("CREATE TABLE written (key STRING, value STRING) USING kbroker")
    given = ", ".join(f"'{name}' = '{value}'" for name, value in options(broker, topic).items())
    try:
        spark.sql(f"INSERT INTO written WITH ({given}) VALUES ('k', 'v')")
    finally:
        spark.sql("DROP TABLE written")
    assert values_of(broker.bootstrap, topic) == ["v"]


def test_a_job_in_transactions_that_fails_leaves_nothing(broker: BrokerProcess, spark: Any) -> None:
    topic = new_topic(broker, CONFLUENT, "write-failed", 1)
    table = spark.range(0, 1000, 1, 2).selectExpr("if(id < 900, cast(id as string), raise_error('late')) value")
    writer = table.write.format("kbroker").options(**options(broker, topic, **TRANSACTIONAL)).mode("append")
    assert "late" in failure(writer.save)
    assert values_of(broker.bootstrap, topic) == []
    assert open_transactions(broker.bootstrap) == []


@pytest.mark.parametrize("more", [{}, TRANSACTIONAL], ids=["plain", "transactional"])
def test_a_stream_goes_on_from_its_checkpoint(
    broker: BrokerProcess, spark: Any, tmp_path: Path, more: dict[str, str]
) -> None:
    topic = new_topic(broker, CONFLUENT, "write-stream", 2)
    files = tmp_path / "files"
    query_id = ""
    for number in range(3):
        lines = [f"{number}-{line}" for line in range(20)]
        files.mkdir(exist_ok=True)
        (files / f"{number}.txt").write_text("\n".join(lines))
        query = (
            spark.readStream.format("text").load(str(files))
            .selectExpr("value key", "value")
            .writeStream.format("kbroker")
            .options(**options(broker, topic, **more), checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )  # fmt: skip
        query.awaitTermination()
        query_id = query.id
    assert values_of(broker.bootstrap, topic, 2) == sorted(f"{n}-{line}" for n in range(3) for line in range(20))
    if more:
        given = parse_options(options(broker, topic, **more), streaming=True)
        client = connect(given)
        assert last_decision(client, query_id).epoch == 2
        client.close()
