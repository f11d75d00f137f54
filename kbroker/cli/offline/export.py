"""``kbroker export``: writes topics of a cluster in the format of another product. The bucket does not change.

Exit codes: 0 done, 1 failed (one line says why), 2 usage.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from kbroker.cli.numbers import Integer
from kbroker.cli.offline.bucket import Bucket, Place
from kbroker.cli.offline.object import failing_with, place_options
from kbroker.cli.offline.store_copies import copies_between
from kbroker.clock import SystemClock
from kbroker.cluster.image import MetadataImage
from kbroker.exchange.bucket.bucket_export import BucketExport
from kbroker.exchange.kafka_log.cluster_metadata import read_cluster_metadata
from kbroker.exchange.kafka_log.log_export import KafkaLogExport, KafkaNode
from kbroker.exchange.partition_source import ExportedPartition, ExportError
from kbroker.storage.stores.store_url import folder_of, open_store


def _folder(context: click.Context, parameter: click.Parameter, value: str) -> Path:
    try:
        return folder_of(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.group()
def command() -> None:
    """Topics for other products. Reads the bucket only; of a running broker, what it has flushed."""


@command.command("kafka-log")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.argument("path", callback=_folder)
@click.option("--ids-from", type=click.Path(path_type=Path, exists=True, file_okay=False), metavar="LOG-DIR",
              help="log folder of a Kafka with such topics: write partition folders with its ids")  # fmt: skip
@click.option(
    "--node-id", type=Integer(0), default=1, show_default=True, help="node.id of the Kafka to start on it"
)
@click.option("--kafka-cluster-id", metavar="ID", help="cluster.id of that Kafka (default: this cluster's)")
@click.option("--unclean", is_flag=True, help="let Kafka check every batch when it starts")
@place_options
def kafka_log(
    place: Place,
    topics: tuple[str, ...],
    path: Path,
    ids_from: Path | None,
    node_id: int,
    kafka_cluster_id: str | None,
    unclean: bool,
) -> None:
    """Writes TOPICs into the new folder PATH as an Apache Kafka log folder that Kafka 4.0 or later starts on."""
    with failing_with(1):
        bucket = Bucket(place)
        try:
            topic_images = bucket.load_topics()
            ids = None if ids_from is None else _ids_of(ids_from, topic_images, topics)
            export = KafkaLogExport(
                bucket.store,
                bucket.load_manifest(),
                topic_images,
                path,
                ids=ids,
                clean=not unclean,
                on_partition=_report,
                reload=bucket.load_manifest,
            )
            node = KafkaNode(kafka_cluster_id or bucket.keys.cluster_id, node_id)
            export.run(list(dict.fromkeys(topics)), node, SystemClock().now_ms())
        except (ExportError, OSError) as error:
            click.echo(f"kbroker: {error}", err=True)
            sys.exit(1)


@command.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.argument("destination", metavar="DEST")
@click.option("--klite-cluster-id", metavar="ID", help="cluster that klite is to find (default: this cluster's)")
@place_options
def klite(place: Place, topics: tuple[str, ...], destination: str, klite_cluster_id: str | None) -> None:
    """Writes TOPICs into DEST, file:PATH or s3://bucket[/prefix], as a cluster that klite starts on."""

    def run(bucket: Bucket, export: BucketExport) -> None:
        export.to_klite(list(dict.fromkeys(topics)), klite_cluster_id or bucket.keys.cluster_id)

    _export_bucket(place, destination, run)


@command.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.argument("destination", metavar="DEST")
@click.option("--namespace", default="default", show_default=True, help="namespace of KafScale")
@place_options
def kafscale(place: Place, topics: tuple[str, ...], destination: str, namespace: str) -> None:
    """Writes TOPICs into DEST, file:PATH or s3://bucket[/prefix], as segments and indexes of KafScale."""

    def run(bucket: Bucket, export: BucketExport) -> None:
        export.to_kafscale(list(dict.fromkeys(topics)), namespace, SystemClock().now_ms())

    _export_bucket(place, destination, run)


def _export_bucket(place: Place, destination: str, run: Callable[[Bucket, BucketExport], None]) -> None:
    with failing_with(1):
        bucket = Bucket(place)
        try:
            store = open_store(destination, place.endpoint, place.region, create=True)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        try:
            manifest, topics = bucket.load_manifest(), bucket.load_topics()
            with copies_between(place.url, destination, place.endpoint, place.region) as copies:
                run(bucket, BucketExport(bucket.store, manifest, topics, store, _report, bucket.load_manifest, copies))
        except (ExportError, ValueError, OSError) as error:
            click.echo(f"kbroker: {error}", err=True)
            sys.exit(1)
        finally:
            store.close()


def _ids_of(log_folder: Path, images: MetadataImage, names: Sequence[str]) -> dict[str, bytes]:
    """Topic ids of the Kafka on that folder, by name. ExportError where it has other partitions than the export."""
    metadata = read_cluster_metadata(log_folder)
    if metadata is None:
        raise ExportError(f"{log_folder} has no __cluster_metadata-0: it is not the log folder of a KRaft controller")
    for topic in metadata.topics.values():
        ours = images.by_name.get(topic.name)
        if topic.name in names and ours is not None and len(topic.partitions) != ours.partitions:
            raise ExportError(f"{topic.name} has {len(topic.partitions)} partitions there and {ours.partitions} here")
    return {topic.name: topic.topic_id for topic in metadata.topics.values()}


def _report(partition: ExportedPartition) -> None:
    click.echo(
        f"{partition.topic}-{partition.partition}: offsets {partition.log_start_offset} to {partition.end_offset}, "
        f"{partition.bytes} bytes in {partition.segments} files"
    )
