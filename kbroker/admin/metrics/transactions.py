"""Transactions."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.admin.metrics.declaration import Family, MetricTable
from kbroker.admin.metrics.shards import counted
from kbroker.coordinator.transaction.admin import transactions_by_state
from kbroker.coordinator.transaction.coordinator import TransactionCoordinator

TABLE = MetricTable("Transactions")
STATES = TABLE.gauge("kbroker_transactional_ids", "Transactional ids by state", "transactions do not end", "state")
UNFINISHED = TABLE.gauge(
    "kbroker_transactions_unfinished", "Decided transactions whose markers are being written", "it is not 0 for long"
)


class TransactionMetrics:
    """Of the transaction coordinator."""

    def __init__(self, transactions: TransactionCoordinator) -> None:
        self._transactions = transactions

    def collect(self) -> Iterator[Family]:
        counts = counted(self._transactions.shards, transactions_by_state)
        yield STATES.by(((state,), count) for state, count in sorted(counts.items()))
        yield UNFINISHED.value(self._transactions.unfinished)
