"""Writes rows to one partition of a topic, exactly once: a chunk and the progress so far are one Kafka transaction.

The progress is an offset that a group named after the job commits for the target partition: how many rows are in, and
a checksum of them. A restarted producer (or a second one, which fences the first) reads it and continues there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.records import build_batch
from kbroker.client.batch_producer import Batch, BatchProducer
from kbroker.client.cluster_client import ClientError, ClusterClient, CoordinatorKind, Timeouts
from kbroker.client.first_contact import reached
from kbroker.client.producer_session import ProducerSettings, Refused, SessionRefused
from kbroker.errors import ErrorCode, error_name
from kbroker.pipeline.broker_tail import BrokerError
from kbroker.protocol.apis.groups.k09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from kbroker.retry_policy import RetryPolicy

CLIENT_ID = "kbroker-replay"
CONTACT_SECONDS = 2.5  # of a job's first request
TRANSACTION_TIMEOUT_MS = 60_000
BATCH_BYTES = 512 * 1024  # of keys, values and headers: below what topics take
OFFSETS_NEWEST = 7  # the last with one group a request
_FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)

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


def checksum_of(rows: Sequence[Row], value: int) -> int:
    """Extends checksum `value` by these rows, without their timestamps, which may be those of the run."""
    for key, content, _, headers in rows:
        value = crc32c(repr((key, content, tuple(headers))).encode(), value)
    return value


def partition_count(bootstrap: str, topic: str) -> int:
    """Of the target topic, which must exist. Raises BrokerError."""
    try:
        client = ClusterClient(bootstrap, CLIENT_ID, Timeouts(CONTACT_SECONDS, CONTACT_SECONDS, CONTACT_SECONDS))
    except ValueError as error:
        raise BrokerError(str(error)) from None
    try:
        (found,) = client.topics([topic])
    except ClientError as error:
        raise BrokerError(str(error)) from None
    finally:
        client.close()
    if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise BrokerError(f"there is no topic {topic} at {bootstrap}")
    if found.error_code:
        raise BrokerError(f"topic {topic}: {error_name(found.error_code)}")
    return len(found.partitions)


class ReplayProducer:
    """One partition's producer. Not thread-safe. Raises BrokerError if the cluster refuses or stays away."""

    def __init__(self, target: ReplayTarget, partition: int) -> None:
        """Waits for a cluster that restarts."""
        self._target = target
        self._where = target.topic, partition
        self._group = f"kbroker-replay-{target.job_id}"
        self._sequence = 0
        settings = ProducerSettings(
            target.bootstrap,
            CLIENT_ID,
            transactional_id=f"{self._group}-{target.topic}-{partition}",
            transaction_ms=TRANSACTION_TIMEOUT_MS,
            creates_topics=False,  # one that is deleted meanwhile would be without what was sent before
        )
        with self._errors():
            self._client = reached(target.bootstrap, CLIENT_ID, Timeouts(settings.request_s, settings.delivery_s))
            self._producer = BatchProducer(self._client, settings)

    def close(self) -> None:
        """Closes the connections."""
        self._producer.close()

    def open(self) -> Progress:
        """Fences any other producer of this partition; returns its progress."""
        with self._errors():
            self._producer.session.open()
            self._producer.partition_count(self._target.topic)
            return self._progress()

    def send(self, rows: Sequence[Row], done: Progress) -> Progress:
        """Adds rows after `done`, exactly once. Returns the new progress. After an error only `close` is of use."""
        progress = Progress(done.rows + len(rows), checksum_of(rows, done.checksum))
        session = self._producer.session
        with self._errors():
            for part in _batches(rows):
                batch = build_batch(
                    part,
                    producer_id=session.producer_id,
                    producer_epoch=session.producer_epoch,
                    base_sequence=self._sequence,
                    transactional=True,
                    codec=self._target.codec,
                )
                self._producer.send([Batch(*self._where, batch)])
                self._sequence = (self._sequence + len(part)) & 0x7FFFFFFF
            self._producer.flush()
            session.add_offset(self._group, self._where, progress.rows, f"{progress.checksum:08x}")
            session.commit()
        return progress

    def _progress(self) -> Progress:
        topic, partition = self._where
        topics = [OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])]
        request = OffsetFetchRequest(group_id=self._group, topics=topics, require_stable=True)

        def codes(response: Any) -> list[int]:
            return [response.error_code, *(part.error_code for each in response.topics for part in each.partitions)]

        for _ in RetryPolicy(TRANSACTION_TIMEOUT_MS / 1000, first_wait_s=0.02, wait_max_s=1.0).attempts():
            response = self._client.coordinator(CoordinatorKind.GROUP, self._group, request, codes, OFFSETS_NEWEST)
            if ErrorCode.UNSTABLE_OFFSET_COMMIT not in codes(response):
                break
        if code := next(filter(None, codes(response)), ErrorCode.NONE):
            raise SessionRefused(code)
        found = response.topics[0].partitions[0]
        if found.committed_offset < 0:
            return Progress(0, 0)
        return Progress(found.committed_offset, int(found.metadata or "0", 16))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (Refused, SessionRefused) as error:
            why = ""
            if error.code in _FENCED:
                why = (
                    f": another run of job {self._target.job_id} has taken over, or the broker was away for longer "
                    "than a transaction may last; a run with the same --job-id continues"
                )
            elif isinstance(error, Refused) and error.reason:
                why = f" ({error.reason})"
            raise BrokerError(f"{self._name}: {error_name(error.code)}{why}") from None
        except ClientError as error:
            raise BrokerError(f"{self._name}: {error}") from None

    @property
    def _name(self) -> str:
        topic, partition = self._where
        return f"{topic}-{partition} at {self._target.bootstrap}"


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
