"""``kbroker import``: imports the data of another product as topics of a cluster. No broker may run on it.

Exit codes: 0 done, 1 failed (one line says why; nothing was committed), 2 usage.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from kbroker.app.config import BrokerConfig, load_config
from kbroker.app.options import OPTIONS
from kbroker.cli.offline.store_copies import copies_between
from kbroker.clock import SystemClock
from kbroker.errors import CorruptionError, StartError
from kbroker.exchange.bucket.bucket_import import BucketImport
from kbroker.exchange.bucket.bucket_source import KliteBucket, kafscale_topics, last_leader_epoch
from kbroker.exchange.import_target import ImportTarget
from kbroker.exchange.kafka_log.log_folder import open_kafka_logs
from kbroker.exchange.kafka_log.log_import import KafkaLogImport, leader_epoch_max
from kbroker.exchange.partition_upload import ImportedPartition
from kbroker.exchange.server_copy import ServerCopy
from kbroker.exchange.source_error import EpochPassed, SourceError
from kbroker.exchange.topic_import import ImportReport
from kbroker.option_values import ConfigError
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.stores.object_store import ObjectStore, StoreError
from kbroker.storage.stores.store_url import open_store
from kbroker.storage.stores.store_wrappers import RetryingStore

TARGET_OPTIONS = ("data_dir", "feature_level", "object_store", "s3_endpoint", "s3_region")
CLUSTER_OPTIONS = (*TARGET_OPTIONS, "cluster_id")
SOURCE_RETRY_SECONDS = 20.0

Command = Callable[..., None]


def cluster_options(*names: str) -> Callable[[Command], Command]:
    """Adds those options of ``serve`` that say which cluster."""

    def add(function: Command) -> Command:
        for option in reversed([option for option in OPTIONS if option.name in names]):
            given = {"default": None, "metavar": option.metavar, "help": option.help}
            function = click.option(option.flag, option.name, **given)(function)  # type: ignore[arg-type]
        return click.option("--config", "config", default=None, metavar="PATH", help="TOML file as of serve")(function)

    return add


topic_option = click.option("--topic", "topics", multiple=True, metavar="NAME", help="only this topic; can be repeated")


@click.group()
def command() -> None:
    """Topics of other products. Claims the cluster meanwhile: refused while a broker runs on it."""


@command.command("kafka-log")
@click.argument("paths", nargs=-1, required=True, metavar="LOG-DIR...",
                type=click.Path(path_type=Path, exists=True, file_okay=False))  # fmt: skip
@topic_option
@click.option("--cut-at-damage", is_flag=True, help="import a damaged log up to its first bad batch")
@click.option("--missing-partitions-empty", is_flag=True, help="create partitions that the folders lack, empty")
@cluster_options(*CLUSTER_OPTIONS)
def kafka_log(
    paths: tuple[Path, ...],
    topics: tuple[str, ...],
    cut_at_damage: bool,
    missing_partitions_empty: bool,
    **arguments: Any,
) -> None:
    """Takes the topics in the log folders (log.dirs) of a stopped Apache Kafka, with everything that they hold."""
    config = _config(arguments)

    def run() -> ImportReport:
        source = open_kafka_logs(paths)
        try:
            return _with_target(
                config,
                leader_epoch_max(source),
                lambda target: KafkaLogImport(
                    source,
                    target,
                    names=topics or None,
                    cut=cut_at_damage,
                    missing=missing_partitions_empty,
                    on_partition=_report,
                ).run(),
            )
        finally:
            source.close()

    _run(run)


@command.command()
@click.argument("source", metavar="SOURCE")
@click.option("--cluster-id", "klite_cluster_id", metavar="ID", help="klite's cluster (default: the only one there)")
@topic_option
@cluster_options(*TARGET_OPTIONS)
def klite(source: str, klite_cluster_id: str | None, topics: tuple[str, ...], **arguments: Any) -> None:
    """Takes the topics of a stopped klite from its bucket or folder, SOURCE: file:PATH or s3://bucket[/prefix]."""
    config = _config(arguments)

    def run() -> ImportReport:
        with _source(source, config) as store:
            bucket = KliteBucket(store, klite_cluster_id)
            bucket.check_idle(SystemClock().now_ms(), threading.Event().wait)
            found = bucket.topics()
            with _copies(source, config) as copies:

                def store_into(target: ImportTarget) -> ImportReport:
                    importing = BucketImport(
                        found,
                        target,
                        names=topics or None,
                        check_source=bucket.check_unchanged,
                        on_partition=_report,
                        copies=copies,
                    )
                    importing.report.notes += bucket.notes
                    known = bucket.metadata
                    return importing.run(known.next_producer_id, known.offsets) if known else importing.run()

                return _with_target(config, last_leader_epoch(found), store_into)

    _run(run)


