"""DescribeTransactions and ListTransactions (KIP-664, KIP-994, KIP-1152)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from kbroker.coordinator.runtime.result import Result
from kbroker.coordinator.transaction.records import by_topic
from kbroker.coordinator.transaction.shard import TransactionShard
from kbroker.coordinator.transaction.state import Transaction, TransactionState
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.apis.transactions import k65_describe_transactions as k65
from kbroker.protocol.apis.transactions import k66_list_transactions as k66

STATE_BY_TITLE = {state.title: state for state in TransactionState}


@dataclass(frozen=True, slots=True)
class ListFilter:
    """Conditions for a listed transaction; None: no condition."""

    states: frozenset[TransactionState] | None = None
    producer_ids: frozenset[int] | None = None
    open_longer_than_ms: int | None = None
    matches_id: Callable[[str], Any] | None = None

    def passes(self, transactional_id: str, transaction: Transaction, now_ms: int) -> bool:
        """True if it is to be listed."""
        if self.states is not None and transaction.state not in self.states:
            return False
        if self.producer_ids is not None and transaction.producer_id not in self.producer_ids:
            return False
        if self.open_longer_than_ms is not None and (
            transaction.start_ms < 0 or now_ms - transaction.start_ms <= self.open_longer_than_ms
        ):
            return False
        return self.matches_id is None or bool(self.matches_id(transactional_id))


def list_transactions(shard: TransactionShard, wanted: ListFilter) -> Result:
    """The transactional ids of this shard that pass the filter."""
    now_ms = shard.now_ms()
    return Result(
        response=[
            k66.TransactionState(
                transactional_id=transactional_id,
                producer_id=transaction.producer_id,
                transaction_state=transaction.state.title,
            )
            for transactional_id, transaction in shard.transactions.items()
            if wanted.passes(transactional_id, transaction, now_ms)
        ]
    )


def transactions_by_state(shard: TransactionShard) -> Counter[Hashable]:
    """Transactional ids by the state of their transaction, as ListTransactions names it."""
    return Counter(transaction.state.title for transaction in shard.transactions.values())


def describe(shard: TransactionShard, transactional_id: str) -> Result:
    """One transactional id; raises TRANSACTIONAL_ID_NOT_FOUND."""
    transaction = shard.transactions.get(transactional_id)
    if transaction is None:
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    return Result(
        response=k65.TransactionState(
            transactional_id=transactional_id,
            transaction_state=transaction.state.title,
            transaction_timeout_ms=transaction.timeout_ms,
            transaction_start_time_ms=transaction.start_ms,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            topics=[
                k65.TopicData(topic=topic, partitions=partitions)
                for topic, partitions in by_topic(transaction.partitions).items()
            ],
        )
    )


def not_described(transactional_id: str, error: ErrorCode) -> k65.TransactionState:
    """The answer for a transactional id that cannot be described."""
    return k65.TransactionState(transactional_id=transactional_id, error_code=error)
