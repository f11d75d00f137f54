"""The driver's part of a write: checks at its start; commit or abort of what the tasks have written."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from kbroker.client.cluster_client import ClientError
from kbroker.clock import SystemClock
from kbroker.pipeline.options import OptionError
from kbroker.pipeline.sink.columns import Field, record_columns
from kbroker.pipeline.sink.commit import JobCommit
from kbroker.pipeline.sink.errors import SinkError
from kbroker.pipeline.sink.options import SinkOptions, parse_options
from kbroker.pipeline.sink.producer import SinkProducer
from kbroker.pipeline.sink.task import Job, Written
from kbroker.pipeline.sink.transactions import connect

BATCH_EPOCH = 0


def start_batch(given: Mapping[str, str], fields: Sequence[Field], overwrite: bool) -> Job:
    """A checked batch job. OptionError for what is wrong; SinkError if no broker answers."""
    options = parse_options(given, streaming=False)
    if overwrite:
        raise OptionError("Save mode Overwrite not allowed for kbroker. Allowed save mode is Append.")
    record_columns(fields, options.topic)
    producer = SinkProducer(options)
    try:
        producer.check_broker()
    finally:
        producer.close()
    return Job(dict(given), tuple(fields), False, options.job_id or uuid.uuid4().hex)


def start_stream(given: Mapping[str, str], fields: Sequence[Field]) -> Job:
    """A checked micro-batch. Called for each, so it does not contact the broker. OptionError for what is wrong."""
    options = parse_options(given, streaming=True)
    record_columns(fields, options.topic)
    return Job(dict(given), tuple(fields), True, None)


def commit(job: Job, written: Sequence[Written | None], epoch: int = BATCH_EPOCH) -> None:
    """Commits what the tasks have written: all of it, or an error. Raises SinkError."""
    options = job.checked()
    tasks = [each for each in written if each is not None]
    job_id = _job_id(job, tasks)
    if options.transactional and job_id is not None:
        hint = "" if job.streaming else f". To finish what was decided, run the job again with kbroker.job.id={job_id}"
        with _driving(options, job_id, "commit", hint) as driver:
            driver.commit(tasks, epoch)
            if not job.streaming and options.job_id is None:
                driver.forget()


def abort(job: Job, written: Sequence[Written | None], epoch: int = BATCH_EPOCH) -> None:
    """Aborts what the tasks have written. If no task of a stream has ended, that is left to the next run, or to the
    transactions' timeout. Raises SinkError.
    """
    options = job.checked()
    job_id = _job_id(job, [each for each in written if each is not None])
    if options.transactional and job_id is not None:
        with _driving(options, job_id, "abort") as driver:
            driver.abort(epoch, is_last=not job.streaming and options.job_id is None)


def _job_id(job: Job, written: Sequence[Written]) -> str | None:
    """Only the tasks of a stream know its query's id."""
    return written[0].job_id if written else job.id


@contextmanager
def _driving(options: SinkOptions, job_id: str, what: str, hint: str = "") -> Iterator[JobCommit]:
    client = connect(options)
    try:
        yield JobCommit(client, options, job_id, SystemClock())
    except ClientError as error:
        raise SinkError(f"{what} of {job_id}: {error}{hint}") from None
    finally:
        client.close()
