"""The tasks of a replay: choose the partition of each row, and send the rows of each partition in order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from kbroker._fast.base.crc32c import crc32c
from kbroker.pipeline.jobs.compact_spark import giving_task_reason
from kbroker.pipeline.jobs.replay_producer import Progress, ReplayProducer, ReplayTarget, Row, checksum_of
from kbroker.pipeline.jobs.session import JobError
from kbroker.pipeline.worker_process import settle
from kbroker.protocol.partitioner import partition_of

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_ROWS = 20_000  # of one transaction
CHUNK_BYTES = 4 * 1024 * 1024


def target_of(key: bytes | None, value: bytes | None, partitions: int) -> int:
    """A row's partition: by its key as in Kafka's clients, else by its value, so that a second run decides alike."""
    if key is not None:
        return partition_of(key, partitions)
    return crc32c(value or b"") % partitions


def with_targets(partitions: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fills in the column `target` where it is null."""
    import pyarrow as pa

    settle()
    for batch in batches:
        given = batch.column("target").to_pylist()
        keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
        with giving_task_reason():
            targets = []
            for target, key, value in zip(given, keys, values, strict=True):
                if target is None:
                    target = target_of(key, value, partitions)
                elif not 0 <= target < partitions:
                    raise JobError(f"a row is of partition {target}; the topic has {partitions}")
                targets.append(target)
        place = batch.schema.get_field_index("target")
        yield batch.set_column(place, "target", pa.array(targets, pa.int32()))


class _Sender:
    """Sends the rows of one partition, in order."""

    def __init__(self, target: ReplayTarget, partition: int) -> None:
        self.partition = partition
        self.sent = 0
        self.skipped = 0
        self._job_id = target.job_id
        self._producer = ReplayProducer(target, partition)
        self._resume = self._producer.open()
        self._passed = Progress(0, 0)  # rows seen so far that are in
        self._rows: list[Row] = []
        self._bytes = 0

    def add(self, row: Row) -> None:
        if self._passed.rows < self._resume.rows:
            self._passed = Progress(self._passed.rows + 1, checksum_of([row], self._passed.checksum))
            self.skipped += 1
            if self._passed.rows == self._resume.rows and self._passed != self._resume:
                raise JobError(self._changed)
            return
        self._rows.append(row)
        self._bytes += len(row[0] or b"") + len(row[1] or b"")
        if len(self._rows) >= CHUNK_ROWS or self._bytes >= CHUNK_BYTES:
            self._send()

    @property
    def _changed(self) -> str:
        return (
            f"partition {self.partition}: the first {self._resume.rows} rows are not those that job {self._job_id} "
            "has replayed: the source has changed, or its order has; use another --job-id"
        )

    def _send(self) -> None:
        if self._rows:
            self._resume = self._passed = self._producer.send(self._rows, self._passed)
            self.sent += len(self._rows)
        self._rows, self._bytes = [], 0

    def finish(self) -> None:
        if self._passed.rows < self._resume.rows:
            raise JobError(self._changed)
        self._send()
        self._producer.close()


def replay_rows(target: ReplayTarget, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sends rows sorted by partition; yields how many were sent and skipped of each."""
    import pyarrow as pa

    settle()
    sender: _Sender | None = None
    results: list[_Sender] = []
    with giving_task_reason():
        for batch in batches:
            columns = [batch.column(name).to_pylist() for name in ("target", "key", "value", "ms", "headers")]
            for partition, key, value, ms, headers in zip(*columns, strict=True):
                if sender is None or sender.partition != partition:
                    if sender is not None:
                        sender.finish()
                    sender = _Sender(target, partition)
                    results.append(sender)
                sender.add((key, value, ms, _headers(headers)))
        if sender is not None:
            sender.finish()
    yield pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([result.partition for result in results], pa.int32()),
            "sent": pa.array([result.sent for result in results], pa.int64()),
            "skipped": pa.array([result.skipped for result in results], pa.int64()),
        }
    )


def _headers(found: Any) -> list[tuple[str, bytes | None]]:
    return [(header["key"], header["value"]) for header in found or ()]


def parse_options(pairs: Iterable[str]) -> dict[str, str]:
    """KEY=VALUE, ... as a mapping. Raises JobError."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise JobError(f"--option {json.dumps(pair)}: expected KEY=VALUE")
        found[name] = value
    return found
