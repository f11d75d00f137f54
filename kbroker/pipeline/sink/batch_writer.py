"""A task's producer that builds record batches from Arrow columns and sends them with kbroker's own client."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import KafkaError

from kbroker._fast.records.arrow_batches import RecordTooLarge, RowError, TopicBatches, UnknownPartition
from kbroker._fast.records.compression import CODECS
from kbroker.client.batch_producer import REQUESTS_MAX, Batch, BatchProducer
from kbroker.client.cluster_client import ClientError
from kbroker.client.connection import parse_bootstrap
from kbroker.client.producer_session import ProducerSettings, Refused
from kbroker.clock import SystemClock
from kbroker.errors import ErrorCode
from kbroker.limits import KIB, MIB
from kbroker.pipeline.sink.arrow_rows import arrow_rows, by_topic
from kbroker.pipeline.sink.client_settings import DEFAULTS
from kbroker.pipeline.sink.columns import RecordColumns
from kbroker.pipeline.sink.errors import SinkError
from kbroker.pipeline.sink.options import SinkOptions
from kbroker.pipeline.sink.producer import ABORT_SECONDS
from kbroker.pipeline.sink.transactions import CONTACT_SECONDS, connect

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

REQUEST_BYTES = 2 * MIB  # of rows that are sent at a time, less if the buffer is small
BATCH_BYTES = 1_000_000  # below what topics take by default; librdkafka's batch.size
RECORD_BYTES_MAX = 1 << 30

# Settings that are followed here, or mean nothing to a producer that has all its rows at hand.
_NUMBERS = {
    "delivery.timeout.ms", "transaction.timeout.ms", "request.timeout.ms", "batch.size", "message.max.bytes",
    "linger.ms", "queue.buffering.max.ms", "queue.buffering.max.messages", "queue.buffering.max.kbytes",
}  # fmt: skip
_MAY_BE_ZERO = {"linger.ms", "queue.buffering.max.ms", "queue.buffering.max.messages"}
_KNOWN = _NUMBERS | {
    "bootstrap.servers", "acks", "enable.idempotence", "client.id", "compression.type", "compression.codec",
    "partitioner", "security.protocol",
}  # fmt: skip


def can_follow(options: SinkOptions) -> bool:
    """Whether a BatchWriter does what the options say; librdkafka has more settings."""
    client = options.client
    return (
        client.keys() <= _KNOWN
        and client["acks"] == "all"
        and client["enable.idempotence"].lower() == "true"
        and client["partitioner"] == DEFAULTS["partitioner"]
        and client.get("security.protocol", "plaintext").lower() == "plaintext"
        and _codec(options) in CODECS
        and all(_is_in_range(client.get(name, "1"), int(name not in _MAY_BE_ZERO)) for name in _NUMBERS)
        and _is_plain(options.bootstrap)
    )


def _is_in_range(text: str, least: int) -> bool:
    return text.isdecimal() and least <= int(text) < 2**31


def _is_plain(bootstrap: str) -> bool:
    """Whether it is HOST:PORT, without protocols and defaults of ports."""
    try:
        parse_bootstrap(bootstrap)
    except ValueError:
        return False
    return True


def _codec(options: SinkOptions) -> str:
    return options.client.get("compression.type", options.client.get("compression.codec", "none"))


class _Topic(NamedTuple):
    batches: TopicBatches
    sequences: list[int]  # the next of each partition


class BatchWriter:
    """Used by one task at a time. Not thread-safe. Raises SinkError."""

    def __init__(self, options: SinkOptions, transactional_id: str | None = None) -> None:
        """Waits for a broker that restarts."""
        client = options.client
        buffer_bytes = int(client["queue.buffering.max.kbytes"]) * KIB
        self.options = options
        self._clock = SystemClock()
        self._codec = _codec(options)
        self._record_bytes_max = min(int(client["message.max.bytes"]), RECORD_BYTES_MAX)
        self._batch_bytes_max = min(int(client.get("batch.size", BATCH_BYTES)), self._record_bytes_max)
        # What is being built, and the requests that are unanswered.
        self._request_bytes = max(1, min(REQUEST_BYTES, buffer_bytes // (REQUESTS_MAX + 1)))
        self._is_transactional = transactional_id is not None
        self._topics: dict[str, _Topic] = {}
        self._sequences: dict[str, list[int]] = {}
        self._nbytes = 0  # of rows that are not sent
        settings = ProducerSettings(
            options.bootstrap,
            client.get("client.id", "kbroker-spark"),
            int(client.get("request.timeout.ms", "30000")) / 1000,
            CONTACT_SECONDS,
            options.delivery_timeout_s,
            transactional_id,
            options.transaction_timeout_ms,
        )
        self._producer = BatchProducer(connect(options), settings)

    def begin(self) -> None:
        """Gets a producer id. A transactional id fences any other producer that has it."""
        try:
            self._producer.session.open()
        except ClientError as error:
            what = "transaction" if self._is_transactional else "producer id"
            raise SinkError(f"{what} at {self.options.bootstrap}: {error}") from None

    def resume(self) -> None:
        """Another task begins: topics may have more partitions by now."""
        self._topics.clear()
        self._producer.forget_topics()

    def send_batch(self, batch: pa.RecordBatch, columns: RecordColumns, topic: str | None) -> None:
        """Sends rows, and keeps some for the next request."""
        for name, rows in [(topic, batch)] if topic is not None else by_topic(batch, columns.topic):
            self._take(name, rows, columns)

    def _take(self, name: str, batch: pa.RecordBatch, columns: RecordColumns) -> None:
        rows = arrow_rows(batch, columns)
        start = 0
        while start < rows.rows:
            with self._row_errors(name, columns.partition is not None):
                batches = self._topic(name).batches
                before = batches.nbytes
                start = batches.add(rows, start, self._request_bytes - self._nbytes)
                self._nbytes += batches.nbytes - before
            if start < rows.rows or self._nbytes >= self._request_bytes:
                self._send()

    @contextmanager
    def _row_errors(self, topic: str, has_partitions: bool) -> Iterator[None]:
        try:
            with _sink_errors():
                yield
        except RecordTooLarge as error:
            partition = error.partition if has_partitions else None
            reason = f"a record of {error.nbytes} bytes; kafka.max.request.size is {self._record_bytes_max}"
            raise SinkError(_line(topic, partition, ErrorCode.MESSAGE_TOO_LARGE, reason)) from None
        except UnknownPartition as error:
            if error.partition < 0:
                raise SinkError(
                    f"Invalid partition: {error.partition}. Partition number should always be non-negative or null."
                ) from None
            raise SinkError(_line(topic, error.partition, KafkaError._UNKNOWN_PARTITION)) from None
        except RowError as error:
            raise SinkError(str(error)) from None

    def _topic(self, name: str) -> _Topic:
        found = self._topics.get(name)
        if found is None:
            count = self._producer.partition_count(name)
            sequences = self._sequences.setdefault(name, [])
            sequences += [0] * (count - len(sequences))
            batches = TopicBatches(
                count,
                batch_bytes_max=self._batch_bytes_max,
                record_bytes_max=self._record_bytes_max,
                seed=random.getrandbits(64),
            )
            found = self._topics[name] = _Topic(batches, sequences)
        found.batches.batch_bytes_max = self._producer.batch_bytes_max.get(name, self._batch_bytes_max)
        return found

    def _send(self) -> None:
        batches = [
            Batch(name, partition, records)
            for name, topic in self._topics.items()
            if topic.batches.nbytes
            for partition, _, records in topic.batches.build(
                topic.sequences,
                producer_id=self._producer.session.producer_id,
                producer_epoch=self._producer.session.producer_epoch,
                timestamp_ms=self._clock.now_ms(),
                transactional=self._is_transactional,
                codec=self._codec,
            )
        ]
        self._nbytes = 0
        if batches:
            with _sink_errors():
                self._producer.send(batches)

    def flush(self) -> None:
        """Waits until every record is in its topic."""
        self._send()
        with _sink_errors():
            self._producer.flush()

    def abort(self) -> None:
        """Aborts the transaction if the broker answers soon; else its timeout, the next task or the driver does."""
        try:
            self._producer.session.abort(ABORT_SECONDS)
        except ClientError as error:
            logger.warning("kbroker sink: a transaction was not aborted: %s", error)

    def close(self) -> None:
        """Closes the connections. An open transaction stays open."""
        self._producer.close()


@contextmanager
def _sink_errors() -> Iterator[None]:
    """Errors in the words of librdkafka."""
    try:
        yield
    except Refused as error:
        code = KafkaError._MSG_TIMED_OUT if error.code == ErrorCode.REQUEST_TIMED_OUT else error.code
        raise SinkError(_line(error.topic, error.partition, code, error.reason)) from None
    except ClientError as error:
        raise SinkError(str(error)) from None


def _line(topic: str, partition: int | None, code: int, reason: str | None = None) -> str:
    where = topic if partition is None else f"{topic}-{partition}"
    return f"{where}: {KafkaError(code).str()}{f' ({reason})' if reason else ''}"
