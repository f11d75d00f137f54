"""Spark's kafka source writing a Parquet table against `kbroker pipeline export`: same data and cores, in alternation.

    python -m bench.spark_export [--records N] [--rounds N] [--master local[2]] [--codecs none,zstd] [--partitions N]
                                 [--compression zstd] [--store s3|folder]

The broker's objects lie in an S3 server (versitygw) on the same machine; all write the same columns, with the same
compression, into a folder each time anew. An export is on disk when it ends; what Spark writes is in the page cache,
except where the bench syncs its files ("synced"). Prints seconds and ratios; checks that rows are as many, and their
offsets. Needs the jars of scripts/fetch_spark_jars.sh and the tools of scripts/fetch_tools.sh.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.spark_read import BEST, cpu_seconds, produce, session

COLUMNS = "key,value,topic,partition,offset,timestamp,timestampType"


def topic_of(codec: str) -> str:
    return f"export-{codec}"


def start_broker(stack: ExitStack, folder: Path, store: str) -> tuple[Any, dict[str, str | None]]:
    """A broker over an S3 server or a folder, and where its objects are."""
    from broker_process import BrokerProcess
    from s3_server import BUCKET, s3_server

    if store == "folder":
        place: dict[str, str | None] = {"url": f"file:{folder / 'objects'}", "endpoint": None}
        options = ["--object-store", f"file:{folder / 'objects'}"]
    else:
        server = stack.enter_context(s3_server(folder))
        os.environ.update(server.environment())
        place = {"url": f"s3://{BUCKET}/bench", "endpoint": server.endpoint}
        options = ["--object-store", f"s3://{BUCKET}/bench", "--s3-endpoint", server.endpoint]
    broker = BrokerProcess(folder / "data", *options).start()
    stack.callback(broker.kill)
    return broker, place


def fill(broker: Any, codecs: list[str], records: int, partitions: int) -> None:
    """A topic per codec, everything flushed."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for codec in codecs:
        admin.create_topics([NewTopic(topic_of(codec), partitions, 1)])[topic_of(codec)].result(30)
        settings = {"bootstrap.servers": broker.bootstrap, "compression.type": codec, "log_level": 0}
        produce(Producer(settings), topic_of(codec), records, partitions)
    broker.flush()


def writers(
    spark: Any, broker: Any, place: dict[str, str | None], topic: str, compression: str
) -> dict[str, Callable[[Path], Any]]:
    """What is compared: each writes the topic into a folder."""
    from kbroker.pipeline.bucket_view import BucketView
    from kbroker.pipeline.export.plan import source_options
    from kbroker.pipeline.export.run import ExportRun, ExportSettings
    from kbroker.pipeline.export.table import ExportTable
    from kbroker.pipeline.export.target import Destination
    from kbroker.pipeline.export.task import export_split
    from kbroker.pipeline.jobs.session import Job
    from kbroker.pipeline.options import Place

    servers = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}

    def by_kafka(*, synced: bool = False, **options: str) -> Callable[[Path], Any]:
        def write(folder: Path) -> None:
            table = spark.read.format("kafka").options(**servers, **options).load().select(*COLUMNS.split(","))
            table.write.option("compression", compression).parquet(str(folder))
            if synced:
                for path in folder.rglob("*.parquet"):
                    sync_file(path)

        return write

    def by_export(folder: Path) -> None:
        where = Place(str(place["url"]), None, place["endpoint"], None)
        with Job("export", where, quiet=True) as job:
            table = ExportTable()
            source = source_options(where, (topic,), table.source_columns(), isolation="read_committed")
            destination = Destination(f"file:{folder}")
            settings = ExportSettings(source, table, destination, compression, lambda: job.cores)
            ExportRun(
                settings, BucketView(where), lambda tasks: job.run_tasks(export_split, tasks, "tasks"), job.say
            ).run()

    return {
        "kafka defaults": by_kafka(),
        "kafka best": by_kafka(**BEST),
        "kafka best, synced": by_kafka(synced=True, **BEST),
        "export": by_export,
    }


def sync_file(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def check(folder: Path, records: int) -> int:
    """The rows' number and offsets are right; bytes written."""
    import pyarrow.dataset as ds

    files = [str(path) for path in folder.rglob("*.parquet")]
    table = ds.dataset(files, format="parquet").to_table(columns=["partition", "offset"])
    found = set(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    assert len(found) == table.num_rows == records, (len(found), table.num_rows)
    return sum(os.path.getsize(file) for file in files)


def measure(make: dict[str, Callable[[Path], Any]], broker: Any, folder: Path, rounds: int, records: int) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in make}
    cpu: dict[str, float] = dict.fromkeys(make, 0.0)
    written: dict[str, int] = {}
    for number in range(rounds + 1):  # the first round warms up
        for name, write in make.items():
            out = folder / f"out-{number}-{name.replace(' ', '-')}"
            before, started = cpu_seconds(broker.pid), time.perf_counter()
            write(out)
            took = time.perf_counter() - started
            if number:
                seconds[name].append(took)
                cpu[name] += cpu_seconds(broker.pid) - before
            else:
                written[name] = check(out, records)
            shutil.rmtree(out)
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    for name, value in middle.items():
        ratios = " ".join(f"{middle[other] / value:5.2f}x {other}" for other in ("kafka defaults", "kafka best"))
        print(
            f"{name:18} {value:6.2f} s ({min(seconds[name]):.2f}-{max(seconds[name]):.2f}) "
            f"{records / value / 1000:6.0f} k rows/s  {ratios}  {written[name] / 1e6:6.0f} MB written  "
            f"broker {cpu[name] / sum(seconds[name]):5.1%} of a core",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--codecs", default="none,zstd")
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--compression", default="zstd")
    parser.add_argument("--store", choices=["s3", "folder"], default="s3")
    given = parser.parse_args()
    codecs = given.codecs.split(",")
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        broker, place = start_broker(stack, folder, given.store)
        fill(broker, codecs, given.records, given.partitions)
        spark = session(given.master)
        for codec in codecs:
            print(f"{given.master}, objects in {given.store}, topic compressed with {codec}:", flush=True)
            make = writers(spark, broker, place, topic_of(codec), given.compression)
            measure(make, broker, folder, given.rounds, given.records)
        spark.stop()


if __name__ == "__main__":
    main()
