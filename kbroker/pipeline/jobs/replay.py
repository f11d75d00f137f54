"""``kbroker pipeline replay``: rows of a table, or records in the bucket, into a topic of a running broker.

Order per key is kept, and with the same --job-id a second run continues where the first one ended, without duplicates
for consumers that read committed.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import click

from kbroker.pipeline import is_submitted
from kbroker.pipeline.bucket_view import BucketView
from kbroker.pipeline.jobs.compact_spark import raising_task_reasons
from kbroker.pipeline.jobs.replay_producer import ReplayTarget, partition_count
from kbroker.pipeline.jobs.replay_tasks import parse_options, replay_rows, with_targets
from kbroker.pipeline.jobs.session import Job, JobError, job_options
from kbroker.pipeline.options import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HEADERS = "array<struct<key:string,value:binary>>"
ROWS = f"target int, key binary, value binary, headers {HEADERS}, ms long"
FILE_FORMATS = ("parquet", "orc", "json", "csv", "text", "avro")
DONE = "partition int, sent long, skipped long"


def rows_of_table(table: DataFrame, keep_partition: bool, order: tuple[str, ...], now_ms: int) -> tuple[DataFrame, int]:
    """The rows to send, followed by the columns that order them, and the number of these. Raises JobError."""
    columns = {name.lower(): name for name in table.columns}
    if "value" not in columns:
        raise JobError(f"the table has no column value; it has {', '.join(table.columns)}")
    if keep_partition and "partition" not in columns:
        raise JobError("--keep-partition: the table has no column partition")
    if not order:
        known = (("topic", "partition", "offset"), ("timestamp",))
        order = next((names for names in known if set(names) <= columns.keys()), ())
    missing = [name for name in order if name.lower() not in columns]
    if missing:
        raise JobError(f"--order-by: the table has no column {missing[0]}")
    kind = dict(table.dtypes).get(columns.get("timestamp", ""), "")
    time = "unix_millis(timestamp)" if kind.startswith("timestamp") else "cast(timestamp as long)"
    selected = table.selectExpr(
        "cast(partition as int) target" if keep_partition else "cast(null as int) target",
        "cast(key as binary) key" if "key" in columns else "cast(null as binary) key",
        "cast(value as binary) value",
        f"cast({'headers' if 'headers' in columns else 'null'} as {HEADERS}) headers",
        f"coalesce({time}, {now_ms}L) ms" if "timestamp" in columns else f"{now_ms}L ms",
        *(f"`{columns[name.lower()]}` order_{place}" for place, name in enumerate(order)),
    )
    return selected, len(order)


def topic_options(place: Place, topic: str) -> dict[str, str]:
    """Options of the reader for what is committed of a topic."""
    given = {"object.store": place.url, "cluster.id": place.cluster_id, "s3.endpoint": place.endpoint,
             "s3.region": place.region}  # fmt: skip
    found = {name: value for name, value in given.items() if value}
    return found | {"subscribe": topic, "includeHeaders": "true", "kafka.isolation.level": "read_committed"}


def check_path(path: str, table_format: str) -> None:
    """Raises JobError if a local path does not exist. Paths that only Spark can look up pass."""
    local = path.removeprefix("file:")
    if table_format not in FILE_FORMATS or is_submitted() or any(each in local for each in "*?[{"):
        return
    if local == path and ("://" in path or "HADOOP_CONF_DIR" in os.environ):
        return
    if not os.path.exists("/" + local.lstrip("/") if local.startswith("//") else local):
        raise JobError(f"--path: there is no {path}")


def _job_id(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    found = value or os.urandom(4).hex()
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", found):
        raise click.BadParameter("1 to 64 letters, digits, dots, underscores and hyphens")
    return found


@click.command()
@click.option("--bootstrap-server", "--bootstrap", "-b", "bootstrap", default="127.0.0.1:9092", show_default=True,
              envvar="KBROKER_BOOTSTRAP", metavar="HOST:PORT[,...]",
              help="broker to send to; reached from the executors")  # fmt: skip
@click.option("--topic", required=True, metavar="NAME", help="topic to send to; it must exist")
@click.option("--path", metavar="PATH", help="table to read")
@click.option("--format", "table_format", default="parquet", show_default=True, help="format of the table")
@click.option("--from-topic", metavar="NAME", help="instead of a table: a topic in the bucket")
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="option of the source; repeatable")
@click.option("--where", metavar="SQL", help="only rows for which this holds")
@click.option("--order-by", "order", multiple=True, metavar="COLUMN",
              help="order of rows (default: topic, partition and offset, else timestamp); repeatable")  # fmt: skip
@click.option("--keep-partition", is_flag=True, help="to the partition in column partition, not by key")
@click.option("--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), default="lz4",
              show_default=True)  # fmt: skip
@click.option("--job-id", callback=_job_id, metavar="NAME", help="continue what a run of this name began")
@job_options("replay")
def command(
    job: Job,
    bootstrap: str,
    topic: str,
    path: str | None,
    table_format: str,
    from_topic: str | None,
    options: tuple[str, ...],
    where: str | None,
    order: tuple[str, ...],
    keep_partition: bool,
    compression: str,
    job_id: str,
) -> None:
    """Send a table, or a topic in the bucket, to a topic of a running broker."""
    if (path is None) == (from_topic is None):
        raise click.UsageError("give one of --path and --from-topic")
    given = parse_options(options)
    if path is not None:
        check_path(path, table_format)
    elif "object.store" not in given and from_topic not in BucketView(job.place).topics.by_name:
        raise JobError(f"--from-topic: there is no topic {from_topic} in {job.place.url}")
    partitions = partition_count(bootstrap, topic)
    job.say(f"job id {job_id}: {topic} has {partitions} partitions")
    if from_topic is not None:
        table = job.spark.read.format("kbroker").options(**topic_options(job.place, from_topic) | given).load()
    else:
        table = job.spark.read.format(table_format).options(**given).load(path)
    if where:
        table = table.where(where)
    rows, ordering = rows_of_table(table, keep_partition, order, job.clock.now_ms())
    names = [f"order_{place}" for place in range(ordering)]
    kinds = dict(rows.dtypes)
    schema = ", ".join([ROWS, *(f"{name} {kinds[name]}" for name in names)])
    target = ReplayTarget(bootstrap, topic, job_id, compression)
    placed = rows.mapInArrow(lambda batches: with_targets(partitions, batches), schema)
    # Without order columns, and among equals, content decides: a second run must find the same order.
    sorted_rows = placed.repartition(partitions, "target").sortWithinPartitions("target", *names, "ms", "key", "value")
    with job.progress("tasks"), raising_task_reasons():
        done = sorted_rows.mapInArrow(lambda batches: replay_rows(target, batches), DONE).collect()
    job.summary(
        topic=topic,
        job_id=job_id,
        sent=sum(row.sent for row in done),
        skipped=sum(row.skipped for row in done),
        partitions=len(done),
    )


if __name__ == "__main__":
    command()
