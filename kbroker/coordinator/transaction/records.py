"""Durable state to and from the records of `__transaction_state`, in Kafka's own schemas.

    key                           value
    v0  TransactionLogKey         TransactionLogValue v1; v0, written by older Kafka, is read too

A null value removes. Tag 1000 of the value is kbroker's own: lastProducerEpoch, which Kafka keeps in memory only. With
it a producer that repeats a request across a restart is distinguished from a fenced one. Other readers skip it.
"""

from __future__ import annotations

from kbroker.coordinator.runtime.shard import UnknownRecordError
from kbroker.coordinator.transaction.state import (
    DURABLE_STATES,
    TopicPartition,
    Transaction,
    TransactionRecord,
    TransactionState,
)
from kbroker.errors import ProtocolError
from kbroker.protocol import records
from kbroker.protocol.records import PartitionsSchema, TransactionLogKey, TransactionLogValue


def encode_record(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """Key and value of the record."""
    key = records.encode_record(TransactionLogKey(transactional_id=record.transactional_id))
    return key, None if record.value is None else _encode_value(record.value)


def decode_record(key: bytes, value: bytes | None) -> TransactionRecord:
    """The record; raises UnknownRecordError."""
    try:
        transactional_id = records.decode_record(TransactionLogKey, key).transactional_id
        return TransactionRecord(transactional_id, None if value is None else _decode_value(value))
    except ProtocolError as error:
        raise UnknownRecordError(str(error)) from error


def by_topic(partitions: frozenset[TopicPartition]) -> dict[str, list[int]]:
    """Partitions in order, by topic."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return topics


def _encode_value(value: Transaction) -> bytes:
    topics: list[PartitionsSchema] | None = None
    if value.state is not TransactionState.EMPTY:
        grouped = by_topic(value.partitions)
        topics = [PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in grouped.items()]
    return records.encode_record(
        TransactionLogValue(
            producer_id=value.producer_id,
            previous_producer_id=value.previous_producer_id,
            next_producer_id=value.next_producer_id,
            producer_epoch=value.producer_epoch,
            last_producer_epoch=value.last_producer_epoch,
            transaction_timeout_ms=value.timeout_ms,
            transaction_status=value.state,
            transaction_partitions=topics,
            transaction_last_update_timestamp_ms=value.last_update_ms,
            transaction_start_timestamp_ms=value.start_ms,
            client_transaction_version=value.client_version,
        )
    )


def _decode_value(value: bytes) -> Transaction:
    message = records.decode_record(TransactionLogValue, value)
    if message.transaction_status not in DURABLE_STATES:
        raise UnknownRecordError(f"transaction state {message.transaction_status}")
    return Transaction(
        producer_id=message.producer_id,
        producer_epoch=message.producer_epoch,
        timeout_ms=message.transaction_timeout_ms,
        state=TransactionState(message.transaction_status),
        last_update_ms=message.transaction_last_update_timestamp_ms,
        partitions=frozenset(
            (topic.topic, partition)
            for topic in message.transaction_partitions or ()
            for partition in topic.partition_ids
        ),
        start_ms=message.transaction_start_timestamp_ms,
        previous_producer_id=message.previous_producer_id,
        next_producer_id=message.next_producer_id,
        last_producer_epoch=message.last_producer_epoch,
        client_version=message.client_transaction_version,
    )
