"""Transactions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kbroker._fast.partition.partition import Partition
from kbroker.admin.metrics.declaration import Family, MetricTable
from kbroker.admin.metrics.shards import each_shard
from kbroker.admin.metrics.slices import Pause, in_slices
from kbroker.clock import Clock
from kbroker.coordinator.transaction.admin import transactions_by_state
from kbroker.coordinator.transaction.coordinator import TransactionCoordinator
from kbroker.coordinator.transaction.shard import TransactionShard
from kbroker.coordinator.transaction.state import TransactionState
from kbroker.log.log_table import LogTable

LATE_MS = 300_000  # beyond transaction.max.timeout.ms, as in Kafka's PartitionsWithLateTransactionsCount

TABLE = MetricTable("Transactions")
STATES = TABLE.gauge(
    "kbroker_transactional_ids",
    "Transactional ids by the state of their transaction; Ongoing: it is open",
    "transactions do not end",
    "state",
)
OLDEST = TABLE.gauge(
    "kbroker_transaction_oldest_seconds",
    "Age of the oldest open transaction; 0 when none is open",
    "consumers that read committed records stand still",
)
ENDED = TABLE.counter("kbroker_transactions_ended_total", "Transactions ended, by result", "many abort", "result")
UNFINISHED = TABLE.gauge(
    "kbroker_transactions_unfinished", "Decided transactions whose markers are being written", "it is not 0 for long"
)
LATE = TABLE.gauge(
    "kbroker_late_transaction_partitions",
    "Partitions with a transaction that hangs: open, and last written to more than transaction.max.timeout.ms and five "
    "minutes ago",
    "it is not 0: consumers that read committed records stand still; kbroker transaction abort-hanging ends it",
)


class TransactionMetrics:
    """Of the transaction coordinator, and of the partitions."""

    def __init__(self, transactions: TransactionCoordinator, logs: LogTable, clock: Clock, pause: Pause) -> None:
        self._transactions = transactions
        self._logs = logs
        self._clock = clock
        self._pause = pause

    def collect(self) -> Iterator[Family]:
        now_ms = self._clock.now_ms()
        states: Counter[object] = Counter()
        oldest_ms = now_ms
        for shard_states, shard_oldest_ms in each_shard(self._transactions.shards, _is_empty, _read, self._clock):
            states.update(shard_states)
            oldest_ms = min(oldest_ms, shard_oldest_ms)
            self._pause()
        yield STATES.by(((state,), count) for state, count in states.items())
        yield OLDEST.value((now_ms - oldest_ms) / 1000)
        yield ENDED.by(((result,), count) for result, count in self._transactions.ended.copy().items())
        yield UNFINISHED.value(self._transactions.unfinished)
        late_before_ms = now_ms - self._transactions.config.timeout_max_ms - LATE_MS
        partitions = in_slices(self._logs.all_partitions(), self._pause)
        yield LATE.value(sum(_is_late(partition, late_before_ms) for partition in partitions))


def _is_empty(shard: TransactionShard) -> bool:
    return not shard.transactions


def _read(shard: TransactionShard) -> tuple[Counter[object], int]:
    """Ids by state, and when the oldest open transaction began. On the coordinator's thread."""
    ongoing = TransactionState.ONGOING
    began = [each.start_ms for each in shard.transactions.values() if each.state is ongoing and each.start_ms >= 0]
    return transactions_by_state(shard), min(began, default=shard.now_ms())


def _is_late(partition: Partition, before_ms: int) -> bool:
    producers = partition.producers
    if not producers.transaction_count:
        return False
    return any(0 <= last_ms < before_ms for *_, last_ms in producers.open_transactions())
