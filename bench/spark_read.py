"""Spark's kafka source against format("kbroker"), same broker, same data, in alternation.

    python -m bench.spark_read [--records N] [--rounds N] [--masters local[1],local[2]] [--codecs none,zstd]
                              [--partitions N] [--queries count,max(timestamp)] [--only-one-partition]

Prints seconds per query and the ratios to the kafka source, at its defaults and at its best settings; then how much
faster one partition is read with more cores. "all columns" has column pruning switched off; "ready-made batches" is a
source that does nothing but hand over Arrow batches of the same shape that it has already, "ready-made column" the same
with no column but the one that the query needs: what Spark can take at most. Needs the jars of
scripts/fetch_spark_jars.sh.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from kbroker.pipeline.column_names import DDL

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "integration"))

RECORD_BYTES = 1024
KEYS = 1000
WARM_UP_ROUNDS = 2
READY_ROWS = 2000  # about as many bytes as a batch of the direct source
READY_ROWS_NARROW = 50_000
ONE_PARTITION_TIMES = 2  # the topic of one partition is larger, so that the fixed cost of a query weighs less
PRUNE = "spark.kbroker.pruneColumns"
BEST = {"kafka.max.poll.records": "5000", "kafka.fetch.max.wait.ms": "10"}
QUERIES: dict[str, Callable[[Any], Any]] = {
    "count": lambda table: table.groupBy().count().collect(),
    "max(timestamp)": lambda table: table.selectExpr("max(timestamp)").collect(),
    "group by key": lambda table: table.groupBy("key").count().selectExpr("sum(count)").collect(),
}
NEEDED = {"count": "partition", "max(timestamp)": "timestamp", "group by key": "key"}


class ReadyMade(DataSource):
    """Rows made before they are asked for: option `rows`, in option `splits` tasks, of the same columns or of option
    `column` alone."""

    @classmethod
    def name(cls) -> str:
        return "ready-made"

    def schema(self) -> str:
        names = [self.options["column"]] if "column" in self.options else [name for name in DDL if name != "headers"]
        return ", ".join(f"{name} {DDL[name]}" for name in names)

    def reader(self, schema: Any) -> DataSourceReader:
        return ReadyMadeReader(int(self.options["rows"]), int(self.options["splits"]), self.options.get("column"))


class ReadyMadeReader(DataSourceReader):
    def __init__(self, rows: int, splits: int, column: str | None) -> None:
        self.rows, self.splits, self.column = rows, splits, column

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self.rows // self.splits) for _ in range(self.splits)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import pyarrow as pa

        from kbroker.pipeline.worker_process import settle

        settle()
        n, rows = READY_ROWS if self.column is None else READY_ROWS_NARROW, partition.value
        columns = {
            "key": pa.array([b"key-%d" % (number % KEYS) for number in range(n)]),
            "value": pa.array([bytes(RECORD_BYTES)] * n),
            "topic": pa.array(["bench-none"] * n),
            "partition": pa.array([0] * n, pa.int32()),
            "offset": pa.array(range(n), pa.int64()),
            "timestamp": pa.array([0] * n, pa.timestamp("us", tz="UTC")),
            "timestampType": pa.array([0] * n, pa.int32()),
        }
        if self.column is not None:
            columns = {self.column: columns[self.column]}
        batch = pa.RecordBatch.from_pydict(columns)
        for start in range(0, rows, n):
            yield batch.slice(0, min(n, rows - start))


@contextmanager
def broker_with_data(records: int, codecs: list[str], partitions: int) -> Iterator[tuple[Any, Path]]:
    """A broker with a topic per codec, everything flushed, and the folder of its objects."""
    from broker_process import BrokerProcess
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    with tempfile.TemporaryDirectory() as folder:
        objects = Path(folder) / "objects"
        broker = BrokerProcess(Path(folder) / "data", "--object-store", f"file:{objects}").start()
        try:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
            for codec in codecs:
                for count in {partitions, 1}:
                    name = topic_of(codec, count)
                    admin.create_topics([NewTopic(name, count, 1)])[name].result(30)
                    produce(
                        Producer({"bootstrap.servers": broker.bootstrap, "compression.type": codec, "log_level": 0}),
                        name,
                        records if count > 1 else records * ONE_PARTITION_TIMES,
                        count,
                    )
            broker.flush()
            yield broker, objects
        finally:
            broker.kill()


def topic_of(codec: str, partitions: int) -> str:
    return f"bench-{codec}-{partitions}"


def produce(producer: Any, topic: str, records: int, partitions: int) -> None:
    """Records of RECORD_BYTES that compress to about a half."""
    data = random.Random(1).randbytes(64 * 1024 * 1024).hex().encode()
    for number in range(records):
        while True:
            try:
                key = b"key-%d" % (number % KEYS)
                start = number * 1021 * 127 % (len(data) - RECORD_BYTES)
                value = data[start : start + RECORD_BYTES]
                producer.produce(topic, key=key, value=value, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def session(master: str) -> Any:
    """A session with both sources."""
    import kbroker.pipeline

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    jars = ",".join(str(jar) for jar in sorted((ROOT / ".tools" / "spark").glob("*.jar")))
    spark = (
        SparkSession.builder.master(master)
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    kbroker.pipeline.register(spark)
    spark.dataSource.register(ReadyMade)
    return spark


def sources(
    spark: Any, broker: Any, objects: Path, topic: str, records: int, splits: int, query: str
) -> dict[str, Callable[[], Any]]:
    """The tables under comparison, by name."""
    servers = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
    direct = {"object.store": f"file:{objects}", "subscribe": topic}

    def table(name: str, prune: bool = True, **options: str) -> Callable[[], Any]:
        def load() -> Any:
            spark.conf.set(PRUNE, str(prune).lower())
            return spark.read.format(name).options(**options).load()

        return load

    return {
        "kafka defaults": table("kafka", **servers),
        "kafka best": table("kafka", **servers, **BEST),
        "kbroker": table("kbroker", **direct),
        "kbroker columns": table("kbroker", **direct, columns="key,partition,offset,timestamp"),
        "kbroker all columns": table("kbroker", prune=False, **direct),
        "ready-made batches": table("ready-made", rows=str(records), splits=str(splits)),
        "ready-made column": table("ready-made", rows=str(records), splits=str(splits), column=NEEDED[query]),
    }


def cpu_seconds(pid: int) -> float:
    """CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def seconds_of(table: Callable[[], Any], query: str, records: int) -> float:
    """How long a query takes; its result is checked."""
    started = time.perf_counter()
    found = QUERIES[query](table())
    took = time.perf_counter() - started
    assert query == "max(timestamp)" or found[0][0] == records, (query, found)
    return took


