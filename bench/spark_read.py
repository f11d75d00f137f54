"""Spark's kafka source against format("kbroker"): the same broker, the same data, in alternation.

    python -m bench.spark_read --data FOLDER --codecs none [--stores folder,s3] [--records N] [--partitions N]
                               [--queries count,sum] [--sources kafka,kbroker] [--rounds N] [--json FILE]

For 3 million records of 1 KiB, one codec, one store and five rounds: about 14 minutes, 4 GB of disk for each codec and
store below FOLDER, and as much for the Parquet files that a query writes. FOLDER keeps the data: the next run with the
same records and partitions uses it again. Needs the jars of scripts/fetch_spark_jars.sh, and versitygw for S3.

A line for each query and source: the median of the seconds and the middle half of the rounds; how many times as fast
as the kafka source; CPU seconds of the JVM, of the Python workers, and of broker and S3 server; what was read from the
store, by the workers or by the broker; and the highest PSS of a worker, of a run that is not timed. Sources:

    kafka        Spark's own, at its best settings
    kbroker      format("kbroker"), reading the store
    ready-made   a Python source that hands over Arrow batches which it has already (of --batch-rows): Spark's own cost
    raw          two processes that read the topic's objects in ranges of 4 MiB and do nothing with them
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from bench.processes import Process, cpu_seconds, descendants, forget_peak, pss_peak_bytes, read_bytes
from kbroker.limits import MIB
from kbroker.pipeline.column_names import DDL

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "integration"))

RECORD_BYTES = 1024
KEYS = 1000
STEP_MS = 1  # from record to record
WINDOW_PART = 0.02
BEST = {"kafka.max.poll.records": "5000", "kafka.fetch.max.wait.ms": "10"}
RAW_PROCESSES = 2
READY_SPLITS = 4


@dataclass(frozen=True)
class Topic:
    """What a query is about; the records' timestamps begin at `first_ms`."""

    name: str
    records: int
    partitions: int
    first_ms: int

    @property
    def window(self) -> tuple[str, int]:
        """A condition on the time, in the middle of the topic, and how many records it holds for."""
        count = int(self.records * WINDOW_PART)
        first = self.first_ms + (self.records - count) // 2 * STEP_MS
        bounds = (f"timestamp_millis({each})" for each in (first, first + count * STEP_MS))
        return "timestamp >= {} and timestamp < {}".format(*bounds), count


@dataclass(frozen=True)
class Query:
    """`run` returns what `expected` says it must."""

    columns: str  # that it needs
    run: Callable[[Any, Topic, Path], int]
    expected: Callable[[Topic], int]


def _one(table: Any) -> int:
    return int(table.collect()[0][0] or 0)  # the sum of no rows is null


def _write(table: Any, topic: Topic, out: Path) -> int:
    table.write.mode("overwrite").parquet(str(out))
    return topic.records


