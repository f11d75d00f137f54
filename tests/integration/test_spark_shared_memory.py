"""Reads in which Spark's JVM takes columns from memory that the Python worker shares."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker._fast.records.records import build_batch
from kbroker.pipeline import register, spark_source
from kbroker.pipeline.shared_memory import PLACES
from kbroker.pipeline.split_reader import BYTES_MAX
from kbroker.storage.stores.local_store import LocalStore
from tests.unit.pipeline.cluster_bucket import ClusterBucket
from tests.unit.storage.read.object_bucket import NOW

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

VALUE_BYTES = 4096
# What a task runs, with a process that its reader does not find.
ELSEWHERE = """
def _rows(options, partition, s3):
    from types import SimpleNamespace
    memory = load("shared_memory")
    real = memory.os
    memory.os = SimpleNamespace(
        getpid=lambda: 1 << 30, memfd_create=real.memfd_create, ftruncate=real.ftruncate, close=real.close
    )
    send_bytes, asked = memory.SharedMemory._send_bytes, []
    memory.SharedMemory._send_bytes = lambda self: (asked.append(1), send_bytes(self))
    try:
        rows = load("split_reader", s3).read_split(options, pickle.loads(partition.value))
        *_, port, secret = partition.reader.split()
        yield from memory.share(rows, int(port), secret)
    finally:
        memory.os = real
        memory.SharedMemory._send_bytes = send_bytes
    assert asked == [1]
"""
RECORDS = 3 * PLACES * BYTES_MAX // VALUE_BYTES  # of a partition, so that each place is used several times
PER_BATCH = 128


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One partition, which one task reads. The first byte of a value is the offset modulo 251."""
    folder = tmp_path_factory.mktemp("shared") / "objects"
    bucket = ClusterBucket(LocalStore(folder, create=True))
    bucket.topic("shared", 1)
    data = b"".join(
        build_batch(
            [(b"%d" % n, bytes([n % 251]) * VALUE_BYTES, NOW, []) for n in range(base, base + PER_BATCH)],
            base_offset=base,
        )
        for base in range(0, RECORDS, PER_BATCH)
    )
    bucket.klix("shared", 0, data)
    return {"object.store": f"file:{folder}", "subscribe": "shared", "splitBytes": str(len(data))}


@pytest.fixture(scope="module")
def table(spark: Any, options: dict[str, str]) -> Any:
    return spark.read.format("kbroker").options(**options).load()


def test_a_query_reads_columns_and_finds_each_value_at_its_offset(table: Any) -> None:
    assert "ColumnarToRow" in table._jdf.queryExecution().executedPlan().toString()
    check(table)


def check(table: Any) -> None:
    wanted = "lpad(hex(pmod(offset, 251)), 2, '0')"
    right = f"length(value) = {VALUE_BYTES} and repeat({wanted}, {VALUE_BYTES}) = hex(value)"
    found = table.where(right).selectExpr("count(*)", "sum(cast(cast(key as string) as long))", "sum(offset)").collect()
    total = RECORDS * (RECORDS - 1) // 2
    assert [tuple(row) for row in found] == [(RECORDS, total, total)]


def test_a_reader_that_cannot_open_the_memory_gets_the_bytes(
    spark: Any, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(spark_source, "_rows", None)
        exec(ELSEWHERE, vars(spark_source))
        register(spark)
        check(spark.read.format("kbroker").options(**options).load())
    register(spark)


def test_two_reads_in_one_task_do_not_mix(table: Any) -> None:
    pairs = table.select("key").rdd.zip(table.select("offset").rdd).map(lambda pair: int(pair[0].key) == pair[1].offset)
    assert pairs.collect() == [True] * RECORDS


def test_a_query_may_stop_before_the_end(table: Any) -> None:
    for _ in range(3):
        assert [row.offset for row in table.select("offset", "value").limit(3).collect()] == [0, 1, 2]
    assert table.where("length(value) > 0").count() == RECORDS
