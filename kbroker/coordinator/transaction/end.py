"""EndTxn: commit or abort (KIP-98; KIP-890 where the epoch grows with each transaction).

The decision is durable when the request is answered; the markers follow, then Complete*. By state, for a request with
the current epoch (C) or, from transaction.version 2 on, with the one before it (R: the answer was lost):

| State          | version 1: commit, abort | 2, C: commit | 2, C: abort | 2, R: commit | 2, R: abort |
|----------------|--------------------------|--------------|-------------|--------------|-------------|
| Ongoing        | decided                  | decided      | decided     | 90           | 90          |
| PrepareCommit  | 51, 51                   | 51           | 51          | 51           | 51          |
| PrepareAbort   | 51, 51                   | 51           | 51          | 51           | 51          |
| CompleteCommit | granted, 48              | 48           | next epoch  | granted      | 48          |
| CompleteAbort  | 48, granted              | 48           | next epoch  | 48           | granted     |
| Empty          | 48, 48                   | 48           | next epoch  | 90           | 90          |

48 INVALID_TXN_STATE, 51 CONCURRENT_TRANSACTIONS, 90 PRODUCER_FENCED (also any other epoch). While markers are written,
version 2 answers 51 for any epoch and producer id: a transaction is answered before its markers, and the abort of an
empty one right after it does not mean a fenced producer (KAFKA-18464).
"""

from __future__ import annotations

from dataclasses import dataclass

from kbroker.coordinator.runtime.result import Result
from kbroker.coordinator.transaction.shard import TransactionShard
from kbroker.coordinator.transaction.state import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ProducerIdentity,
    Transaction,
    TransactionRecord,
    TransactionState,
)
from kbroker.errors import ErrorCode, KafkaError

EPOCH_PER_TRANSACTION = 2  # the transaction.version from which each EndTxn grants a new epoch

_RESULT_OF = {TransactionState.COMPLETE_COMMIT: True, TransactionState.COMPLETE_ABORT: False}


@dataclass(frozen=True, slots=True)
class EndRequest:
    """EndTxn of a client that uses `version` of transaction.version."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    version: int


def end_transaction(shard: TransactionShard, request: EndRequest) -> Result:
    """Decides a transaction. Raises KafkaError and what `take_producer_id` raises."""
    if request.version >= EPOCH_PER_TRANSACTION:
        return _end_with_new_epoch(shard, request)
    transaction = shard.transaction_of(request.transactional_id, request.producer_id)
    if not transaction.is_held_with(request.producer_epoch):
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    _refuse_while_markers_are_written(transaction)
    if transaction.state is TransactionState.ONGOING:
        return _decided(shard, request, _decide(transaction, request.commit, shard.now_ms()))
    return _repeated(request, transaction)


def fence(transaction: Transaction, now_ms: int, *, holder_may_continue: bool) -> Transaction:
    """The abort of an open transaction under an epoch that no producer has, which fences the old one.

    `holder_may_continue`: its producer gets that epoch when it asks (KIP-360, KIP-890), unless its epochs are used up.
    Otherwise it is fenced for good.
    """
    aborted = _decide(transaction, commit=False, now_ms=now_ms)
    known = holder_may_continue and not transaction.is_exhausted
    return aborted.changed(
        producer_epoch=transaction.producer_epoch + 1,
        last_producer_epoch=transaction.producer_epoch if known else NO_PRODUCER_EPOCH,
    )


def _decide(transaction: Transaction, commit: bool, now_ms: int) -> Transaction:
    return transaction.changed(
        state=TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT, last_update_ms=now_ms
    )


def _decided(shard: TransactionShard, request: EndRequest, prepared: Transaction) -> Result:
    return shard.prepared([TransactionRecord(request.transactional_id, prepared)], prepared.granted)


def _repeated(request: EndRequest, transaction: Transaction) -> Result:
    """The transaction was decided before: an answer without a write, if the decision is the same."""
    if _RESULT_OF.get(transaction.state) is not request.commit:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE)
    return Result(response=ProducerIdentity(transaction.producer_id, transaction.producer_epoch))


def _refuse_while_markers_are_written(transaction: Transaction) -> None:
    if transaction.state.is_prepared:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)


def _end_with_new_epoch(shard: TransactionShard, request: EndRequest) -> Result:
    transaction = shard.transactions.get(request.transactional_id)
    if transaction is None:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    _refuse_while_markers_are_written(transaction)
    repeated = transaction.was_granted_after(request.producer_id, request.producer_epoch)
    if transaction.producer_id != request.producer_id and not repeated:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    state = transaction.state
    if repeated and state in _RESULT_OF:
        return _repeated(request, transaction)
    if not transaction.is_held_with(request.producer_epoch):
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    if request.commit and state is not TransactionState.ONGOING:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE)
    return _decided(shard, request, _with_new_epoch(shard, request, transaction))


def _with_new_epoch(shard: TransactionShard, request: EndRequest, transaction: Transaction) -> Transaction:
    """The decision, and the epoch for the next transaction; a new producer id is reserved if no epoch is left."""
    now_ms = shard.now_ms()
    next_id = shard.take_producer_id() if transaction.is_exhausted else NO_PRODUCER_ID
    return _decide(transaction, request.commit, now_ms).changed(
        # Without partitions (an abort of nothing) the state may have no start time, or an old one.
        start_ms=transaction.start_ms if transaction.state is TransactionState.ONGOING else now_ms,
        producer_epoch=transaction.producer_epoch + 1,
        last_producer_epoch=transaction.producer_epoch,
        next_producer_id=next_id,
        client_version=request.version,
    )
