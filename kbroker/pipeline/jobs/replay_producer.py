"""Writes rows to one partition of a topic, exactly once: a chunk and the progress so far are one Kafka transaction.

The progress is an offset that a group named after the job commits for the target partition: how many rows are in, and
a checksum of them. A restarted producer (or a second one, which fences the first) reads it and continues there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.records import build_batch
from kbroker.client.connection import ClientConnection
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.pipeline.broker_tail import BrokerError
from kbroker.protocol.apis.cluster.k03_metadata import MetadataRequest, MetadataRequestTopic
from kbroker.protocol.apis.groups.k09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from kbroker.protocol.apis.groups.k10_find_coordinator import FindCoordinatorRequest
from kbroker.protocol.apis.records.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.apis.transactions.k22_init_producer_id import InitProducerIdRequest
from kbroker.protocol.apis.transactions.k24_add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from kbroker.protocol.apis.transactions.k25_add_offsets_to_txn import AddOffsetsToTxnRequest
from kbroker.protocol.apis.transactions.k26_end_txn import EndTxnRequest
from kbroker.protocol.apis.transactions.k28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kbroker.protocol.fields import Message

VERSIONS = {0: 9, 3: 12, 9: 7, 10: 3, 22: 4, 24: 3, 25: 3, 26: 3, 28: 3}
TIMEOUT_SECONDS = 60.0
CONTACT_SECONDS = 2.5  # of a job's first request
TRANSACTION_TIMEOUT_MS = 60_000
TRIES = 12  # to open, and to send a chunk: each waits longer
WAIT_SECONDS_MAX = 10.0
BATCH_BYTES = 512 * 1024  # of keys, values and headers: below what topics take
_RETRIABLE = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
}

# (key, value, timestamp in ms, headers)
Row = tuple[bytes | None, bytes | None, int, Sequence[tuple[str, bytes | None]]]


class Progress(NamedTuple):
    """How many rows are in, and the checksum over them."""

    rows: int
    checksum: int


class ReplayTarget(NamedTuple):
    """What every task gets."""

    bootstrap: str
    topic: str
    job_id: str
    codec: str


class _Interrupted(Exception):
    """Whether a chunk was committed is unknown: read the progress, and continue."""


def checksum_of(rows: Sequence[Row], value: int) -> int:
    """Extends checksum `value` by these rows, without their timestamps, which may be those of the run."""
    for key, content, _, headers in rows:
        value = crc32c(repr((key, content, tuple(headers))).encode(), value)
    return value


def connect(bootstrap: str, timeout_seconds: float = TIMEOUT_SECONDS) -> ClientConnection:
    """A connection to the first address that answers. Raises BrokerError."""
    try:
        return ClientConnection.to_any(bootstrap, timeout_seconds, "kbroker-replay", VERSIONS)
    except ValueError as error:
        raise BrokerError(str(error)) from None
    except OSError as error:
        raise BrokerError(f"no broker answers at {bootstrap}: {error}") from None


def partition_count(bootstrap: str, topic: str) -> int:
    """Of the target topic, which must exist. Raises BrokerError."""
    connection = connect(bootstrap, CONTACT_SECONDS)
    try:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        found = connection.call(request).topics[0]
    except (OSError, ProtocolError) as error:
        raise BrokerError(f"{bootstrap}: {error}") from None
    finally:
        connection.close()
    if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise BrokerError(f"there is no topic {topic} at {bootstrap}")
    if found.error_code:
        raise BrokerError(f"topic {topic}: {_name(found.error_code)}")
    return len(found.partitions)


class ReplayProducer:
    """One partition's producer. `wait(seconds)` sleeps. Raises BrokerError if the broker refuses or stays away."""

    def __init__(self, target: ReplayTarget, partition: int, wait: Callable[[float], object]) -> None:
        self._target = target
        self._partition = partition
        self._wait = wait
        self._group = f"kbroker-replay-{target.job_id}"
        self._transactional_id = f"{self._group}-{target.topic}-{partition}"
        self._connection: ClientConnection | None = None
        self._producer_id = self._epoch = -1
        self._sequence = 0

    def open(self) -> Progress:
        """Fences any other producer of this partition; returns its progress."""
        return self._repeated(self._open)

    def send(self, rows: Sequence[Row], done: Progress) -> Progress:
        """Adds rows after `done`, exactly once. Returns the new progress."""
        wanted = Progress(done.rows + len(rows), checksum_of(rows, done.checksum))

        def attempt() -> Progress:
            if self._connection is None:
                found = self._open()
                if found == wanted:
                    return wanted  # only the answer to the commit was lost
                if found != done:
                    raise BrokerError(f"{self._where}: another run of job {self._target.job_id} is running")
            self._transaction(rows, wanted)
            return wanted

        return self._repeated(attempt)

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def _where(self) -> str:
        return f"{self._target.topic}-{self._partition} at {self._target.bootstrap}"

    # -- the steps ---------------------------------------------------------------------------------------------

    def _repeated(self, attempt: Callable[[], Progress]) -> Progress:
        failure: Exception | None = None
        for number in range(TRIES):
            if number:
                self._wait(min(0.1 * 2**number, WAIT_SECONDS_MAX))
            try:
                return attempt()
            except (_Interrupted, OSError, ProtocolError) as error:
                failure = error
                self.close()
        raise BrokerError(f"{self._where}: {failure}")

    def _open(self) -> Progress:
        self.close()
        try:
            self._connection = connect(self._target.bootstrap)
        except BrokerError as error:
            raise _Interrupted(str(error)) from None
        for key, kind in ((self._transactional_id, 1), (self._group, 0)):
            self._check(self._call(FindCoordinatorRequest(key=key, key_type=kind)).error_code)
        answer = self._call(
            InitProducerIdRequest(
                transactional_id=self._transactional_id, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
            )
        )
        self._check(answer.error_code)
        self._producer_id, self._epoch, self._sequence = answer.producer_id, answer.producer_epoch, 0
        topics = [OffsetFetchRequestTopic(name=self._target.topic, partition_indexes=[self._partition])]
        answer = self._call(OffsetFetchRequest(group_id=self._group, topics=topics, require_stable=True))
        self._check(answer.error_code)
        found = answer.topics[0].partitions[0]
        self._check(found.error_code)
        if found.committed_offset < 0:
            return Progress(0, 0)
        return Progress(found.committed_offset, int(found.metadata or "0", 16))

    def _transaction(self, rows: Sequence[Row], wanted: Progress) -> None:
        topic, ids = self._target.topic, (self._transactional_id, self._producer_id, self._epoch)
        answer = self._call(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=ids[0],
                v3_and_below_producer_id=ids[1],
                v3_and_below_producer_epoch=ids[2],
                v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[self._partition])],
            )
        )
        self._check(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)
        for part in _batches(rows):
            self._produce(part)
        self._check(
            self._call(
                AddOffsetsToTxnRequest(
                    transactional_id=ids[0], producer_id=ids[1], producer_epoch=ids[2], group_id=self._group
                )
            ).error_code
        )
        committed = TxnOffsetCommitRequestPartition(
            partition_index=self._partition,
            committed_offset=wanted.rows,
            committed_metadata=f"{wanted.checksum:08x}",
        )
        answer = self._call(
            TxnOffsetCommitRequest(
                transactional_id=ids[0],
                group_id=self._group,
                producer_id=ids[1],
                producer_epoch=ids[2],
                topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[committed])],
            )
        )
        self._check(answer.topics[0].partitions[0].error_code)
        self._check(
            self._call(
                EndTxnRequest(transactional_id=ids[0], producer_id=ids[1], producer_epoch=ids[2], committed=True)
            ).error_code
        )

    def _produce(self, rows: Sequence[Row]) -> None:
        batch = build_batch(
            rows,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=self._sequence,
            transactional=True,
            codec=self._target.codec,
        )
        data = PartitionProduceData(index=self._partition, records=batch)
        answer = self._call(
            ProduceRequest(
                transactional_id=self._transactional_id,
                acks=-1,
                timeout_ms=30_000,
                topic_data=[TopicProduceData(name=self._target.topic, partition_data=[data])],
            )
        )
        found = answer.responses[0].partition_responses[0]
        self._check(found.error_code, found.error_message)
        self._sequence = (self._sequence + len(rows)) & 0x7FFFFFFF

    def _call(self, request: Message) -> Any:
        assert self._connection is not None
        return self._connection.call(request)

    def _check(self, code: int, message: str | None = None) -> None:
        if not code:
            return
        what = f"{_name(code)}{f' ({message})' if message else ''}"
        if code in _RETRIABLE:
            raise _Interrupted(what)
        if code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
            raise BrokerError(
                f"{self._where}: {what}: another run of job {self._target.job_id} has taken over, or the broker was "
                "away for longer than a transaction may last; a run with the same --job-id continues"
            )
        raise BrokerError(f"{self._where}: {what}")


def _batches(rows: Sequence[Row]) -> list[Sequence[Row]]:
    """Rows cut so that each batch is small enough; a row that is larger has one of its own."""
    parts: list[Sequence[Row]] = []
    start = size = 0
    for number, (key, value, _, headers) in enumerate(rows):
        length = 32 + len(key or b"") + len(value or b"") + sum(len(name) + len(v or b"") + 8 for name, v in headers)
        if number > start and size + length > BATCH_BYTES:
            parts.append(rows[start:number])
            start, size = number, 0
        size += length
    parts.append(rows[start:])
    return parts


def _name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"
