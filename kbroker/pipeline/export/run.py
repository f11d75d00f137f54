"""One run of an export: claim, plan, tasks, commit, publish. Knows nothing of Spark: the caller runs the tasks.

A run that ends at any point leaves either nothing of its rows or, once the commit record is written, all of them:
the next run first publishes what this one has not.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kbroker.clock import Clock, SystemClock
from kbroker.pipeline.bucket_view import BucketView
from kbroker.pipeline.export.log import Commit, ExportLog, Offsets, offsets_json
from kbroker.pipeline.export.plan import ExportPlan, plan_export
from kbroker.pipeline.export.table import ExportTable, differences
from kbroker.pipeline.export.target import (
    STATE_FOLDER,
    Destination,
    Target,
    destination_url,
    export_folder,
    open_target,
)
from kbroker.pipeline.export.task import ExportTask, TaskResult
from kbroker.pipeline.options import OptionError
from kbroker.storage.stores.object_store import StoreError

RunTasks = Callable[[Sequence[ExportTask]], list[TaskResult]]


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """The settings of a run."""

    source: dict[str, str]  # options of the reader
    table: ExportTable
    destination: Destination
    compression: str = "zstd"
    cores: Callable[[], int] = lambda: 1  # called after all options are checked: it starts a session


def committed_files(url: str, endpoint: str | None = None, region: str | None = None) -> list[str]:
    """The Parquet files of all published exports at a destination, to be read together: a view that never changes
    under its reader. Raises OptionError, StoreError, ExportLogError."""
    url = destination_url(url)
    destination = Destination(url, endpoint, region)
    log = ExportLog(destination.store(STATE_FOLDER, create=False), "reader", SystemClock())
    base = url.removeprefix("file:").rstrip("/")
    return [
        f"{base}/{export_folder(commit.export)}/{file['path']}"
        for commit in log.commits()
        for file in commit.body["files"]
        if not file["path"].startswith("_")
    ]


class ExportRun:
    """A run into files. Raises what plan_export and tasks raise, ExportLogError, TargetError, StoreError."""

    def __init__(
        self,
        settings: ExportSettings,
        view: BucketView,
        run_tasks: RunTasks,
        say: Callable[[str], None],
        *,
        clock: Clock | None = None,
        target: Target | None = None,
        log: ExportLog | None = None,
    ) -> None:
        self._settings = settings
        self._view = view
        self._run_tasks = run_tasks
        self._say = say
        self._run = uuid.uuid4().hex
        destination = settings.destination
        self._target = target if target is not None else open_target(destination)
        self._log = log or ExportLog(destination.store(STATE_FOLDER), self._run, clock or SystemClock())

    def run(self) -> dict[str, Any]:
        """Exports what is new; the summary."""
        log = self._log
        log.load()
        before = log.last
        if before is not None:
            self._check(before)
        known: Offsets = before.offsets if before is not None else {}
        plan = plan_export(self._view, self._settings.source, known, self._settings.cores)
        export = before.export + 1 if before is not None else 1
        if not plan.ranges and log.published:
            return summary(None, plan, [], self._settings)
        log.claim()
        if before is not None and not log.published:
            self._say(f"publishing export {before.export}, which an earlier run committed")
            self._publish(before)
        self._target.discard()
        if not plan.ranges:
            return summary(None, plan, [], self._settings)
        results = self._stage(plan, export)
        commit = log.commit(export, self._body(before, plan, results))
        self._publish(commit)
        self._target.discard()
        return summary(export, plan, results, self._settings)

    def _check(self, before: Commit) -> None:
        if before.body["cluster"] != self._view.cluster_id:
            raise OptionError(
                f"{self._settings.destination.url} holds an export of cluster {before.body['cluster']}, not of "
                f"{self._view.cluster_id}"
            )
        check_same(self._settings.destination.url, before.body["table"], self._settings.table)

    def _stage(self, plan: ExportPlan, export: int) -> list[TaskResult]:
        offsets = sum(stop - first for first, stop in plan.ranges.values())
        self._say(
            f"export {export}: at most {offsets} records of {len(plan.ranges)} partitions in {len(plan.splits)} tasks"
        )
        return stage(self._settings, plan, self._log.last, self._run, export, self._run_tasks, self._target)

    def _body(self, before: Commit | None, plan: ExportPlan, results: list[TaskResult]) -> dict[str, Any]:
        seen = set(before.body["schema_ids"]) if before is not None else set()
        return {
            "cluster": self._view.cluster_id,
            "table": self._settings.table.identity(),
            "offsets": offsets_json(plan.offsets),
            "files": [
                {"path": file.path, "rows": file.rows, "bytes": file.bytes, "staged": file.staged}
                for result in results
                for file in result.files
            ],
            "records": sum(result.records for result in results),
            "bad": sum(result.bad for result in results),
            "schema_ids": sorted(seen.union(*(result.schema_ids for result in results))),
        }

    def _publish(self, commit: Commit) -> None:
        files = [(file["path"], file["staged"]) for file in commit.body["files"]]
        self._target.publish(commit.run, commit.export, files)
        self._log.done()


def stage(
    settings: ExportSettings,
    plan: ExportPlan,
    before: Commit | None,
    run: str,
    export: int,
    run_tasks: RunTasks,
    target: Target,
) -> list[TaskResult]:
    """Runs the tasks of a plan, which stage files that are ready to be published. On failure, none are left."""
    tasks = [
        ExportTask(
            number, split, settings.source, settings.table, settings.destination, run, export, settings.compression
        )
        for number, split in enumerate(plan.splits)
    ]
    try:
        results = run_tasks(tasks)
        check_schema_ids(settings.table, before, results)
        target.gather(run, staged_files(results))
    except Exception:
        # The next run removes what cannot be removed now; this run's first error is the one to raise.
        with contextlib.suppress(StoreError, OSError):
            target.discard()
        raise
    return results


def staged_files(results: list[TaskResult]) -> list[tuple[str, dict[str, Any]]]:
    """What tasks have staged, as targets take it."""
    return [(file.path, file.staged) for result in results for file in result.files]


def check_same(where: str, before: dict[str, Any], table: ExportTable) -> None:
    """Raises OptionError if the existing table differs from the one asked for."""
    found = differences(before, table.identity())
    if found:
        raise OptionError(
            f"{where} holds a table that differs: {'; '.join(found)}. Give the same options and schema, or export to "
            "another destination"
        )


def check_schema_ids(table: ExportTable, before: Commit | None, results: list[TaskResult]) -> None:
    """Raises OptionError if Avro values were written with several schemas, and only one is known."""
    if table.schema is None or table.schema.avro is None or table.schema.writers is not None:
        return
    seen: dict[int, str] = dict.fromkeys(before.body["schema_ids"], "exported before") if before else {}
    for result in results:
        for number, record in result.schema_ids.items():
            seen.setdefault(number, record)
    if len(seen) > 1:
        listed = ", ".join(f"{number} ({record})" for number, record in sorted(seen.items()))
        raise OptionError(
            f"the values are written with {len(seen)} schemas: ids {listed}. Give each with --writer-schema ID=FILE; "
            "--schema is the one they are read as"
        )


def summary(
    export: int | None, plan: ExportPlan, results: list[TaskResult], settings: ExportSettings
) -> dict[str, Any]:
    """The summary of the job; `export` is None if there was nothing new."""
    files = [file for result in results for file in result.files]
    bad = sum(result.bad for result in results)
    return {
        "destination": settings.destination.url,
        "export": export,
        "records": sum(result.records for result in results),
        "bad_records": bad,
        "files": len(files),
        "bytes": sum(file.bytes for file in files),
        "tasks": len(plan.splits),
        "offsets": {f"{topic}-{partition}": offset for (topic, _, partition), offset in sorted(plan.offsets.items())},
    }
