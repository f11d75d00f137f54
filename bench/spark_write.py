"""Spark's kafka sink against format("kbroker") as a sink, same broker, same rows, in alternation.

    python -m bench.spark_write [--rows N] [--rounds N] [--sizes 1024,100] [--master local[2]] [--partitions N]

Prints rows and MB a second of each sink (medians of the rounds) and the ratio, with keys; the kafka sink at its
defaults and with larger batches, ours with and without transactions. The rows are made once and cached, so that a
round measures the write alone. Needs the jars of scripts/fetch_spark_jars.sh.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "integration"))

# Name: format and options.
SINKS: dict[str, tuple[str, dict[str, str]]] = {
    "kafka": ("kafka", {}),
    "kafka, larger batches": ("kafka", {"kafka.linger.ms": "50", "kafka.batch.size": "1000000"}),
    "kbroker": ("kbroker", {}),
    "kbroker, transactional": ("kbroker", {"kbroker.transactional": "true"}),
}


def rows_of(spark: Any, rows: int, size: int, tasks: int) -> Any:
    """Rows of `size` bytes with a key of their own, in memory."""
    value = f"cast(lpad(hex(xxhash64(id)), {size}, sha2(cast(id as string), 512)) as binary) value"
    table = spark.range(0, rows, 1, tasks).selectExpr("cast(id as string) key", value)
    table.cache().count()
    return table


def write(table: Any, name: str, bootstrap: str, topic: str) -> float:
    """Seconds."""
    kind, options = SINKS[name]
    started = time.perf_counter()
    table.write.format(kind).options(**{"kafka.bootstrap.servers": bootstrap, "topic": topic}, **options).mode(
        "append"
    ).save()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default="1024,100")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--partitions", type=int, default=12)
    given = parser.parse_args()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from broker_process import BrokerProcess
    from confluent_kafka.admin import AdminClient, NewTopic

    import kbroker.pipeline

    spark = kbroker.pipeline.start_session(
        "spark-write",
        master=given.master,
        conf={
            "spark.jars": ",".join(map(str, sorted((ROOT / ".tools" / "spark").glob("*.jar")))),
            "spark.ui.enabled": "false",
            "spark.driver.memory": "4g",
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    tasks = 4 * spark.sparkContext.defaultParallelism
    for size in map(int, given.sizes.split(",")):
        table = rows_of(spark, given.rows, size, tasks)
        seconds: dict[str, list[float]] = {name: [] for name in SINKS}
        for number in range(given.rounds + 1):
            for name in SINKS:
                with tempfile.TemporaryDirectory() as folder:
                    broker = BrokerProcess(Path(folder) / "data").start()
                    try:
                        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
                        admin.create_topics([NewTopic("written", given.partitions, 1)])["written"].result(30)
                        took = write(table, name, broker.bootstrap, "written")
                    finally:
                        broker.kill()
                if number:  # the first round warms up
                    seconds[name].append(took)
        table.unpersist()
        base = statistics.median(seconds["kafka"])
        print(f"\n{given.rows} rows of {size} bytes, {given.partitions} partitions, {given.master}")
        for name, taken in seconds.items():
            median = statistics.median(taken)
            print(
                f"  {name:24} {given.rows / median:>10,.0f} rows/s {given.rows * size / median / 1e6:>7.0f} MB/s"
                f"  {base / median:.2f} times the kafka sink"
            )
    spark.stop()


if __name__ == "__main__":
    main()