@command.command()
@click.argument("source", metavar="SOURCE")
@click.option("--namespace", metavar="NAME", help="namespace of KafScale (default: the only one there)")
@topic_option
@cluster_options(*CLUSTER_OPTIONS)
def kafscale(source: str, namespace: str | None, topics: tuple[str, ...], **arguments: Any) -> None:
    """Takes the topics of a stopped KafScale from its bucket or folder, SOURCE: file:PATH or s3://bucket[/prefix]."""
    config = _config(arguments)

    def run() -> ImportReport:
        with _source(source, config) as store:
            found, notes = kafscale_topics(store, namespace)
            with _copies(source, config) as copies:

                def store_into(target: ImportTarget) -> ImportReport:
                    importing = BucketImport(found, target, names=topics or None, on_partition=_report, copies=copies)
                    importing.report.notes += notes
                    return importing.run()

                return _with_target(config, last_leader_epoch(found), store_into)

    _run(run)


def _config(arguments: dict[str, Any]) -> BrokerConfig:
    logging.basicConfig(level=logging.WARNING, format="kbroker: %(message)s", stream=sys.stderr)
    try:
        return load_config(arguments)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None


@contextlib.contextmanager
def _target(config: BrokerConfig, leader_epoch_max: int) -> Iterator[ImportTarget]:
    target = ImportTarget(config, SystemClock())
    clean = False
    try:
        target.open(leader_epoch_max)
        yield target
        clean = True
    finally:
        target.close(clean)


def _with_target(
    config: BrokerConfig, leader_epoch_max: int, store_into: Callable[[ImportTarget], ImportReport]
) -> ImportReport:
    """Imports into the cluster; again, with a higher broker epoch, if the data has a higher leader epoch."""
    try:
        with _target(config, leader_epoch_max) as target:
            return store_into(target)
    except EpochPassed as passed:
        click.echo(f"note: again with a broker epoch above {passed.highest}, the highest leader epoch of the data")
        with _target(config, passed.highest) as target:
            return store_into(target)


def _copies(source: str, config: BrokerConfig) -> contextlib.AbstractContextManager[ServerCopy | None]:
    return copies_between(source, config.object_store, config.s3_endpoint, config.s3_region)


@contextlib.contextmanager
def _source(url: str, config: BrokerConfig) -> Iterator[ObjectStore]:
    try:
        store = open_store(url, config.s3_endpoint, config.s3_region, create=False)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    try:
        yield RetryingStore(store, RetryPolicy(SOURCE_RETRY_SECONDS))
    finally:
        store.close()


def _run(run: Callable[[], ImportReport]) -> None:
    try:
        report = run()
    except (SourceError, CorruptionError, StartError, StoreError, OSError) as error:
        click.echo(f"kbroker: {error}", err=True)
        sys.exit(1)
    for note in report.notes:
        click.echo(f"note: {note}")
    if report.whole_topics:
        click.echo(f"{', '.join(report.whole_topics)}: as they were")
    else:
        click.echo(f"{report.committed_offsets} committed offsets")


def _report(partition: ImportedPartition) -> None:
    click.echo(
        f"{partition.topic}-{partition.partition}: offsets {partition.log_start_offset} to {partition.end_offset}, "
        f"{partition.data_bytes} bytes in {len(partition.objects)} objects"
    )
