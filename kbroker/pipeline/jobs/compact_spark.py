"""The compact job's two passes on Spark: keys are joined by a shuffle, everything else stays in Python.

First pass, a task per slice: rows (slice, partition, hash of a key, its newest offset in the slice). A sort by hash
finds each key's newest offset over all slices. Second pass, a group per slice: the newest offsets of its keys, with
which it reads its objects again and stores what stays. Only results come to the driver.
"""

from __future__ import annotations

import contextlib
import json
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kbroker.pipeline import s3_settings
from kbroker.pipeline.bucket_view import store_of
from kbroker.pipeline.jobs.compact_plan import PartitionPlan, Slice, SliceResult, SliceScan, SliceTask
from kbroker.pipeline.jobs.compact_tasks import UNPLACED, CompactRules, scan_slice, write_slice
from kbroker.pipeline.jobs.session import Job, JobError, reason_of
from kbroker.pipeline.options import Place
from kbroker.pipeline.worker_process import settle
from kbroker.storage.formats.object_keys import ObjectKeys

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

SCANNED = "slice int, partition int, low long, high long, newest long, scan binary"
STORED = "slice int, result binary"
ROWS_MAX = 256 * 1024  # of one Arrow batch
GROUPS_SPREAD = 3  # shuffle partitions per slice, so that few slices share one
PARTITIONS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class SharedWork:
    """What every task is sent."""

    place: Place
    cluster_id: str
    rules: CompactRules
    plans: dict[int, PartitionPlan]
    slices: tuple[Slice, ...]
    s3: Mapping[str, str]  # settings of the driver


class CompactPasses:
    """Both passes over some slices; `close` frees what Spark keeps between them."""

    def __init__(self, job: Job, work: SharedWork) -> None:
        self._job = job
        self._work = work
        self._shared = job.spark.sparkContext.broadcast(pickle.dumps(work))
        self._scanned: DataFrame | None = None

    def scan(self) -> dict[int, SliceScan]:
        """First pass. Raises JobError."""
        spark, shared = self._job.spark, self._shared
        count = len(self._work.slices)

        def scan(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
            return scan_rows(pickle.loads(shared.value), batches)

        self._scanned = spark.range(0, count, 1, count).mapInArrow(scan, SCANNED).persist()
        with self._job.progress("tasks of the first pass"), raising_task_reasons():
            rows = self._scanned.where("scan is not null").select("scan").collect()
        found = [pickle.loads(bytes(row.scan)) for row in rows]
        return {scan.number: scan for scan in found}

    def write(self, tasks: Sequence[SliceTask]) -> dict[int, SliceResult]:
        """Second pass, over slices that were scanned. Raises JobError."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        spark, shared = self._job.spark, self._shared
        assert self._scanned is not None, "nothing was scanned"
        todo = spark.sparkContext.broadcast(pickle.dumps({task.slice.number: task for task in tasks}))
        same_key = Window.partitionBy("partition", "low", "high")
        newest = F.max("newest").over(same_key)
        keys = self._scanned.where("scan is null").withColumn("newest", newest).where(f"newest > {UNPLACED}")
        wanted = keys.select("slice", "low", "high", "newest")
        # Slices without keys need the second pass as well.
        numbers = [(task.slice.number, 0, 0, UNPLACED) for task in tasks]
        marks = spark.createDataFrame(numbers, "slice int, low long, high long, newest long")
        shuffles = min(GROUPS_SPREAD * len(tasks), PARTITIONS_MAX)

        def write(rows: pa.Table) -> pa.Table:
            return write_rows(pickle.loads(shared.value), pickle.loads(todo.value), rows)

        with self._job.progress("tasks of the second pass"), raising_task_reasons():
            stored = wanted.unionAll(marks).repartition(shuffles, "slice").groupBy("slice")
            found = [pickle.loads(bytes(row.result)) for row in stored.applyInArrow(write, STORED).collect()]
        todo.destroy()
        results = {result.number: result for result in found if result is not None}
        if results.keys() != {task.slice.number for task in tasks}:
            raise JobError("Spark lost results of tasks: nothing was proposed")
        return results

    def close(self) -> None:
        """Frees what Spark keeps."""
        if self._scanned is not None:
            self._scanned.unpersist()
        self._shared.destroy()


@contextlib.contextmanager
def raising_task_reasons() -> Iterator[None]:
    """On the driver: turns a failed query into a JobError with the reason that its task gave."""
    try:
        yield
    except Exception as error:
        raise JobError(reason_of(error)) from error


@contextlib.contextmanager
def giving_task_reason() -> Iterator[None]:
    """In a task: raises what goes wrong in a form in which the driver finds the reason."""
    try:
        yield
    except Exception as error:
        reason = str(error) if type(error).__module__.startswith("kbroker.") else f"{type(error).__name__}: {error}"
        raise RuntimeError("kbroker task failed: " + json.dumps(reason)) from error  # as session.reason_of finds it


def scan_rows(work: SharedWork, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of the first pass, of the slices whose numbers are in `batches`."""
    settle()
    s3_settings.use(work.s3)
    for batch in batches:
        for number in batch.column(0).to_pylist():
            item = work.slices[number]
            with giving_task_reason():
                store = store_of(work.place)
                scan, (low, high, newest) = scan_slice(store, work.rules, work.plans[item.partition], item)
            for start in range(0, len(low), ROWS_MAX):
                part = slice(start, start + ROWS_MAX)
                yield _rows(item, low[part], high[part], newest[part], None)
            none = np.zeros(1, np.int64)
            yield _rows(item, none, none, none, pickle.dumps(scan))


def _rows(item: Slice, low: np.ndarray, high: np.ndarray, newest: np.ndarray, scan: bytes | None) -> pa.RecordBatch:
    import pyarrow as pa

    count = len(low)
    columns: dict[str, Any] = {
        "slice": pa.array(np.full(count, item.number, np.int32)),
        "partition": pa.array(np.full(count, item.partition, np.int32)),
        "low": pa.array(low),
        "high": pa.array(high),
        "newest": pa.array(newest),
        "scan": pa.array([scan], pa.binary()) if scan is not None else pa.nulls(count, pa.binary()),
    }
    return pa.RecordBatch.from_pydict(columns)


def write_rows(work: SharedWork, tasks: dict[int, SliceTask], rows: pa.Table) -> pa.Table:
    """The second pass over the slice of all these rows; no result for a slice without a task."""
    import pyarrow as pa

    settle()
    s3_settings.use(work.s3)
    number = rows.column("slice")[0].as_py()
    result = None
    task = tasks.get(number)
    if task is not None:
        low, high, newest = (rows.column(name).to_numpy() for name in ("low", "high", "newest"))
        keys = newest > UNPLACED
        plan = work.plans[task.slice.partition]
        with giving_task_reason():
            store = store_of(work.place)
            found = (low[keys], high[keys], newest[keys])
            result = write_slice(store, ObjectKeys(work.cluster_id), work.rules, plan, task, found)
    return pa.table({"slice": pa.array([number], pa.int32()), "result": pa.array([pickle.dumps(result)], pa.binary())})
