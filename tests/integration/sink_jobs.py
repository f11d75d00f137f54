"""The sink's jobs as Spark runs them, without Spark; and what consumers that read committed find."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import pyarrow as pa

from kbroker._fast.records.records import iter_batches, iter_records
from kbroker.client.cluster_client import ClusterClient
from kbroker.pipeline.broker_tail import BrokerTail
from kbroker.pipeline.sink.job import start_batch, start_stream
from kbroker.pipeline.sink.task import Job, Task, Written, write_rows
from kbroker.protocol.apis.transactions.k66_list_transactions import ListTransactionsRequest

FIELDS = [("key", "string"), ("value", "binary")]


class Found(NamedTuple):
    """A record."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def batch_job(bootstrap: str, topic: str, **options: str) -> Job:
    return start_batch(given(bootstrap, topic, options), FIELDS, False)


def stream_job(bootstrap: str, topic: str, **options: str) -> Job:
    return start_stream(given(bootstrap, topic, options), FIELDS)


def given(bootstrap: str, topic: str, options: dict[str, str]) -> dict[str, str]:
    """Options by name, with two underscores for a dot."""
    named = {name.replace("__", "."): value for name, value in options.items()}
    return {"kafka.bootstrap.servers": bootstrap, "topic": topic, **named}


def query_of(job: Job) -> str:
    """The id of the query that writes to the job's topic."""
    return f"query-{job.options['topic']}"


def rows(values: Iterable[str]) -> pa.RecordBatch:
    """Rows whose key and value are the same."""
    found = list(values)
    return pa.RecordBatch.from_pydict(
        {"key": pa.array(found, pa.string()), "value": pa.array([value.encode() for value in found], pa.binary())}
    )


def write(job: Job, task: int, values: Iterable[str], *, attempt: int = 0, epoch: int | None = None) -> Written:
    """The rows of one task, of micro-batch `epoch` for a stream."""
    query = None if epoch is None else query_of(job)
    return write_rows(job, Task(task, attempt, query, epoch), [rows(values)])


def read_committed(bootstrap: str, topic: str, partitions: int = 1) -> list[Found]:
    """The records before the last stable offsets, but for aborted ones."""
    with_ends = BrokerTail(bootstrap)
    try:
        ends = with_ends.offsets({(topic, index): -1 for index in range(partitions)}, read_committed=True)
        return [
            found
            for index in range(partitions)
            for data, aborted in with_ends.batches((topic, index), 0, ends[topic, index], read_committed=True)
            for found in _records(index, data, aborted)
        ]
    finally:
        with_ends.close()


def _records(partition: int, data: bytes, aborted: dict[int, list[tuple[int, int]]]) -> Iterable[Found]:
    for header, batch in iter_batches(data):
        ranges = aborted.get(header.producer_id, ()) if header.is_transactional else ()
        if header.is_control or any(first <= header.base_offset < last for first, last in ranges):
            continue
        for record in iter_records(batch):
            yield Found(partition, record.key, record.value, record.headers)


def values_of(bootstrap: str, topic: str, partitions: int = 1) -> list[str]:
    """The values that consumers find, sorted."""
    return sorted((found.value or b"").decode() for found in read_committed(bootstrap, topic, partitions))


def open_transactions(bootstrap: str) -> list[str]:
    """The transactional ids with an open transaction."""
    client = ClusterClient(bootstrap)
    try:
        found: list[Any] = []
        for node_id in client.brokers():
            found += client.broker(node_id, ListTransactionsRequest(state_filters=["Ongoing"])).transaction_states
        return sorted(each.transactional_id for each in found)
    finally:
        client.close()
