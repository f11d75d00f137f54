"""Writes the rows of one task to the topic: at least once, or in a transaction that the driver ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kbroker.client.cluster_client import ClientError, ClusterClient
from kbroker.pipeline.sink.columns import Field, RecordColumns, record_columns
from kbroker.pipeline.sink.decisions import last_decision
from kbroker.pipeline.sink.errors import SinkError
from kbroker.pipeline.sink.options import SinkOptions, parse_options
from kbroker.pipeline.sink.task_producer import TaskProducer, give_back, idle_producer, new_producer
from kbroker.pipeline.sink.transactions import OpenTransaction, Transactions, connect

if TYPE_CHECKING:
    import pyarrow as pa


class Job(NamedTuple):
    """What all tasks of a write have in common, decided on the driver."""

    options: Mapping[str, str]
    fields: Sequence[Field]
    streaming: bool
    id: str | None  # of a batch job; a stream's query id comes with each task

    def checked(self) -> SinkOptions:
        """Its options. OptionError as on the driver."""
        return parse_options(self.options, streaming=self.streaming)


class Task(NamedTuple):
    """One task of a job."""

    partition: int
    attempt: int
    query_id: str | None  # of a stream
    epoch: int | None


class Written(NamedTuple):
    """What a task reports to the driver."""

    job_id: str | None
    rows: int
    task: int
    attempt: int
    transaction: OpenTransaction | None  # None: without rows, or without transactions
    decided: bool  # nothing was written: an earlier run of this micro-batch was decided


def write_rows(job: Job, task: Task, batches: Iterable[pa.RecordBatch]) -> Written:
    """Writes the rows of a task. Raises SinkError and OptionError."""
    options = job.checked()
    columns = record_columns(job.fields, options.topic)
    if options.transactional:
        return _TransactionalTask(options, columns, job, task).write(batches)
    rows = 0
    producer = idle_producer(options)
    try:
        for batch in batches:
            if batch.num_rows:
                producer.send_batch(batch, columns, options.topic)
                rows += batch.num_rows
        producer.flush()
    except BaseException:
        producer.close()  # which drops what is queued: Spark runs the task again
        raise
    give_back(producer)
    return Written(None, rows, task.partition, task.attempt, None, decided=False)


def transactional_id(options: SinkOptions, job_id: str, task: int, attempt: int) -> str:
    """The same in each run of a query, so that a task's InitProducerId aborts what an earlier run left open."""
    return f"{ids_of(options, job_id)}{task}-{attempt}"


def ids_of(options: SinkOptions, job_id: str) -> str:
    """What the transactional ids of a query or job begin with."""
    return f"{options.id_prefix}-{job_id}-"


class _TransactionalTask:
    def __init__(self, options: SinkOptions, columns: RecordColumns, job: Job, task: Task) -> None:
        self._options = options
        self._columns = columns
        self._task = task
        self._repeatable = job.streaming or options.job_id is not None
        found = task.query_id if job.streaming else job.id
        if found is None or (job.streaming and task.epoch is None):
            raise SinkError("kbroker.transactional: Spark did not tell this task its query's id and micro-batch")
        self._job_id = found
        self._epoch = task.epoch if job.streaming and task.epoch is not None else 0

    def write(self, batches: Iterable[pa.RecordBatch]) -> Written:
        client = connect(self._options)
        try:
            if self._repeatable and last_decision(client, self._job_id).commits(self._epoch):
                for _ in batches:  # Spark expects all rows to be consumed
                    pass
                return self._written(0, None, decided=True)
            return self._written_in_transaction(client, batches)
        except ClientError as error:
            raise SinkError(f"kbroker.transactional: {error}") from None
        finally:
            client.close()

    def _written_in_transaction(self, client: ClusterClient, batches: Iterable[pa.RecordBatch]) -> Written:
        """Opens nothing before the first row."""
        transactions = Transactions(client, self._options)
        rows = 0
        producer: TaskProducer | None = None
        transaction: OpenTransaction | None = None
        is_whole = False
        try:
            for batch in batches:
                if not batch.num_rows:
                    continue
                if producer is None:
                    name = transactional_id(self._options, self._job_id, self._task.partition, self._task.attempt)
                    producer = new_producer(self._options, name)
                    producer.begin()
                    transaction = transactions.opened(name)
                    if not self._repeatable and last_decision(client, self._job_id).epoch >= self._epoch:
                        raise SinkError(f"the job was aborted while task {self._task.partition} began")
                producer.send_batch(batch, self._columns, self._options.topic)
                rows += batch.num_rows
            if producer is not None:
                producer.flush()
            is_whole = True
        finally:
            if producer is not None:
                if transaction is not None and not is_whole:
                    producer.abort()
                producer.close()
        return self._written(rows, transaction, decided=False)

    def _written(self, rows: int, transaction: OpenTransaction | None, *, decided: bool) -> Written:
        return Written(self._job_id, rows, self._task.partition, self._task.attempt, transaction, decided)
