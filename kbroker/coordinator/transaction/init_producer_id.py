"""InitProducerId of a transactional id: a new epoch for its producer (KIP-98, KIP-360).

| Entry                            | Answer                                                                  |
|----------------------------------|-------------------------------------------------------------------------|
| none                             | a new producer id, epoch 0                                              |
| PrepareCommit, PrepareAbort      | CONCURRENT_TRANSACTIONS                                                 |
| Ongoing                          | aborted under a higher epoch; CONCURRENT_TRANSACTIONS when that is durable |
| Empty, Complete*                 | the next epoch; a new producer id if no epoch is left                   |
| the same, a repeated request     | the epoch that was granted before                                       |
| another epoch or id is expected  | PRODUCER_FENCED                                                         |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kbroker.coordinator.runtime.result import Result
from kbroker.coordinator.transaction.end import fence
from kbroker.coordinator.transaction.shard import TransactionShard
from kbroker.coordinator.transaction.state import (
    LAST_GRANTED_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ProducerIdentity,
    Transaction,
    TransactionRecord,
    TransactionState,
    refused,
)
from kbroker.errors import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True)
class InitRequest:
    """InitProducerId with a transactional id; the producer may name its current id and epoch (KIP-360)."""

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH

    @property
    def expects(self) -> bool:
        """True if the producer names its current id and epoch."""
        return self.producer_id != NO_PRODUCER_ID


def init_producer_id(shard: TransactionShard, request: InitRequest) -> Result:
    """A new identity. Raises KafkaError and what `take_producer_id` raises."""
    if not 0 < request.timeout_ms <= shard.config.timeout_max_ms:
        raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    transaction = shard.transactions.get(request.transactional_id)
    if transaction is None:
        shard.check_bound()
        new_id = shard.take_producer_id()
        created = Transaction(new_id, 0, request.timeout_ms, TransactionState.EMPTY, shard.now_ms())
        return _granted(request, created)
    if request.expects and not _may_be_holder(request, transaction):
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    if transaction.state.is_prepared:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if transaction.state is TransactionState.ONGOING:
        if request.expects and request.producer_epoch != transaction.producer_epoch:
            raise KafkaError(ErrorCode.PRODUCER_FENCED)
        # A producer that names its id retries, and gets the epoch under which this is aborted.
        fenced = fence(transaction, shard.now_ms(), holder_may_continue=request.expects)
        aborted = TransactionRecord(request.transactional_id, fenced)
        return shard.prepared([aborted], refused(ErrorCode.CONCURRENT_TRANSACTIONS))
    return _granted(request, _next(shard, request, transaction))


def _may_be_holder(request: InitRequest, transaction: Transaction) -> bool:
    """True if the producer id is the current one, the next one, or the previous one that ran out of epochs."""
    return request.producer_id in (transaction.producer_id, transaction.granted.producer_id) or (
        request.producer_id == transaction.previous_producer_id and request.producer_epoch >= LAST_GRANTED_EPOCH
    )


def _next(shard: TransactionShard, request: InitRequest, transaction: Transaction) -> Transaction:
    if request.expects and transaction.was_granted_after(request.producer_id, request.producer_epoch):
        # The answer was lost. No other producer has asked since: that would have cleared the last epoch.
        return _reset(shard, request, transaction, previous_producer_id=transaction.previous_producer_id)
    if request.expects and request.producer_epoch != transaction.producer_epoch:
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    last_epoch = transaction.producer_epoch if request.expects else NO_PRODUCER_EPOCH
    if transaction.is_exhausted:
        new_id = shard.take_producer_id()
        return _reset(shard, request, transaction, producer_id=new_id, producer_epoch=0, last_producer_epoch=last_epoch)
    next_epoch = transaction.producer_epoch + 1
    return _reset(shard, request, transaction, producer_epoch=next_epoch, last_producer_epoch=last_epoch)


def _reset(shard: TransactionShard, request: InitRequest, transaction: Transaction, **changes: Any) -> Transaction:
    return transaction.changed(
        state=TransactionState.EMPTY,
        timeout_ms=request.timeout_ms,
        last_update_ms=shard.now_ms(),
        start_ms=-1,
        **changes,
    )


def _granted(request: InitRequest, transaction: Transaction) -> Result:
    identity = ProducerIdentity(transaction.producer_id, transaction.producer_epoch)
    return Result([TransactionRecord(request.transactional_id, transaction)], response=identity)
