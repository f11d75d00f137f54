"""The conversion's tasks, which write a partition each."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kbroker.exchange.bucket.bucket_export import put_kafscale_partition, put_klite_partition
from kbroker.exchange.bucket_log import ObjectFinder
from kbroker.exchange.creating_store import CreatingStore
from kbroker.exchange.kafka_log.log_export import partition_folder, write_partition_folder
from kbroker.exchange.partition_source import ExportedPartition, PartitionMoment, PartitionSource
from kbroker.exchange.server_copy import server_copy
from kbroker.pipeline.bucket_view import RETRY_SECONDS, BucketView, store_of
from kbroker.pipeline.jobs.convert_place import destination_store
from kbroker.pipeline.options import Place
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.stores.local_files import sync_directory

KAFKA_LOG, KAFSCALE, KLITE = "kafka-log", "kafscale", "klite"


class ConvertTask(NamedTuple):
    """One partition. `root`: klite's cluster root, or KafScale's namespace. `staging`, `attempts`: of a log folder."""

    place: Place
    moment: PartitionMoment
    target: str
    destination: Place
    root: str
    now_ms: int
    staging: str = ""
    attempts: str = ""


def run_convert_task(task: ConvertTask) -> ExportedPartition:
    """Writes the partition. Raises StoreError, CorruptionError, OSError."""

    def reload() -> ObjectFinder:
        return BucketView(task.place).manifest

    source = task.moment.source(store_of(task.place), reload)
    if task.target == KAFKA_LOG:
        return stage_folder(source, Path(task.staging), Path(task.attempts))
    creating = CreatingStore(destination_store(task.destination), RetryPolicy(RETRY_SECONDS))
    try:
        if task.target == KAFSCALE:
            return put_kafscale_partition(source, creating, task.root, task.now_ms)
        place = task.place
        copies = server_copy(place.url, task.destination.url, place.endpoint, place.region)
        try:
            return put_klite_partition(source, creating, task.root, copies)
        finally:
            if copies is not None:
                copies.close()
    finally:
        creating.close()


def stage_folder(
    source: PartitionSource,
    staging: Path,
    attempts: Path,
    write: Callable[[PartitionSource, Path, bytes], ExportedPartition] = write_partition_folder,
) -> ExportedPartition:
    """Writes a partition's folder, which appears in `staging` once whole. Of two attempts, the first one counts."""
    name = partition_folder(source.topic.name, source.state.partition)
    attempt, whole = attempts / f"{name}.{os.urandom(8).hex()}", staging / name
    try:
        written = write(source, attempt, source.topic.topic_id)
        try:
            os.rename(attempt, whole)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            # The other attempt may have read the partition before, or after, a broker compacted it.
            segments = sorted(whole.glob("*.log"))
            written.segments, written.first_segment = len(segments), int(segments[0].stem)
            written.bytes = sum(path.stat().st_size for path in segments)
        sync_directory(staging)
        return written
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(attempt)
