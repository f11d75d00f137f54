"""A producer of confluent-kafka, which has every setting: its errors as one line each, and a bounded queue."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from kbroker.pipeline.options import OptionError
from kbroker.pipeline.sink.columns import RecordColumns
from kbroker.pipeline.sink.errors import SinkError
from kbroker.pipeline.sink.options import SinkOptions
from kbroker.pipeline.sink.records import row_arguments

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

CONTACT_SECONDS = 5.0  # for a query's first contact with the broker
ROOM_SECONDS = 0.1
ABORT_SECONDS = 5.0
ID_SECONDS = 0.5  # for metadata that brings the producer id sooner: the client retries after this time anyway
FLUSH_SECONDS_MORE = 10.0  # than a record may take: librdkafka checks timeouts once a second


class SinkProducer:
    """Used by one task at a time. Not thread-safe. Raises SinkError."""

    def __init__(self, options: SinkOptions, transactional_id: str | None = None) -> None:
        """OptionError for a setting that the client does not know."""
        self.options = options
        self._is_transactional = transactional_id is not None
        self._failure: str | None = None  # the first record that was not delivered
        self._broker_error: str | None = None  # the last error that the client reported of a broker
        settings: dict[str, Any] = {
            **options.client,
            "log_level": 0,
            "error_cb": self._on_error,
            "on_delivery": self._on_delivery,
            "delivery.report.only.error": True,
        }
        if transactional_id is None:
            del settings["transaction.timeout.ms"]
        else:
            settings["transactional.id"] = transactional_id
        try:
            self._producer = Producer(settings)
        except KafkaException as error:
            raise OptionError(f"kafka.*: {_text(error)}") from None
        except (TypeError, ValueError) as error:
            raise OptionError(f"kafka.*: {error}") from None

    # -- the query's start

    def check_broker(self) -> None:
        """Checks that a broker answers within CONTACT_SECONDS, and that the options' topic exists or can be created."""
        where = self.options.bootstrap
        try:
            problem = self._contact()
        except KafkaException as error:
            self._producer.poll(0)  # which reports errors of the broker
            raise SinkError(f"no broker answers at {where}: {self._broker_error or _text(error)}") from None
        if problem is not None:
            raise SinkError(f"topic {self.options.topic} at {where}: {problem.str()}")

    def _contact(self) -> KafkaError | None:
        topic = self.options.topic
        if topic is None:
            if not self._producer.cluster_id(CONTACT_SECONDS):
                raise KafkaException(KafkaError(KafkaError._TRANSPORT))
            return None
        problem: KafkaError | None = self._producer.list_topics(topic, CONTACT_SECONDS).topics[topic].error
        return None if problem is not None and problem.retriable() else problem

    # -- the producer id

    def _ask_for_id(self) -> None:
        """Gets the producer id as soon as a broker is connected. Gives up if none answers: the client goes on trying.

        librdkafka requests its id after each Metadata response, otherwise every 500 ms. The first response is too
        early: it names the broker to which the client then connects.
        """
        topic = self.options.topic
        if topic is None or self.options.client["enable.idempotence"].lower() != "true":
            return
        try:
            for _ in range(2):
                self._producer.list_topics(topic, ID_SECONDS)
        except KafkaException as error:
            logger.debug("kbroker sink: no metadata of %s yet: %s", topic, _text(error))

    # -- transactions

    def begin(self) -> None:
        """Gets a producer id. A transactional id fences any other producer that has it."""
        self._ask_for_id()
        if not self._is_transactional:
            return
        try:
            self._init_transactions()
            self._producer.begin_transaction()
        except KafkaException as error:
            why = f" ({self._broker_error})" if self._broker_error else ""
            raise SinkError(f"transaction at {self.options.bootstrap}: {_text(error)}{why}") from None

    def _init_transactions(self) -> None:
        """In steps, as the client does not report broker errors while it waits."""
        for left in range(int(self.options.delivery_timeout_s // CONTACT_SECONDS), -1, -1):
            try:
                self._producer.init_transactions(CONTACT_SECONDS)
                return
            except KafkaException as error:
                self._producer.poll(0)
                if not left or not error.args[0].retriable():
                    raise

    def abort(self) -> None:
        """Aborts the transaction if the broker answers soon; else its timeout, the next task or the driver does."""
        try:
            self._producer.purge()
            self._producer.abort_transaction(ABORT_SECONDS)
        except KafkaException as error:
            logger.warning("kbroker sink: a transaction was not aborted: %s", _text(error))

    # -- records

    def send_batch(self, batch: pa.RecordBatch, columns: RecordColumns, topic: str | None) -> None:
        """Queues the records of some rows. Waits while the queue is full."""
        for rows in row_arguments(batch, columns, topic):
            self._send(rows)

    def _send(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Queues records, each as arguments of the client's produce()."""
        produce = self._producer.produce
        try:
            for row in rows:
                while True:
                    try:
                        produce(*row)
                        break
                    except BufferError:
                        self._wait_for_room()
        except KafkaException as error:
            reason = KafkaError(error.args[0].code()).str()  # as for a record that is refused later
            raise SinkError(f"{row[0]}{_suffix(row[3])}: {reason}") from None
        self._serve(self._producer.poll, 0)

    def _serve(self, call: Callable[[float], int], seconds: float) -> int:
        """Calls poll() or flush(), which run the callbacks for errors and records that were not delivered."""
        try:
            found = call(seconds)
        except (KafkaException, SystemError) as error:  # SystemError: the client raised during a callback
            raise SinkError(self._failure or self._broker_error or str(error)) from None
        self._check()
        return found

    def flush(self) -> None:
        """Waits until every record is in its topic."""
        left = self._serve(self._producer.flush, self.options.delivery_timeout_s + FLUSH_SECONDS_MORE)
        if left:
            raise SinkError(f"{left} records were not delivered to {self.options.bootstrap}: {self._broker_error}")

    def close(self) -> None:
        """Closes the connections. An open transaction stays open."""
        del self._producer

    def resume(self) -> None:
        """Another task begins: forgets the error of a broker that was unreachable meanwhile."""
        self._producer.poll(0)
        self._broker_error = None

    def _wait_for_room(self) -> None:
        self._serve(self._producer.poll, ROOM_SECONDS)

    def _check(self) -> None:
        if self._failure is not None:
            raise SinkError(self._failure)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._failure is None:
            why = f" ({self._broker_error})" if self._broker_error and error.code() == KafkaError._MSG_TIMED_OUT else ""
            if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                why = f" (a record of {len(message)} bytes, or its batch, is above the topic's max.message.bytes)"
            self._failure = f"{message.topic()}{_suffix(message.partition())}: {error.str()}{why}"

    def _on_error(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self._broker_error is None:
            self._broker_error = error.str()
        logger.warning("kbroker sink: %s", error.str())


def _suffix(partition: int | None) -> str:
    return "" if partition is None or partition < 0 else f"-{partition}"


def _text(error: KafkaException) -> str:
    reason = error.args[0]
    return reason.str() if isinstance(reason, KafkaError) else str(reason)
