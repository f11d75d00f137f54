"""Spark's own interfaces around format("kbroker"): filters and columns that decide what is read, plans, sessions."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import scenarios
from broker_process import BrokerProcess
from conftest import SMALL, Store, folder_store
from scenarios import IDEMPOTENT, new_topic
from test_client_confluent import CLIENT as CONFLUENT
from test_spark_direct import direct, failure, place, plan_of
from workload import Message

import kbroker.pipeline
from kbroker.pipeline import driver_source
from kbroker.pipeline.column_names import DDL
from kbroker.pipeline.pushdown import ANY, bounds_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

FIRST_MS = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC
PREDICATES = 60  # for each time zone
READS = re.compile(r"Reads: (\d+) objects, (\d+) bytes, at most (\d+) rows; skips (\d+) bytes")
SCAN = re.compile(r"BatchScan kbroker\[(.*?)\]")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return folder_store(tmp_path_factory)


@pytest.fixture(scope="module")
def topic(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """400 records in 3 partitions and 4 objects of each, with times out of order. The broker is gone."""
    process = BrokerProcess(tmp_path_factory.mktemp("broker") / "data", *SMALL, *store.options, environ=store.environ)
    broker = process.start()
    try:
        name = new_topic(broker, CONFLUENT, "pushed", 3)
        chance = random.Random(7)
        for at in range(FIRST_MS, FIRST_MS + 4000, 1000):
            sent = {
                partition: [
                    Message(b"k%d" % (n % 5), b"v%d" % n, (), chance.randint(-300, 300) + at + n * 20)
                    for n in range(50 if partition else 20)
                ]
                for partition in range(3)
            }
            scenarios.send(broker, CONFLUENT, name, sent, "zstd", IDEMPOTENT)
            broker.flush()
        yield name
    finally:
        process.kill()


@pytest.fixture
def table(spark: Any, store: Store, topic: str) -> Any:
    return direct(spark, store, topic)


def reads(table: Any) -> tuple[int, ...]:
    """Objects, bytes, rows, bytes skipped, as explain() shows them."""
    found = READS.search(plan_of(table))
    assert found, plan_of(table)
    return tuple(map(int, found.groups()))


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
def test_random_predicates_find_all_their_rows(spark: Any, table: Any, topic: str, zone: str) -> None:
    """Literals of all kinds, in several time zones: what is pushed allows each row that Spark finds among all rows."""
    chance = random.Random(zone)
    spark.createDataFrame(table.collect(), table.schema).createOrReplaceTempView("all_rows")
    table.createOrReplaceTempView("pushed")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        predicates = [_predicate(chance, topic, 2) for _ in range(PREDICATES)]
        columns = ", ".join(f"({one}) IS TRUE AS p{number}" for number, one in enumerate(predicates))
        position = "partition, offset, CAST(timestamp AS DOUBLE) * 1000"
        rows = spark.sql(f"SELECT {position}, {columns} FROM all_rows").collect()
        bounded = 0
        for number, predicate in enumerate(predicates):
            found = [row[:3] for row in rows if row[3 + number]]
            query = spark.sql(f"SELECT partition, offset FROM pushed WHERE {predicate}")
            bounds = pushed_bounds(query)
            bounded += bool(bounds)
            if found:
                assert bounds is not None, predicate
                assert all(_allowed(bounds, topic, *row) for row in found), predicate
            if number % 20 == 0:
                assert sorted(map(tuple, query.collect())) == sorted(row[:2] for row in found), predicate
        assert bounded > PREDICATES // 2
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def pushed_bounds(query: Any) -> dict[str, Any] | None:
    """What the query's scan is bounded to; None where Spark sees that there is nothing to scan."""
    leaf = query._jdf.queryExecution().optimizedPlan().collectLeaves().head()
    if leaf.nodeName() == "LocalRelation":
        return None
    return bounds_of(leaf.scan().filters())


def _allowed(bounds: dict[str, Any], topic: str, partition: int, offset: int, timestamp_ms: float) -> bool:
    at = round(timestamp_ms)
    return (
        topic in bounds.get("topic", topic)
        and partition in bounds.get("partition", [partition])
        and bounds.get("offset", ANY)[0] <= offset <= bounds.get("offset", ANY)[1]
        and bounds.get("timestamp", ANY)[0] <= at <= bounds.get("timestamp", ANY)[1]
    )


def _predicate(chance: random.Random, topic: str, depth: int) -> str:
    if depth and chance.random() < 0.6:
        joined = f" {chance.choice(['AND', 'AND', 'OR'])} "
        return "(" + joined.join(_predicate(chance, topic, depth - 1) for _ in range(2)) + ")"
    column = chance.choice(["topic", "partition", "offset", "timestamp", "timestamp"])
    values = [_literal(chance, column, topic) for _ in range(3)]
    column = f"`{column}`"
    left, right = (column, values[0]) if chance.random() < 0.8 else (values[0], column)
    return chance.choice(
        [
            *(f"{left} {operator} {right}" for operator in ("=", "<=>", "<", "<=", ">", ">=")),
            f"{column} IN ({', '.join(values)})",
            f"{column} BETWEEN {min(values)} AND {max(values)}",
            f"{column} IS NOT NULL AND NOT {column} < {values[0]}",
        ]
    )


