"""Spark's kafka source against format("kbroker"), same broker, same data, in alternation.

    python -m bench.spark_read [--records N] [--rounds N] [--masters local[1],local[2]] [--codecs none,zstd]
                              [--partitions N]

Prints seconds per query and the ratios to the kafka source, at its defaults and at its best settings. Needs the jars of
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

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "integration"))

RECORD_BYTES = 1024
KEYS = 1000
BEST = {"kafka.max.poll.records": "5000", "kafka.fetch.max.wait.ms": "10"}
QUERIES: dict[str, Callable[[Any], Any]] = {
    "count": lambda table: table.groupBy().count().collect(),
    "max(timestamp)": lambda table: table.selectExpr("max(timestamp)").collect(),
    "group by key": lambda table: table.groupBy("key").count().selectExpr("sum(count)").collect(),
}


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
                admin.create_topics([NewTopic(topic_of(codec), partitions, 1)])[topic_of(codec)].result(30)
                producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": codec})
                produce(producer, codec, records, partitions)
            broker.flush()
            yield broker, objects
        finally:
            broker.kill()


def topic_of(codec: str) -> str:
    return f"bench-{codec}"


def produce(producer: Any, codec: str, records: int, partitions: int) -> None:
    """Records of RECORD_BYTES that compress to about a half."""
    chosen = random.Random(1)
    values = [chosen.randbytes(RECORD_BYTES // 2).hex().encode() for _ in range(256)]
    for number in range(records):
        while True:
            try:
                key = b"key-%d" % (number % KEYS)
                producer.produce(topic_of(codec), key=key, value=values[number % 256], partition=number % partitions)
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
    return spark


def sources(spark: Any, broker: Any, objects: Path, topic: str) -> dict[str, Callable[[], Any]]:
    """The tables under comparison, by name."""
    servers = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
    direct = {"object.store": f"file:{objects}", "subscribe": topic}

    def table(name: str, **options: str) -> Callable[[], Any]:
        return lambda: spark.read.format(name).options(**options).load()

    return {
        "kafka defaults": table("kafka", **servers),
        "kafka best": table("kafka", **servers, **BEST),
        "kbroker": table("kbroker", **direct),
        "kbroker without value": table("kbroker", **direct, columns="key,partition,offset,timestamp"),
    }


def cpu_seconds(pid: int) -> float:
    """CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(spark: Any, broker: Any, objects: Path, codec: str, rounds: int, records: int) -> None:
    tables = sources(spark, broker, objects, topic_of(codec))
    for query, run in QUERIES.items():
        seconds: dict[str, list[float]] = {name: [] for name in tables}
        broker_cpu: dict[str, float] = dict.fromkeys(tables, 0.0)
        for number in range(rounds + 1):  # the first round warms up
            for name, table in tables.items():
                before, started = cpu_seconds(broker.pid), time.perf_counter()
                found = run(table())
                took = time.perf_counter() - started
                assert query == "max(timestamp)" or found[0][0] == records, (name, found)
                if number:
                    seconds[name].append(took)
                    broker_cpu[name] += cpu_seconds(broker.pid) - before
        middle = {name: statistics.median(values) for name, values in seconds.items()}
        for name, value in middle.items():
            ratios = " ".join(f"{middle[other] / value:5.2f}x {other}" for other in ("kafka defaults", "kafka best"))
            cpu = broker_cpu[name] / sum(seconds[name])
            rate = records / value / 1000
            print(
                f"{spark.sparkContext.master:9} {codec:5} {query:15} {name:22} {value:6.2f} s {rate:6.0f} k rows/s "
                f" {ratios}  broker {cpu:5.1%} of a core",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--masters", default="local[1],local[2]")
    parser.add_argument("--codecs", default="none,zstd")
    parser.add_argument("--partitions", type=int, default=2)
    arguments = parser.parse_args()
    codecs = arguments.codecs.split(",")
    with broker_with_data(arguments.records, codecs, arguments.partitions) as (broker, objects):
        for master in arguments.masters.split(","):
            spark = session(master)
            for codec in codecs:
                measure(spark, broker, objects, codec, arguments.rounds, arguments.records)
            spark.stop()


if __name__ == "__main__":
    main()
