"""Exports into an Iceberg table, through pyiceberg: no jar, and any catalog it supports (REST, SQL, Glue, Hive).

Tasks write data files into the table's location, where no snapshot names them. One commit of the table then adds the
files and sets the property `kbroker.export`, which holds the offsets: both or neither.
"""

from __future__ import annotations

import dataclasses
import json
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kbroker.pipeline.bucket_view import BucketView
from kbroker.pipeline.export.log import Commit, Offsets, offsets_json
from kbroker.pipeline.export.plan import plan_export
from kbroker.pipeline.export.run import ExportSettings, RunTasks, check_same, stage, staged_files, summary
from kbroker.pipeline.export.table import FILE
from kbroker.pipeline.export.target import Destination, export_folder, open_target
from kbroker.pipeline.export.task import TaskResult
from kbroker.pipeline.options import OptionError

PROPERTY = "kbroker.export"
STATE_VERSION = 1
# pyiceberg would retry by itself after another writer's commit, without checking whether that was an export of the
# same offsets. Set in this process' copy of the table's properties only.
_RETRIES = "commit.retry.num-retries"
COMMIT_TRIES = 5


@dataclass(frozen=True, slots=True)
class IcebergTable:
    """Where the table is."""

    name: str  # namespace.table
    catalog: str
    properties: dict[str, str]


class IcebergError(Exception):
    """The catalog refused, or another run has continued the export; the message says which."""


class IcebergRun:
    """A run into a table. Raises as ExportRun does, and IcebergError."""

    def __init__(
        self,
        settings: ExportSettings,
        iceberg: IcebergTable,
        view: BucketView,
        run_tasks: RunTasks,
        say: Callable[[str], None],
    ) -> None:
        if settings.table.bad_records == FILE:
            raise OptionError("--bad-records file: an Iceberg table has no place for such a file; use column")
        self._settings = settings
        self._iceberg = iceberg
        self._view = view
        self._run_tasks = run_tasks
        self._say = say
        self._run = uuid.uuid4().hex

    def run(self) -> dict[str, Any]:
        """Exports what is new; the summary."""
        from pyiceberg.exceptions import RESTError, ValidationException

        try:
            return self._export()
        except (RESTError, ValidationException, ValueError) as error:
            if isinstance(error, OptionError):
                raise
            raise IcebergError(f"{self._iceberg.name}: {type(error).__name__}: {error}") from error

    def _export(self) -> dict[str, Any]:
        table = self._open()
        before = _state(table)
        if before is not None:
            self._check(before)
        known: Offsets = before.offsets if before is not None else {}
        plan = plan_export(self._view, self._settings.source, known, self._settings.cores)
        if not plan.ranges:
            return self._summary(None, plan, [])
        export = before.export + 1 if before is not None else 1
        self._say(f"export {export} into {self._iceberg.name}: {len(plan.splits)} tasks")
        place = f"{table.location().rstrip('/')}/data/kbroker-{self._run}"
        given = self._settings.destination
        destination = Destination(_store_url(place), given.endpoint, given.region)
        target = open_target(destination)
        settings = dataclasses.replace(self._settings, destination=destination)
        results = stage(settings, plan, before, self._run, export, self._run_tasks, target)
        target.publish(self._run, export, staged_files(results))
        seen = set(before.body["schema_ids"]) if before is not None else set()
        state = {
            "version": STATE_VERSION,
            "run": self._run,
            "export": export,
            "cluster": self._view.cluster_id,
            "table": settings.table.identity(),
            "offsets": offsets_json(plan.offsets),
            "schema_ids": sorted(seen.union(*(result.schema_ids for result in results))),
        }
        files = [f"{place}/{export_folder(export)}/{path}" for path, _ in staged_files(results)]
        self._commit(table, before, state, files)
        return self._summary(export, plan, results)

    def _summary(self, export: int | None, plan: Any, results: list[TaskResult]) -> dict[str, Any]:
        return summary(export, plan, results, self._settings) | {"destination": f"iceberg:{self._iceberg.name}"}

    def _open(self) -> Any:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError

        # Not all S3-compatible stores take a checksum that follows the body; AWS itself does not need it.
        os.environ.setdefault("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
        catalog = load_catalog(self._iceberg.catalog, **self._iceberg.properties)
        try:
            return catalog.load_table(self._iceberg.name)
        except NoSuchTableError:
            pass
        namespace = self._iceberg.name.rpartition(".")[0]
        if not namespace:
            raise OptionError(f"iceberg:{self._iceberg.name}: expected iceberg:NAMESPACE.TABLE")
        try:
            catalog.create_namespace(namespace)
        except NamespaceAlreadyExistsError:
            pass
        table = catalog.create_table(self._iceberg.name, schema=self._settings.table.arrow_schema())
        partition_by = self._settings.table.partition_by
        if partition_by != "none":
            with table.update_spec() as spec:
                spec.add_field("timestamp", partition_by, f"timestamp_{partition_by}")
        return table

    def _check(self, before: Commit) -> None:
        if before.body["cluster"] != self._view.cluster_id:
            raise OptionError(f"{self._iceberg.name} holds an export of cluster {before.body['cluster']}")
        check_same(self._iceberg.name, before.body["table"], self._settings.table)

    def _commit(self, table: Any, before: Commit | None, state: dict[str, Any], files: list[str]) -> None:
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

        for tries_left in reversed(range(COMMIT_TRIES)):
            table.refresh()
            now = _state(table)
            if now is not None and now.run == self._run:
                return  # an earlier try, whose outcome was unknown, had succeeded
            if (now.run if now else None) != (before.run if before else None):
                raise IcebergError(
                    f"another export into {self._iceberg.name} has committed (run {now.run if now else 'removed'}); "
                    "this one adds nothing. Start one at a time"
                )
            table.metadata.properties[_RETRIES] = "0"
            try:
                with table.transaction() as transaction:
                    transaction.set_properties(**{PROPERTY: json.dumps(state, separators=(",", ":"))})
                    if files:
                        transaction.add_files(
                            files, {"kbroker.export": str(state["export"])}, check_duplicate_files=False
                        )
                return
            except (CommitFailedException, CommitStateUnknownException, OSError) as error:
                # OSError: the store failed while metadata was written, after all the work of the tasks.
                if isinstance(error, OSError) and not tries_left:
                    raise
                self._say(f"committing to {self._iceberg.name} again: {error}")
        raise IcebergError(f"{self._iceberg.name}: lost {COMMIT_TRIES} commits to other writers")


def _state(table: Any) -> Commit | None:
    """The table's export state."""
    text = table.metadata.properties.get(PROPERTY)
    if text is None:
        return None
    try:
        body = json.loads(text)
        if body["version"] != STATE_VERSION:
            raise IcebergError(f"table property {PROPERTY}: version {body['version']}, written by a newer kbroker")
        return Commit(body["export"], body["run"], body)
    except (ValueError, KeyError, TypeError):
        raise IcebergError(f"table property {PROPERTY}: not the state of an export") from None


def _store_url(location: str) -> str:
    """A table's location as the URL of an object store."""
    scheme, found, rest = location.partition("://")
    if not found:
        return location if location.startswith("file:") else f"file:{location}"
    return f"s3://{rest}" if scheme in ("s3a", "s3n") else location