def _literal(chance: random.Random, column: str, topic: str) -> str:
    if column == "topic":
        return chance.choice([f"'{topic}'", "'other'", f"'{topic}x'", "NULL"])
    if column == "timestamp":
        microseconds = (FIRST_MS - 500) * 1000 + chance.randint(0, 5_500_000)
        if chance.random() < 0.5:
            microseconds -= microseconds % 1000
        seconds, rest = divmod(microseconds, 1_000_000)
        text = f"2023-11-14 22:{13 + (20 + seconds - FIRST_MS // 1000) // 60}:"
        text += f"{(20 + seconds - FIRST_MS // 1000) % 60:02}.{rest:06}"
        return chance.choice(
            [
                f"timestamp_micros({microseconds})",
                f"TIMESTAMP'{text}'",
                f"TIMESTAMP'{text}Z'",
                f"TIMESTAMP_NTZ'{text}'",
                f"'{text}'",
                "DATE'2023-11-14'",
            ]
        )
    number = chance.randint(-1, 3 if column == "partition" else 210)
    return chance.choice([str(number), f"{number}L", f"'{number}'", f"{number}.0BD"])


def test_a_plan_shows_what_was_pushed_and_what_is_read(spark: Any, table: Any) -> None:
    objects, total, rows, skipped = reads(table)
    assert rows == table.count() == 480
    assert skipped == 0
    few = table.where("partition = 1 and offset >= 150").select("offset")
    assert "PushedFilters: [" in plan_of(few)
    assert "EqualTo(partition,1)" in plan_of(few)
    assert reads(few)[0] < objects
    assert reads(few)[1] < total
    assert few.count() == 50
    assert reads(table.where("offset > 5 and offset < 3"))[0] == 0


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        (lambda table: table.groupBy().count(), "partition"),
        (lambda table: table.groupBy("partition").agg({"offset": "max"}), "partition,offset"),
        (lambda table: table.where("partition = 1 and offset > 5").select("value", "offset"), "value,partition,offset"),
        (lambda table: table.where("timestamp is not null").select("key"), "key,timestamp"),
        (
            lambda table: table.selectExpr("offset", "key").join(table.selectExpr("offset", "value"), "offset"),
            "offset,key,value",
        ),
        (lambda table: table, ",".join(name for name in DDL if name != "headers")),
    ],
)
def test_only_the_columns_that_a_query_uses_are_read(spark: Any, table: Any, query: Any, columns: str) -> None:
    found = query(table)
    scanned = set(re.findall(r"(\w+)#", " ".join(SCAN.findall(plan_of(found)))))
    assert scanned == set(columns.split(","))
    rows = spark.createDataFrame(table.collect(), table.schema)
    assert sorted(map(repr, found.collect())) == sorted(map(repr, query(rows).collect()))


def test_every_way_into_spark_finds_the_source(spark: Any, store: Store, topic: str) -> None:
    """SQL, other sessions of the process, threads, another letter case, and a second registration."""
    options = {**place(store), "subscribe": topic}
    listed = ", ".join(f"'{name}' '{value}'" for name, value in options.items())
    counted = []

    def count(session: Any, name: str = "kbroker") -> None:
        table = session.read.format(name).options(**options).load().where("partition = 1 and offset < 7")
        assert "EqualTo(partition,1)" in plan_of(table)
        counted.append(table.count())

    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW seen USING kbroker OPTIONS ({listed})")
    assert spark.sql("SELECT * FROM seen WHERE partition = 1 AND offset < 7").count() == 7
    count(spark, "KBroker")
    count(spark.newSession())
    kbroker.pipeline.register(spark)
    kbroker.pipeline.register(spark.newSession())
    count(spark)
    threads = [threading.Thread(target=count, args=(session,)) for session in (spark, spark.newSession())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted == [7] * 5


def test_a_plan_that_fails_says_why_however_it_is_looked_at(spark: Any, store: Store, topic: str) -> None:
    gone = direct(spark, store, topic, endingOffsets=f'{{"{topic}":{{"0":999,"1":-1,"2":-1}}}}')
    joined = gone.join(gone, "offset")
    for query in (gone, joined, gone.where("offset > 3").select("offset")):
        assert f"reads {topic}-0 up to offset 999, but it ends at 80" in failure(lambda query=query: query)


def test_every_java_source_is_compiled(spark: Any) -> None:
    loader = spark.sparkContext._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for path in driver_source.JAVA.glob("*.java"):
        assert loader.loadClass(f"kbroker.spark.{path.stem}").getSimpleName() == path.stem
