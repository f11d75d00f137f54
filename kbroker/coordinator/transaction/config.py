"""The transaction coordinator's settings, named after Kafka's broker configs."""

from __future__ import annotations

from dataclasses import dataclass

from kbroker import limits
from kbroker.coordinator.runtime.config import ShardConfig


@dataclass(frozen=True, slots=True)
class TransactionConfig(ShardConfig):
    """Times are milliseconds."""

    state_log_partitions: int = 50  # transaction.state.log.num.partitions
    timeout_max_ms: int = 900_000  # transaction.max.timeout.ms
    abort_timed_out_interval_ms: int = 10_000  # transaction.abort.timed.out.transaction.cleanup.interval.ms
    id_expiration_ms: int = 604_800_000  # transactional.id.expiration.ms
    remove_expired_interval_ms: int = 3_600_000  # transaction.remove.expired.transaction.cleanup.interval.ms
    transactional_ids_max: int = limits.TRANSACTIONAL_IDS_MAX
    bytes_max: int = 16 * limits.MIB  # of memory, of all transactional ids with their partitions
    partitions_max: int = limits.PARTITIONS_PER_TRANSACTION_MAX
    completion_wait_ms: int = 100  # add.partitions.to.txn.retry.backoff.max.ms: for the end of the previous transaction
