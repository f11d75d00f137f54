"""The classes that Spark calls. Pickled by value (see `register`): only pyspark is imported at the top, kbroker on use.

The logic is in other modules, which do not depend on Spark.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from kbroker.pipeline.errors import in_one_line, rows_in_one_line

WORKER_PROCESS = "kbroker.pipeline.worker_process"
# Local properties of a stream's tasks (MicroBatchExecution and StreamExecution of Spark).
BATCH_PROPERTY, QUERY_PROPERTY = "streaming.sql.batchId", "sql.streaming.queryId"


class WorkerUnusable(RuntimeError):
    """A Spark worker's interpreter lacks what the source needs; the message says what to install, and where."""


def load(module: str, s3: Mapping[str, str] | None = None) -> Any:
    """Imports a module of kbroker.pipeline and sets its S3 settings. Raises WorkerUnusable if that fails."""
    try:
        # Once per process: Spark clears the import caches before each task.
        if WORKER_PROCESS not in sys.modules and find_spec("pyarrow") is None:
            raise ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")
        loaded = import_module(f"kbroker.pipeline.{module}")
        import_module(WORKER_PROCESS).settle()
        if s3 is not None:
            import_module("kbroker.pipeline.s3_settings").use(s3)
    except ImportError as error:
        raise WorkerUnusable(
            f"format('kbroker'): a Spark worker runs {sys.executable}, which cannot import {error.name}. Install "
            "kbroker with its extra spark for that interpreter on every node, or set PYSPARK_PYTHON "
            f"(spark.pyspark.python) to one that has it before the session starts ({error})"
        ) from None
    return loaded