QUERIES = {
    "count": Query("partition", lambda table, topic, out: int(table.count()), lambda topic: topic.records),
    "max": Query(
        "offset",
        lambda table, topic, out: _one(table.selectExpr("max(offset)")),
        lambda topic: -(-topic.records // topic.partitions) - 1,
    ),
    "group": Query(
        "key",
        lambda table, topic, out: _one(table.groupBy("key").count().selectExpr("sum(count)")),
        lambda topic: topic.records,
    ),
    "sum": Query(
        "value",
        lambda table, topic, out: _one(table.selectExpr("sum(length(value))")),
        lambda topic: topic.records * RECORD_BYTES,
    ),
    "window": Query(
        "value,timestamp",
        lambda table, topic, out: _one(table.where(topic.window[0]).selectExpr("sum(length(value))")),
        lambda topic: topic.window[1] * RECORD_BYTES,
    ),
    "parquet": Query(",".join(name for name in DDL if name != "headers"), _write, lambda topic: topic.records),
}


class ReadyMade(DataSource):
    """Rows made before they are asked for: options `rows`, `columns` and `batch`, the rows of one."""

    @classmethod
    def name(cls) -> str:
        return "ready-made"

    def schema(self) -> str:
        return ", ".join(f"{name} {DDL[name]}" for name in self.options["columns"].split(","))

    def reader(self, schema: Any) -> DataSourceReader:
        return ReadyMadeReader(dict(self.options))


class ReadyMadeReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(int(self.options["rows"]) // READY_SPLITS) for _ in range(READY_SPLITS)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import pyarrow as pa

        from kbroker.pipeline.worker_process import settle

        settle()
        n, rows = int(self.options["batch"]), partition.value
        columns = {
            "key": pa.array([b"key-%d" % (number % KEYS) for number in range(n)]),
            "value": pa.array([bytes(RECORD_BYTES)] * n),
            "topic": pa.array(["bench-none"] * n),
            "partition": pa.array([0] * n, pa.int32()),
            "offset": pa.array(range(n), pa.int64()),
            "timestamp": pa.array([0] * n, pa.timestamp("us", tz="UTC")),
            "timestampType": pa.array([0] * n, pa.int32()),
        }
        names = self.options["columns"].split(",")
        batch = pa.RecordBatch.from_pydict({name: columns[name] for name in names})
        for start in range(0, rows, n):
            yield batch.slice(0, min(n, rows - start))


# -- data ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A broker that runs over one store, and the source's options for that store."""

    broker: Any
    options: dict[str, str]
    server_pid: int | None  # of the S3 server


@contextlib.contextmanager
def place_of(store: str, folder: Path) -> Iterator[Place]:
    """The broker of a store, `folder` or `s3`, with what it has from earlier runs."""
    from broker_process import BrokerProcess
    from s3_server import BUCKET, s3_server

    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        options, pid = {"object.store": f"file:{folder / 'objects'}"}, None
        if store == "s3":
            server = stack.enter_context(s3_server(folder))
            os.environ.update(server.environment())
            options, pid = {"object.store": f"s3://{BUCKET}/bench", "s3.endpoint": server.endpoint}, server.pid
        given = ["--object-store", options["object.store"]]
        if "s3.endpoint" in options:
            given += ["--s3-endpoint", options["s3.endpoint"]]
        broker = BrokerProcess(folder / "data", *given).start()
        stack.callback(broker.kill)
        yield Place(broker, options, pid)
        broker.stop()


def topic_in(place: Place, folder: Path, codec: str, records: int, partitions: int) -> Topic:
    """The topic of a codec, produced and flushed unless the folder has it."""
    note = folder / f"{codec}-{records}-{partitions}.json"
    if not note.exists():
        first_ms = int(time.time() * 1000) - records * STEP_MS
        topic = Topic(f"bench-{codec}-{records}-{partitions}", records, partitions, first_ms)
        produce(place.broker.bootstrap, topic, codec)
        place.broker.flush()
        note.write_text(json.dumps(vars(topic)))
        place.broker.stop()  # so that a new topic is read as one of an earlier run
        place.broker.start()
    return Topic(**json.loads(note.read_text()))


def produce(bootstrap: str, topic: Topic, codec: str) -> None:
    """Records of RECORD_BYTES that compress to about a half."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    made = NewTopic(topic.name, topic.partitions, 1, config={"retention.ms": "-1"})
    admin.create_topics([made])[topic.name].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 50, "log_level": 0})
    data = random.Random(1).randbytes(32 * MIB).hex().encode()
    for number in range(topic.records):
        start = number * 1021 * 127 % (len(data) - RECORD_BYTES)
        record = {
            "key": b"key-%d" % (number % KEYS),
            "value": data[start : start + RECORD_BYTES],
            "partition": number % topic.partitions,
            "timestamp": topic.first_ms + number * STEP_MS,
        }
        while True:
            try:
                producer.produce(topic.name, **record)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


# -- sources ---------------------------------------------------------------------------------------------------


def session(master: str) -> Any:
    """A session with all sources."""
    import kbroker.pipeline

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    jars = ",".join(str(jar) for jar in sorted((ROOT / ".tools" / "spark").glob("*.jar")))
    builder = SparkSession.builder.master(master)
    for name, value in {
        "spark.jars": jars,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    kbroker.pipeline.register(spark)
    spark.dataSource.register(ReadyMade)
    return spark


def run_once(
    spark: Any, source: str, place: Place, topic: Topic, query: Query, given: argparse.Namespace
) -> float | None:
    """One query of a source; its seconds, if these are not those of the call. AssertionError if its result is wrong."""
    if source == "raw":
        return read_raw({**place.options, "subscribe": topic.name})
    if source == "ready-made":
        options = {"rows": str(topic.records), "columns": query.columns, "batch": str(given.batch_rows)}
    elif source == "kafka":
        options = {"kafka.bootstrap.servers": place.broker.bootstrap, "subscribe": topic.name, **BEST}
    else:
        options = {**place.options, "subscribe": topic.name, **dict(each.split("=", 1) for each in given.option)}
    table = spark.read.format(source).options(**options).load()
    found = query.run(table, topic, given.data / "out")
    assert source == "ready-made" or found == query.expected(topic), (source, found, query.expected(topic))
    return None


def read_raw(options: dict[str, str]) -> float:
    """Reads the topic's objects by RAW_PROCESSES processes; seconds without their start."""
    command = [sys.executable, "-m", "bench.spark_read", "--raw-part"]
    pipe = subprocess.PIPE
    parts = [
        subprocess.Popen([*command, str(part), json.dumps(options)], stdin=pipe, stdout=pipe)
        for part in range(RAW_PROCESSES)
    ]
    for part in parts:
        assert part.stdout is not None
        assert part.stdout.readline() == b"ready\n"
    started = time.perf_counter()
    for part in parts:
        assert part.stdin is not None
        part.stdin.close()
    assert [part.wait() for part in parts] == [0] * RAW_PROCESSES
    return time.perf_counter() - started


def read_raw_part(part: int, options: dict[str, str]) -> None:
    """Every RAW_PROCESSES-th range of the topic's objects, into the same memory."""
    from kbroker.pipeline.bucket_view import store_of
    from kbroker.pipeline.options import parse_options
    from kbroker.pipeline.plan.batch_plan import plan_batch
    from kbroker.pipeline.read_ahead import WINDOW_BYTES

    store = store_of(parse_options(options).place)
    shares = [share for split in plan_batch(options, RAW_PROCESSES, {}) for share in split.shares]
    images = sorted({(ref.key, ref.start, ref.length) for share in shares for ref in share.objects})
    memory = memoryview(bytearray(WINDOW_BYTES))
    print("ready", flush=True)
    sys.stdin.read()
    for key, first, length in images[part::RAW_PROCESSES]:
        for start in range(first, first + length, WINDOW_BYTES):
            store.get_into(key, start, memory[: min(WINDOW_BYTES, first + length - start)])


# -- measuring -------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """One run of one query."""

    seconds: float
    jvm_cpu: float
    worker_cpu: float
    server_cpu: float
    bytes_read: int


class Meter:
    """What the processes of a session and a place use."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def _of(self) -> tuple[list[Process], list[Process], list[Process]]:
        """The JVM, the Python processes under it, and broker and S3 server."""
        under = descendants(os.getpid())
        jvm = [each for each in under if each.name == "java"]
        ours = {each.pid for parent in jvm for each in descendants(parent.pid)}
        servers = [Process(pid, "") for pid in (self._place.broker.pid, self._place.server_pid) if pid is not None]
        return jvm, [each for each in under if each.pid in ours], servers

    def run(self, call: Callable[[], float | None], source: str) -> Run:
        """Runs `call`, which may measure its seconds itself."""
        before = self._use(source)
        started = time.perf_counter()
        took = call() or time.perf_counter() - started
        return Run(took, *(after - first for after, first in zip(self._use(source), before, strict=True)))  # type: ignore[arg-type]

    def _use(self, source: str) -> tuple[float, float, float, int]:
        jvm, workers, servers = self._of()
        readers = servers[:1] if source == "kafka" else workers
        if self._place.server_pid is not None:
            readers = servers[1:]  # what the S3 server has read, it has sent
        cpu = (sum(map(cpu_seconds, group)) for group in (jvm, workers, servers))
        return (*cpu, sum(map(read_bytes, readers)))  # type: ignore[return-value]

    def pss_of_workers(self, call: Callable[[], float | None]) -> int:
        """The highest PSS of a Python worker while `call` runs, in bytes."""
        for worker in self._of()[1]:
            forget_peak(worker)
        call()
        return max(map(pss_peak_bytes, self._of()[1]))


def measure(
    spark: Any, place: Place, topic: Topic, given: argparse.Namespace, store: str, codec: str
) -> Iterator[dict[str, Any]]:
    """A line of the table for each query and source, as a JSON object."""
    meter = Meter(place)
    for name in given.queries:
        query = QUERIES[name]
        runs: dict[str, list[Run]] = {source: [] for source in given.sources}

        def once(source: str, query: Query = query) -> Callable[[], float | None]:
            return lambda: run_once(spark, source, place, topic, query, given)

        for number in range(given.rounds):
            order = given.sources if number % 2 == 0 else given.sources[::-1]
            for source in order:
                runs[source].append(meter.run(once(source), source))
        middle = {source: statistics.median(run.seconds for run in runs[source]) for source in runs}
        for source, found in runs.items():
            seconds = sorted(run.seconds for run in found)
            quarter = len(seconds) // 4
            yield {
                "store": store, "codec": codec, "query": name, "source": source, "records": topic.records,
                "seconds": middle[source], "low": seconds[quarter], "high": seconds[-1 - quarter],
                "times": middle["kafka"] / middle[source] if "kafka" in middle else None,
                **{key: statistics.median(getattr(run, key) for run in found)
                   for key in ("jvm_cpu", "worker_cpu", "server_cpu", "bytes_read")},
                "pss": meter.pss_of_workers(once(source)) if source == "kbroker" and given.pss else None,
            }  # fmt: skip


HEAD = (
    f"{'store':7}{'codec':6}{'query':9}{'source':11}{'seconds':>8} {'middle half':>15}{'times':>7}"
    f"{'JVM':>7}{'workers':>9}{'servers':>9}{'read, MB':>10}{'PSS, MB':>9}"
)


def text_of(line: dict[str, Any]) -> str:
    """A line of the table."""
    half = f"{line['low']:.2f} to {line['high']:.2f}"
    times = f"{line['times']:.2f}" if line["times"] else ""
    pss = f"{line['pss'] / 1e6:.0f}" if line["pss"] else ""
    return (
        f"{line['store']:7}{line['codec']:6}{line['query']:9}{line['source']:11}{line['seconds']:8.2f} {half:>15}"
        f"{times:>7}{line['jvm_cpu']:7.1f}{line['worker_cpu']:9.1f}{line['server_cpu']:9.1f}"
        f"{line['bytes_read'] / 1e6:10.1f}{pss:>9}"
    )


def main() -> None:
    if "--raw-part" in sys.argv:
        read_raw_part(int(sys.argv[-2]), json.loads(sys.argv[-1]))
        return
    given = arguments()
    print(HEAD, flush=True)
    for store in given.stores:
        folder = given.data / store
        with place_of(store, folder) as place:
            topics = {codec: topic_in(place, folder, codec, given.records, given.partitions) for codec in given.codecs}
            spark = session(given.master)
            for codec, topic in topics.items():
                for source in set(given.sources) - {"raw"}:  # both sides compiled and their processes started
                    run_once(spark, source, place, topic, QUERIES["window"], given)
                for line in measure(spark, place, topic, given, store, codec):
                    print(text_of(line), flush=True)
                    if given.json is not None:
                        with given.json.open("a") as lines:
                            lines.write(json.dumps({"at": int(time.time()), **line}) + "\n")
            spark.stop()
            shutil.rmtree(given.data / "out", ignore_errors=True)


def arguments() -> argparse.Namespace:
    """The command line, checked."""

    def names_of(known: tuple[str, ...]) -> Callable[[str], list[str]]:
        def split(text: str) -> list[str]:
            if unknown := set(text.split(",")) - set(known):
                raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are {', '.join(known)}")
            return text.split(",")

        return split

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--stores", type=names_of(("folder", "s3")), default=["folder"])
    parser.add_argument("--codecs", type=names_of(("none", "gzip", "snappy", "lz4", "zstd")), default=["none"])
    parser.add_argument("--queries", type=names_of(tuple(QUERIES)), default=list(QUERIES))
    sources = ("kafka", "kbroker", "ready-made", "raw")
    parser.add_argument("--sources", type=names_of(sources), default=["kafka", "kbroker"])
    parser.add_argument("--option", action="append", default=[], help="of format('kbroker'), as splitBytes=1000000")
    parser.add_argument("--batch-rows", type=int, default=900, help="of the ready-made source")
    parser.add_argument("--no-pss", dest="pss", action="store_false")
    parser.add_argument("--json", type=Path, metavar="FILE")
    found = parser.parse_args()
    found.data = found.data.resolve()
    return found


if __name__ == "__main__":
    main()
