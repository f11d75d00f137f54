"""Exports into an Iceberg table of a SQL catalog in a folder, without Spark."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

from kbroker.pipeline.export.iceberg import COMMIT_TRIES, PROPERTY, IcebergError, IcebergRun, IcebergTable
from kbroker.pipeline.export.table import ExportTable
from kbroker.pipeline.export.task import ExportTask, TaskResult, export_split
from kbroker.pipeline.options import OptionError
from tests.unit.pipeline.export.export_bucket import HOUR_MS, ExportBucket, settings_of


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> ExportBucket:
    made = ExportBucket()
    monkeypatch.setattr("kbroker.pipeline.bucket_view.store_of", lambda place: made.store)
    monkeypatch.setattr("kbroker.pipeline.object_batches.store_of", lambda place: made.store)
    made.topic("t", 1)
    return made


class Catalog:
    """A catalog, and exports from a bucket into its table db.t."""

    def __init__(self, folder: Path, bucket: ExportBucket, **table: Any) -> None:
        (folder / "warehouse").mkdir()
        self.properties = {
            "type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse",
        }  # fmt: skip
        self.folder = folder
        self.bucket = bucket
        self.settings = settings_of(folder, table=ExportTable(**table))

    def run(self, run_tasks: Any = None, **changes: Any) -> dict[str, Any]:
        def tasks_here(tasks: Sequence[ExportTask]) -> list[TaskResult]:
            return [export_split(task) for task in tasks]

        settings = dataclasses.replace(self.settings, **changes)
        iceberg = IcebergTable("db.t", "test", self.properties)
        return IcebergRun(settings, iceberg, self.bucket.view(), run_tasks or tasks_here, lambda text: None).run()

    def table(self) -> Any:
        return load_catalog("test", **self.properties).load_table("db.t")

    def offsets(self, **scan: Any) -> list[int]:
        return sorted(self.table().scan(**scan).to_arrow().column("offset").to_pylist())

    def data_files(self) -> list[Path]:
        return list(self.folder.rglob("*.parquet"))


def test_each_run_adds_what_is_new(bucket: ExportBucket, tmp_path: Path) -> None:
    catalog = Catalog(tmp_path, bucket, partition_by="day")
    bucket.numbered("t", 0, 0, 300, step_ms=HOUR_MS // 4)
    assert catalog.run()["records"] == 300
    assert catalog.offsets() == list(range(300))
    assert catalog.run()["export"] is None
    bucket.numbered("t", 0, 300, 50, step_ms=HOUR_MS // 4)
    summary = catalog.run()
    assert (summary["export"], summary["records"], summary["destination"]) == (2, 50, "iceberg:db.t")
    assert catalog.offsets() == list(range(350))
    days = {str(row["partition"]["timestamp_day"]) for row in catalog.table().inspect.files().to_pylist()}
    assert days == {"2023-11-14", "2023-11-15", "2023-11-16", "2023-11-17", "2023-11-18"}
    one_day = catalog.table().scan(row_filter="timestamp >= '2023-11-18T00:00:00+00:00'")
    assert sum(task.file.record_count for task in one_day.plan_files()) == one_day.to_arrow().num_rows == 54


def test_a_killed_run_adds_nothing_and_the_next_adds_all(
    bucket: ExportBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    catalog = Catalog(tmp_path, bucket)
    bucket.numbered("t", 0, 0, 100)

    def killed(*given: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(IcebergRun, "_commit", killed)
        with pytest.raises(Killed):
            catalog.run()
    assert catalog.offsets() == []
    assert catalog.run()["records"] == 100
    assert catalog.offsets() == list(range(100))

    def failing(tasks: Sequence[ExportTask]) -> list[TaskResult]:
        export_split(tasks[0])
        raise OSError("no space left")

    bucket.numbered("t", 0, 100, 100)
    files = len(catalog.data_files())
    with pytest.raises(OSError, match="no space"):
        catalog.run(failing)
    assert len(catalog.data_files()) == files


def test_one_of_two_concurrent_runs_adds_its_rows(bucket: ExportBucket, tmp_path: Path) -> None:
    catalog = Catalog(tmp_path, bucket)
    bucket.numbered("t", 0, 0, 100)

    def overtaken(tasks: Sequence[ExportTask]) -> list[TaskResult]:
        assert catalog.run()["records"] == 100
        return [export_split(task) for task in tasks]

    with pytest.raises(IcebergError, match=r"another export into db\.t has committed"):
        catalog.run(overtaken)
    assert catalog.offsets() == list(range(100))


def test_a_lost_commit_is_retried(bucket: ExportBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that lost against another writer is made again; one whose answer was lost is not."""
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = Catalog(tmp_path, bucket)
    bucket.numbered("t", 0, 0, 100)
    catalog.run()
    bucket.numbered("t", 0, 100, 50)
    commit_table = SqlCatalog.commit_table
    calls: list[str] = []

    def racing(self: Any, table: Any, requirements: Any, updates: Any) -> Any:
        calls.append("commit")
        if len(calls) == 1:  # another writer's commit goes first
            other = catalog.table().transaction()
            other.set_properties(other="writer")
            with monkeypatch.context() as patch:
                patch.setattr(SqlCatalog, "commit_table", commit_table)
                other.commit_transaction()
            raise CommitFailedException("another writer was first")
        if len(calls) == 2:
            commit_table(self, table, requirements, updates)
            raise CommitStateUnknownException("timed out")
        raise AssertionError("committed twice")

    monkeypatch.setattr(SqlCatalog, "commit_table", racing)
    catalog.run()
    assert len(calls) == 2
    assert catalog.offsets() == list(range(150))
    assert catalog.table().properties["other"] == "writer"


@pytest.mark.parametrize("failures", [1, COMMIT_TRIES])
def test_a_store_failure_while_metadata_is_written_adds_all_rows_or_none(
    bucket: ExportBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """Once: the commit is made again, with the files that are there. Always: the store's own error, and no rows."""
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = Catalog(tmp_path, bucket)
    bucket.numbered("t", 0, 0, 100)
    catalog.run()
    bucket.numbered("t", 0, 100, 50)
    write, calls = SqlCatalog._write_metadata, []

    def failing(metadata: Any, io: Any, metadata_path: str) -> None:
        calls.append(metadata_path)
        if len(calls) <= failures:
            raise OSError("CompleteMultipartUpload: bad request")
        write(metadata, io, metadata_path)

    monkeypatch.setattr(SqlCatalog, "_write_metadata", staticmethod(failing))
    if failures == COMMIT_TRIES:
        with pytest.raises(OSError, match="CompleteMultipartUpload"):
            catalog.run()
        assert catalog.offsets() == list(range(100))
    catalog.run()
    assert catalog.offsets() == list(range(150))
    assert len(calls) == failures + 1


def test_a_table_refuses_what_it_cannot_hold(bucket: ExportBucket, tmp_path: Path) -> None:
    catalog = Catalog(tmp_path, bucket)
    bucket.numbered("t", 0, 0, 10)
    catalog.run()
    with pytest.raises(OptionError, match="column key"):
        catalog.run(table=ExportTable(columns=("topic", "partition", "offset")))
    with pytest.raises(OptionError, match="no place for such a file"):
        catalog.run(table=ExportTable(bad_records="file"))
    with catalog.table().transaction() as transaction:
        transaction.set_properties(**{PROPERTY: "{}"})
    with pytest.raises(IcebergError, match="not the state of an export"):
        catalog.run()
