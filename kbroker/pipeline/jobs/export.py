"""``kbroker pipeline export``: topics as Parquet files or an Iceberg table. See docs/spark-export.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kbroker.pipeline.jobs.session import Job, job_options
from kbroker.pipeline.options import OptionError, Place
from kbroker.pipeline.spark_install import check_packages

ICEBERG = "iceberg:"
DECODERS = {"json": "orjson", "avro": "fastavro"}


def _numbered_files(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> dict[int, Path]:
    found = {}
    for one in given:
        number, _, path = one.partition("=")
        if not number.isdigit() or not path:
            raise click.BadParameter(f"{one}: expected ID=FILE")
        found[int(number)] = Path(path)
    return found


def _pairs(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    for one in given:
        if "=" not in one:
            raise click.BadParameter(f"{one}: expected KEY=VALUE")
    return dict(one.split("=", 1) for one in given)


_OPTIONS = (
    click.argument("topics", nargs=-1, required=True, metavar="TOPIC..."),
    click.argument("destination", metavar="DEST"),
    click.option("--values", type=click.Choice(["raw", "json", "avro"]), default="raw", show_default=True,
                 help="format of the values"),
    click.option("--schema", "schema_path", type=click.Path(path_type=Path), metavar="FILE",
                 help="of the values: Avro JSON or a Spark DDL string"),
    click.option("--confluent-header", is_flag=True, help="values begin with the schema registry's 5 bytes: skip them"),
    click.option("--writer-schema", "writers", multiple=True, callback=_numbered_files, metavar="ID=FILE",
                 help="Avro schema that values with this id are written with; repeatable"),
    click.option("--flatten", is_flag=True, help="the value's fields as columns instead of one column `value`"),
    click.option("--columns", metavar="NAMES", help="columns of the record, with commas (default: all but headers)"),
    click.option("--bad-records", type=click.Choice(["fail", "column", "file"]), default="fail", show_default=True,
                 help="values that do not decode"),
    click.option("--partition-by", type=click.Choice(["none", "day", "hour"]), default="none", show_default=True,
                 help="folders by the record's timestamp (UTC)"),
    click.option("--starting-timestamp", type=click.IntRange(0), metavar="MS", help="where the first export begins"),
    click.option("--isolation", type=click.Choice(["read_committed", "read_uncommitted"]), default="read_committed",
                 show_default=True, help="isolation level"),
    click.option("--ignore-data-loss", is_flag=True, help="continue where records were deleted before their export"),
    click.option("--compression", type=click.Choice(["zstd", "snappy", "gzip", "lz4", "none"]), default="zstd",
                 show_default=True, help="of the Parquet files"),
    click.option("--split-bytes", type=click.IntRange(1), metavar="N", help="bytes of objects per task and file"),
    click.option("--output-endpoint", metavar="URL", help="S3 endpoint of DEST (default: --s3-endpoint)"),
    click.option("--output-region", metavar="NAME", help="region of DEST (default: --s3-region)"),
    click.option("--catalog", default="default", show_default=True, metavar="NAME", help="pyiceberg's catalog"),
    click.option("--catalog-property", "properties", multiple=True, callback=_pairs, metavar="KEY=VALUE",
                 help="of the catalog, as uri or warehouse; repeatable"),
)  # fmt: skip


def _all_options(function: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command()
@_all_options
@job_options("export")
def command(job: Job, **given: Any) -> None:
    """Writes what is new in TOPICs since the last export into DEST, each record once.

    DEST is a folder, s3://bucket/prefix, or iceberg:NAMESPACE.TABLE. Reads the bucket alone; the broker may be stopped.
    """
    from kbroker.pipeline.bucket_view import BucketView, contact
    from kbroker.pipeline.export.run import ExportRun
    from kbroker.pipeline.export.task import export_split

    destination = given["destination"]
    if destination.startswith(ICEBERG):
        check_packages("pyiceberg")
    view = BucketView(job.place)
    settings = _settings(job, given)

    def run_tasks(tasks: Any) -> Any:
        records_max = sum(share.stop - share.first for task in tasks for share in task.split.shares)
        return job.run_tasks(export_split, tasks, "tasks", records_max)

    if destination.startswith(ICEBERG):
        from kbroker.pipeline.export.iceberg import IcebergRun, IcebergTable

        iceberg = IcebergTable(destination.removeprefix(ICEBERG), given["catalog"], given["properties"])
        job.summary(**IcebergRun(settings, iceberg, view, run_tasks, job.say).run())
    else:
        place = settings.destination
        contact(Place(place.url, None, place.endpoint, place.region))
        job.summary(**ExportRun(settings, view, run_tasks, job.say, clock=job.clock).run())


def _settings(job: Job, given: dict[str, Any]) -> Any:
    from kbroker.pipeline.export.plan import source_options
    from kbroker.pipeline.export.run import ExportSettings
    from kbroker.pipeline.export.target import Destination, destination_url

    table = _table(job, given)
    source = source_options(
        job.place,
        given["topics"],
        table.source_columns(),
        isolation=given["isolation"],
        starting_timestamp=given["starting_timestamp"],
        split_bytes=given["split_bytes"],
        fail_on_data_loss=not given["ignore_data_loss"],
    )
    url = given["destination"]
    if not url.startswith(ICEBERG):
        url = destination_url(url)
    destination = Destination(
        url, given["output_endpoint"] or job.place.endpoint, given["output_region"] or job.place.region
    )
    return ExportSettings(source, table, destination, given["compression"], lambda: job.cores)


def _table(job: Job, given: dict[str, Any]) -> Any:
    from kbroker.pipeline.columns import SOURCE_TYPES
    from kbroker.pipeline.export.schema import AVRO, RAW, load_schema
    from kbroker.pipeline.export.table import COLUMN, DEFAULT_COLUMNS, FAIL, ExportTable

    values, schema = given["values"], None
    if values == RAW:
        for name in ("schema_path", "writers", "flatten"):
            if given[name]:
                raise OptionError(f"--{name.removesuffix('_path').replace('writers', 'writer-schema')} needs --values")
        if given["bad_records"] != FAIL and not given["confluent_header"]:
            raise OptionError("--bad-records: raw values cannot be bad; it needs --values or --confluent-header")
    elif given["schema_path"] is None:
        raise OptionError(f"--values {values} needs --schema FILE")
    if given["writers"] and (values != AVRO or not given["confluent_header"]):
        raise OptionError("--writer-schema needs --values avro and --confluent-header, which has the id")
    columns = DEFAULT_COLUMNS
    if given["columns"] is not None:
        columns = tuple(dict.fromkeys(name.strip() for name in given["columns"].split(",")))
        unknown = [name for name in columns if name not in SOURCE_TYPES]
        if unknown:
            raise OptionError(f"--columns: no {', '.join(unknown) or 'names'}; there are {', '.join(SOURCE_TYPES)}")
    if "value" not in columns and (values != RAW or given["bad_records"] == COLUMN):
        raise OptionError("--columns leaves out value, which the other options need")
    if given["destination"].startswith(ICEBERG) and given["partition_by"] != "none" and "timestamp" not in columns:
        raise OptionError("--partition-by needs the column timestamp in an Iceberg table")
    if values != RAW:
        check_packages(DECODERS[values])  # tasks check those of the workers
        schema = load_schema(given["schema_path"], values, given["writers"], lambda text: _ddl(job, text))
    table = ExportTable(
        values,
        columns,
        schema,
        given["flatten"],
        given["confluent_header"],
        given["bad_records"],
        given["partition_by"],
    )
    table.arrow_schema()  # refuses columns that clash
    if not given["destination"].startswith(ICEBERG):
        table.check_folders()
    return table


def _ddl(job: Job, text: str) -> Any:
    _ = job.spark  # which parses DDL
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    from kbroker.pipeline.jobs.session import reason_of

    try:
        parsed = StructType.fromDDL(text)
    except PySparkException as error:
        raise OptionError(reason_of(error)) from None
    if not isinstance(parsed, StructType):
        raise OptionError(f"not columns as in 'a INT, b STRING': {text:.100}")
    return to_arrow_schema(parsed)


if __name__ == "__main__":
    command()