def _fields(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


# What a task's reader writes its port and a secret into (WorkerLink.java).
BLANK_ADDRESS = "kbroker reader at 00000 00000000000000000000000000000000"


class SplitPartition(InputPartition):
    """One task's split, pickled, so that only a process with kbroker has to load its class."""

    def __init__(self, split: Any) -> None:
        super().__init__(pickle.dumps(split))
        self.reader = BLANK_ADDRESS


def _rows(options: dict[str, str], partition: Any, s3: Mapping[str, str] | None) -> Iterator[Any]:
    """Arrow batches of one task; none where its reader takes them from shared memory."""
    rows: Iterator[Any] = load("split_reader", s3).read_split(options, pickle.loads(partition.value))
    *_, port, secret = partition.reader.split()
    return load("shared_memory").share(rows, int(port), secret) if int(port) else rows


class PlanNote(InputPartition):
    """A plan's summary, ahead of its tasks; the driver's JVM removes it. It pickles as a string."""

    def __init__(self, summary: Any) -> None:
        super().__init__(
            json.dumps(
                {
                    "objects": summary.objects,
                    "bytes": summary.bytes_read,
                    "rows": summary.rows + summary.tail_offsets,
                    "bytesSkipped": summary.bytes_skipped,
                }
            )
        )

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return str, (self.value,)


class KbrokerBatchReader(DataSourceReader):
    """One read of a fixed range of offsets, decided when Spark plans it.

    `filters`: see pushdown.py; None from Spark's plain Python API, which pushes none.
    """

    def __init__(
        self, options: dict[str, str], cores: int, filters: str | None = None, s3: Mapping[str, str] | None = None
    ) -> None:
        self.options = options
        self.cores = cores
        self.filters = filters
        self.s3 = s3

    @in_one_line
    def partitions(self) -> list[InputPartition]:
        """The tasks, planned from the bucket's manifest alone."""
        summary = load("plan.plan_summary").PlanSummary()
        bounds = load("pushdown").bounds_of(self.filters)
        planned = load("plan.batch_plan", self.s3).plan_batch(self.options, self.cores, bounds, summary)
        tasks: list[InputPartition] = [] if self.filters is None else [PlanNote(summary)]
        planned.reverse()
        while planned:  # a large plan is not held twice
            tasks.append(SplitPartition(planned.pop()))
        return tasks

    @rows_in_one_line
    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Arrow batches of one task. Spark passes None if there are no tasks."""
        if partition is None:
            return iter(())
        return _rows(self.options, partition, self.s3)


class KbrokerStreamReader(DataSourceStreamReader):
    """A stream of micro-batches. Lives in one process on the driver; copies of it read in the workers."""

    def __init__(self, options: dict[str, str], cores: int, s3: Mapping[str, str] | None = None) -> None:
        self.options = options
        self.cores = cores
        self.s3 = s3
        self._stream: Any = None
        self._request: list[Any] | None = None

    def _planner(self) -> Any:
        if self._stream is None:
            self._stream = load("stream.planner", self.s3).StreamPlanner(self.options, self.cores)
        return self._stream

    @in_one_line
    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint starts."""
        found: dict[str, Any] = self._planner().initial_offset()
        return found

    @in_one_line
    def latestOffset(self) -> dict[str, Any]:
        """Where the next micro-batch ends; or the answer to a request of the driver's JVM (KbrokerStream.java)."""
        request, self._request = self._request, None
        planner = self._planner()
        found: dict[str, Any] = planner.latest_offset() if request is None else planner.answer(request)
        return found

    @in_one_line
    def commit(self, end: Any) -> None:
        """Takes a request of the driver's JVM, which is a list. Committed offsets are ignored."""
        if isinstance(end, list):
            self._request = end

    @in_one_line
    def partitions(self, start: dict[str, Any], end: Any) -> list[InputPartition]:
        """The tasks of a micro-batch. `end` may be a list: the end offset, filters and columns."""
        more = end if isinstance(end, list) else [end]
        return [SplitPartition(split) for split in self._planner().plan(start, *more)]

    @rows_in_one_line
    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Arrow batches of one task."""
        return _rows(self.options, partition, self.s3)

    def stop(self) -> None:
        """Closes the planner's connections."""
        if self._stream is not None:
            self._stream.close()


class TaskReport(WriterCommitMessage):
    """What a task has written, pickled, so that only a process with kbroker has to load its class."""

    def __init__(self, written: Any) -> None:
        self.value = pickle.dumps(written)


def _task_report(job: bytes, batches: Iterator[Any]) -> TaskReport:
    """Writes the rows of the task that this worker runs."""
    module = load("sink.task")
    import_module(WORKER_PROCESS).keep_written_batches()
    context = TaskContext.get()
    assert context is not None
    epoch = context.getLocalProperty(BATCH_PROPERTY)
    task = module.Task(
        context.partitionId(),
        context.attemptNumber(),
        context.getLocalProperty(QUERY_PROPERTY),
        None if epoch is None else int(epoch),
    )
    return TaskReport(module.write_rows(pickle.loads(job), task, batches))


def _reported(messages: list[Any]) -> list[Any]:
    return [None if message is None else pickle.loads(message.value) for message in messages]


class KbrokerBatchWriter(DataSourceArrowWriter):
    """One write of a DataFrame. Made on the driver; copies of it write in the workers."""

    def __init__(self, options: dict[str, str], fields: list[tuple[str, str]], overwrite: bool) -> None:
        self.options = options
        job = load("sink.job").start_batch(options, fields, overwrite)
        self.job, self.transactional = pickle.dumps(job), job.checked().transactional

    @in_one_line
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """The rows of one task, as Arrow batches."""
        return _task_report(self.job, iterator)

    @in_one_line
    def commit(self, messages: list[Any]) -> None:
        """Commits what all tasks have written."""
        if self.transactional:  # otherwise nothing is imported: Spark starts a process for this call
            load("sink.job").commit(pickle.loads(self.job), _reported(messages))

    @in_one_line
    def abort(self, messages: list[Any]) -> None:
        """Aborts the write, unless its commit has been decided."""
        if self.transactional:
            load("sink.job").abort(pickle.loads(self.job), _reported(messages))


class KbrokerStreamWriter(DataSourceStreamArrowWriter):
    """The micro-batches of a stream. Made on the driver for each; copies of it write in the workers."""

    def __init__(self, options: dict[str, str], fields: list[tuple[str, str]]) -> None:
        self.options = options
        job = load("sink.job").start_stream(options, fields)
        self.job, self.transactional = pickle.dumps(job), job.checked().transactional

    @in_one_line
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """The rows of one task of a micro-batch, as Arrow batches."""
        return _task_report(self.job, iterator)

    @in_one_line
    def commit(self, messages: list[Any], batchId: int) -> None:
        """Commits a micro-batch."""
        if self.transactional:
            load("sink.job").commit(pickle.loads(self.job), _reported(messages), batchId)

    @in_one_line
    def abort(self, messages: list[Any], batchId: int) -> None:
        """Aborts a micro-batch, unless its commit has been decided."""
        if self.transactional:
            load("sink.job").abort(pickle.loads(self.job), _reported(messages), batchId)


class KbrokerDataSource(DataSource):
    """``format("kbroker")``."""

    cores = 1
    s3: Mapping[str, str] | None = None

    @classmethod
    def name(cls) -> str:
        return "kbroker"

    def _options(self) -> dict[str, str]:
        return dict(self.options)

    @in_one_line
    def schema(self) -> str:
        """The columns that the options ask for. Wrong options are refused here, when the table is loaded."""
        ddl: str = load("options").schema_ddl(self._options())
        return ddl

    @in_one_line
    def reader(self, schema: StructType) -> DataSourceReader:
        filters = schema.fields[0].metadata.get("kbroker") if schema.fields else None
        return KbrokerBatchReader(self._options_for(schema), self.cores, filters, self.s3)

    @in_one_line
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return KbrokerStreamReader(self._options_for(schema), self.cores, self.s3)

    @in_one_line
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return KbrokerBatchWriter(self._options(), _fields(schema), overwrite)

    @in_one_line
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # type: ignore[override]
        """`overwrite` is output mode complete: each micro-batch appends all rows, as in the kafka sink."""
        return KbrokerStreamWriter(self._options(), _fields(schema))

    def _options_for(self, schema: StructType) -> dict[str, str]:
        """The options, with the columns that Spark asks for."""
        options = self._options()
        columns = load("options").check_schema(_fields(schema), options)
        return {name: value for name, value in options.items() if name.lower() != "columns"} | {
            "columns": ",".join(columns)
        }