def measure(spark: Any, broker: Any, objects: Path, codec: str, partitions: int, rounds: int, records: int) -> None:
    """All sources in turn, and a line for each."""
    for query in QUERIES:
        tables = sources(spark, broker, objects, topic_of(codec, partitions), records, partitions, query)
        seconds: dict[str, list[float]] = {name: [] for name in tables}
        broker_cpu: dict[str, float] = dict.fromkeys(tables, 0.0)
        for number in range(rounds + WARM_UP_ROUNDS):
            for name, table in tables.items():
                before = cpu_seconds(broker.pid)
                took = seconds_of(table, query, records)
                if number >= WARM_UP_ROUNDS:
                    seconds[name].append(took)
                    broker_cpu[name] += cpu_seconds(broker.pid) - before
        middle = {name: statistics.median(values) for name, values in seconds.items()}
        for name, value in middle.items():
            ratios = " ".join(f"{middle[other] / value:5.2f}x {other}" for other in ("kafka defaults", "kafka best"))
            cpu = broker_cpu[name] / sum(seconds[name])
            rate = records / value / 1000
            print(
                f"{spark.sparkContext.master:9} {codec:5} {query:15} {name:20} {value:6.2f} s {rate:6.0f} k rows/s "
                f" {ratios}  broker {cpu:5.1%} of a core",
                flush=True,
            )


def measure_one_partition(spark: Any, objects: Path, codec: str, rounds: int, records: int) -> dict[str, float]:
    """Seconds of each query on the topic of one partition."""
    options = {"object.store": f"file:{objects}", "subscribe": topic_of(codec, 1)}
    records *= ONE_PARTITION_TIMES
    middle: dict[str, float] = {}
    for prune in ("true", "false"):
        spark.conf.set(PRUNE, prune)
        for query in QUERIES:
            runs = [
                seconds_of(lambda: spark.read.format("kbroker").options(**options).load(), query, records)
                for _ in range(rounds + 1)
            ]
            middle[query + ("" if prune == "true" else ", all columns")] = statistics.median(runs[1:])
    return middle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--masters", default="local[1],local[2]")
    parser.add_argument("--codecs", default="none,zstd")
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--queries", default=",".join(QUERIES))
    parser.add_argument("--only-one-partition", action="store_true", help="leave out the comparison with kafka")
    arguments = parser.parse_args()
    codecs = arguments.codecs.split(",")
    for left_out in set(QUERIES) - set(arguments.queries.split(",")):
        del QUERIES[left_out]
    alone: dict[str, dict[tuple[str, str], float]] = {}
    with broker_with_data(arguments.records, codecs, arguments.partitions) as (broker, objects):
        for master in arguments.masters.split(","):
            spark = session(master)
            for codec in codecs:
                if not arguments.only_one_partition:
                    measure(spark, broker, objects, codec, arguments.partitions, arguments.rounds, arguments.records)
                found = measure_one_partition(spark, objects, codec, arguments.rounds, arguments.records)
                alone[master] = alone.get(master, {}) | {(codec, query): value for query, value in found.items()}
            spark.stop()
    first = next(iter(alone.values()))
    for (codec, query), value in first.items():
        others = "  ".join(f"{master} {found[codec, query]:.2f} s" for master, found in alone.items())
        gain = value / list(alone.values())[-1][codec, query]
        print(f"one partition {codec:5} {query:28} {others}  {gain:.2f}x")


if __name__ == "__main__":
    main()
