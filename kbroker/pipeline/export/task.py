"""The task of an export: decodes a split and stages Parquet files. Records never reach the JVM."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from kbroker.pipeline.export.parquet_files import ParquetFiles, Sink, WrittenFile
from kbroker.pipeline.export.table import FAIL, FILE, QUARANTINE_SCHEMA, ExportTable, quarantined, without
from kbroker.pipeline.export.target import Destination, Target, open_target
from kbroker.pipeline.export.values import Decoded, ValueDecoder
from kbroker.pipeline.plan.splits import Split
from kbroker.pipeline.split_reader import read_split

QUARANTINE_FOLDER = "_quarantine"  # below an export's folder; readers of Parquet folders leave it out


class BadRecordError(Exception):
    """A value cannot be decoded; the message names topic, partition and offset."""


@dataclass(frozen=True, slots=True)
class ExportTask:
    """One split, and where its rows go."""

    number: int
    split: Split
    source: Mapping[str, str]  # options of the reader
    table: ExportTable
    destination: Destination
    run: str
    export: int
    compression: str


@dataclass(slots=True)
class TaskResult:
    """What a task has staged."""

    files: list[WrittenFile] = field(default_factory=list)
    records: int = 0  # read, the bad ones among them
    bad: int = 0
    schema_ids: dict[int, str] = field(default_factory=dict)  # id: a record that has it


def export_split(task: ExportTask) -> TaskResult:
    """Reads a split and stages its rows. Raises BadRecordError, and what read_split and the target raise."""
    return SplitExport(task, open_target(task.destination)).run()


class SplitExport:
    """One attempt of a task."""

    def __init__(self, task: ExportTask, target: Target) -> None:
        self._task = task
        self._target = target
        self._table = task.table
        self._schema = task.table.arrow_schema()
        self._decoder = ValueDecoder(task.table.values, task.table.schema, confluent_header=task.table.confluent_header)
        # Unique per attempt: in a bucket two attempts of a task must not share a key.
        self._name = f"part-{task.number:05d}-{uuid.uuid4().hex[:8]}"
        self._result = TaskResult()

    def run(self) -> TaskResult:
        """Exports the whole split. On an error, no file stays open."""
        table, task = self._table, self._task
        files = ParquetFiles(
            self._schema, self._sink, partition_by=table.partition_by, name=self._name, compression=task.compression
        )
        bad_files = ParquetFiles(
            QUARANTINE_SCHEMA, self._quarantine_sink, name=self._name, compression=task.compression
        )
        try:
            for batch in read_split(task.source, task.split):
                self._add(batch, files, bad_files)
            self._result.files = files.close()
            for one in bad_files.close():
                path = f"{QUARANTINE_FOLDER}/{one.path}"
                self._result.files.append(WrittenFile(path, one.rows, one.bytes, one.staged))
        except BaseException:
            files.abort()
            bad_files.abort()
            raise
        return self._result

    def _sink(self, path: str) -> Sink:
        return self._target.sink(self._task.run, self._task.export, path)

    def _quarantine_sink(self, path: str) -> Sink:
        return self._target.sink(self._task.run, self._task.export, f"{QUARANTINE_FOLDER}/{path}")

    def _add(self, batch: pa.RecordBatch, files: ParquetFiles, bad_files: ParquetFiles) -> None:
        self._result.records += batch.num_rows
        decoded: Decoded | None = None
        if self._table.decodes:
            decoded = self._decoder.decode(batch.column("value"))
            self._note(batch, decoded)
        rows = self._table.rows(batch, decoded, self._schema)
        timestamps = batch.column("timestamp")
        if decoded is not None and decoded.bad and self._table.bad_records == FILE:
            bad_rows = quarantined(batch, decoded.bad)
            bad_files.add(bad_rows, bad_rows.column("timestamp"))
            rows = without(rows, decoded.bad)
            timestamps = without(batch, decoded.bad).column("timestamp")
        if rows.num_rows:
            files.add(rows, timestamps)

    def _note(self, batch: pa.RecordBatch, decoded: Decoded) -> None:
        self._result.bad += len(decoded.bad)
        for schema_id, row in decoded.schema_ids.items():
            self._result.schema_ids.setdefault(schema_id, _record_name(batch, row))
        if decoded.bad and self._table.bad_records == FAIL:
            row = min(decoded.bad)
            raise BadRecordError(
                f"{_record_name(batch, row)}: the value is {_phrase(decoded.bad[row])}; --bad-records column or file "
                "exports such records separately"
            )


def _phrase(reason: str) -> str:
    return reason if reason.startswith("not ") else f"bad: {reason}"


def _record_name(batch: pa.RecordBatch, row: int) -> str:
    topic, partition, offset = (batch.column(name)[row].as_py() for name in ("topic", "partition", "offset"))
    return f"{topic}-{partition} offset {offset}"
