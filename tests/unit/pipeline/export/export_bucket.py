"""A cluster's bucket in memory with values of the tests' own, and exports from it that run in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from kbroker._fast.records.records import build_batch
from kbroker.pipeline.export.plan import source_options
from kbroker.pipeline.export.run import ExportRun, ExportSettings
from kbroker.pipeline.export.table import ExportTable
from kbroker.pipeline.export.target import Destination
from kbroker.pipeline.export.task import ExportTask, SplitExport, TaskResult, export_split
from tests.unit.pipeline.cluster_bucket import PLACE, ClusterBucket

NOW = 1_700_000_000_000
HOUR_MS = 3_600_000

__all__ = ["HOUR_MS", "NOW", "ExportBucket", "exported", "settings_of"]


class ExportBucket(ClusterBucket):
    """Objects of records with given values; a record's time is NOW plus `step_ms` times its offset."""

    def add(self, topic: str, partition: int, base: int, values: Sequence[bytes | None], step_ms: int = 1) -> None:
        records = [(b"k%d" % ((base + i) % 7), value, NOW + (base + i) * step_ms, []) for i, value in enumerate(values)]
        batches = [
            build_batch(records[i : i + 50], base_offset=base + i, codec="zstd") for i in range(0, len(records), 50)
        ]
        self.klix(topic, partition, b"".join(batches))

    def numbered(self, topic: str, partition: int, base: int, count: int, step_ms: int = 1) -> None:
        """Values that tell partition and offset."""
        self.add(topic, partition, base, [b"%d/%d" % (partition, base + i) for i in range(count)], step_ms)

    def export(self, settings: ExportSettings, target: Any = None, log: Any = None) -> dict[str, Any]:
        """One run, its tasks in this process."""

        def run_tasks(tasks: Sequence[ExportTask]) -> list[TaskResult]:
            if target is not None:
                return [SplitExport(task, target).run() for task in tasks]
            return [export_split(task) for task in tasks]

        return ExportRun(settings, self.view(), run_tasks, lambda text: None, target=target, log=log).run()


def settings_of(folder: Path | str, *topics: str, table: ExportTable | None = None, **options: Any) -> ExportSettings:
    table = table or ExportTable()
    source = source_options(
        PLACE, topics or ("t",), table.source_columns(), isolation="read_uncommitted", split_bytes=4000, **options
    )
    url = folder if isinstance(folder, str) else f"file:{folder}"
    return ExportSettings(source, table, Destination(url), cores=lambda: 2)


def exported(folder: Path) -> list[dict[str, Any]]:
    """All rows, as a reader that only knows Parquet folders sees them."""
    if not folder.is_dir():
        return []
    table = ds.dataset(folder, format="parquet", partitioning="hive").to_table()
    return sorted(table.to_pylist(), key=lambda row: (row["topic"], row["partition"], row["offset"]))
