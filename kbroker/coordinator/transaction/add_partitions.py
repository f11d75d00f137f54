"""AddPartitionsToTxn and AddOffsetsToTxn: partitions join a transaction, and the first one begins it. Also the
check that partitions are in it (KIP-890).
"""

from __future__ import annotations

from dataclasses import dataclass

from kbroker.coordinator.runtime.result import Result
from kbroker.coordinator.transaction.shard import TransactionShard
from kbroker.coordinator.transaction.state import (
    PARTITION_BYTES,
    TopicPartition,
    Transaction,
    TransactionRecord,
    TransactionState,
)
from kbroker.errors import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True)
class PartitionsRequest:
    """Partitions of a producer's transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    version: int = 0  # transaction.version that the client uses


def add_partitions(shard: TransactionShard, request: PartitionsRequest) -> Result:
    """Adds the partitions to the transaction. Answers NONE for all of them, or raises KafkaError."""
    transaction = _open_to(shard, request)
    ongoing = transaction.state is TransactionState.ONGOING
    if ongoing and request.partitions <= transaction.partitions:
        return Result(response=ErrorCode.NONE)
    partitions = transaction.partitions | request.partitions
    if len(partitions) > shard.config.partitions_max:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "too many partitions in a transaction")
    shard.check_growth(PARTITION_BYTES * (len(partitions) - len(transaction.partitions)))
    now_ms = shard.now_ms()
    added = transaction.changed(
        state=TransactionState.ONGOING,
        partitions=partitions,
        start_ms=transaction.start_ms if ongoing else now_ms,
        last_update_ms=now_ms,
        client_version=request.version,
    )
    return Result([TransactionRecord(request.transactional_id, added)], response=ErrorCode.NONE)


def verify_partitions(shard: TransactionShard, request: PartitionsRequest) -> Result:
    """Answers NONE for each partition in the transaction, else TRANSACTION_ABORTABLE; or raises KafkaError."""
    transaction = _open_to(shard, request)
    return Result(
        response={
            partition: ErrorCode.NONE if partition in transaction.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for partition in request.partitions
        }
    )


def _open_to(shard: TransactionShard, request: PartitionsRequest) -> Transaction:
    transaction = shard.transaction_of(request.transactional_id, request.producer_id)
    if not transaction.is_held_with(request.producer_epoch):
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    if transaction.state.is_prepared:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    return transaction
