"""Time-outs: transactions that are open too long are aborted, unused transactional ids are removed."""

from __future__ import annotations

from kbroker.coordinator.runtime.result import Result
from kbroker.coordinator.transaction.end import fence
from kbroker.coordinator.transaction.shard import TransactionShard
from kbroker.coordinator.transaction.state import Transaction, TransactionRecord, TransactionState

_RECORDS_AT_ONCE = 1_000  # the rest is left for the next round


def abort_timed_out(shard: TransactionShard) -> Result:
    """Aborts transactions that are open for longer than their time-out. Their producers may begin the next one."""
    now_ms = shard.now_ms()
    late = [
        (transactional_id, transaction)
        for transactional_id, transaction in shard.transactions.items()
        if transaction.state is TransactionState.ONGOING and transaction.start_ms + transaction.timeout_ms < now_ms
    ]
    records = [
        TransactionRecord(transactional_id, fence(transaction, now_ms, holder_may_continue=True))
        for transactional_id, transaction in late[:_RECORDS_AT_ONCE]
    ]
    return shard.prepared(records)


def remove_expired(shard: TransactionShard) -> Result:
    """Removes the ids that were not used for transactional.id.expiration.ms and have no transaction."""
    oldest_ms = shard.now_ms() - shard.config.id_expiration_ms
    expired = [
        TransactionRecord(transactional_id, None)
        for transactional_id, transaction in shard.transactions.items()
        if _is_over(transaction) and transaction.last_update_ms <= oldest_ms
    ]
    return Result(list(expired))


def _is_over(transaction: Transaction) -> bool:
    return transaction.state is not TransactionState.ONGOING and not transaction.state.is_prepared
