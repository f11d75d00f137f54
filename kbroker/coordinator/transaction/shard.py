"""The transactional ids of one partition of `__transaction_state`: the state machine.

It knows no thread and no log. Handlers (the modules of this package) decide on the current state and return records;
`replay` alone changes durable state, at append for live traffic and in offset order for a load. The rest, such as
which markers are still to be written, follows from the state and is rebuilt after a load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from sys import getsizeof

from kbroker.coordinator.runtime.event_loop import Timer
from kbroker.coordinator.runtime.result import Marker, Operation, ProducerStamp, Result
from kbroker.coordinator.runtime.shard import Scheduler
from kbroker.coordinator.transaction.config import TransactionConfig
from kbroker.coordinator.transaction.marker_writer import Markers, MarkerWriter
from kbroker.coordinator.transaction.records import decode_record, encode_record
from kbroker.coordinator.transaction.state import (
    PARTITION_BYTES,
    TRANSACTION_BYTES,
    Transaction,
    TransactionRecord,
    TransactionState,
)
from kbroker.coordinator.transaction.waits import CompletionWaits
from kbroker.errors import ErrorCode, KafkaError

IDS_SHARE = 0.75  # of the bytes: ids live for days; the rest is for partitions, which end with their transaction

_COMPLETE_RETRY_MS = 100

RESULTS = {TransactionState.COMPLETE_COMMIT: "committed", TransactionState.COMPLETE_ABORT: "aborted"}


class TransactionShard:
    """State of one shard. Loop thread only (during a load: its worker thread only); other threads read its sizes.

    `take_producer_id` gives an unused producer id, or raises; the totals are of all shards; `post` queues a call for
    the loop thread from any thread.
    """

    def __init__(
        self,
        config: TransactionConfig,
        *,
        markers: Markers,
        post: Callable[[Callable[[], None]], None],
        take_producer_id: Callable[[], int],
        total_ids: Callable[[], int],
        total_id_bytes: Callable[[], int],
        total_partition_bytes: Callable[[], int],
        ended: Counter[str] | None = None,
    ) -> None:
        self.config = config
        self.ended = Counter() if ended is None else ended  # transactions by result, for metrics; of all shards
        self.take_producer_id = take_producer_id
        self.transactions: dict[str, Transaction] = {}
        self.markers = MarkerWriter(markers, post, self._markers_written)
        self.waits = CompletionWaits(post)
        self.id_bytes = 0  # of all transactional ids, about
        self.partition_bytes = 0  # of the partitions of their transactions
        self._total_ids = total_ids
        self._total_id_bytes = total_id_bytes
        self._total_partition_bytes = total_partition_bytes
        self._runtime: Scheduler | None = None

    @property
    def scheduler(self) -> Scheduler:
        """The runtime, once there is one."""
        assert self._runtime is not None
        return self._runtime

    def attach(self, runtime: Scheduler) -> None:
        """Gives a loaded shard its runtime."""
        self._runtime = runtime
        self.markers.attach(runtime)

    def now_ms(self) -> int:
        """Wall clock."""
        return self.scheduler.now_ms()

    def schedule(self, delay_ms: int, operation: Operation) -> Timer:
        """Runs `operation` on the loop thread after `delay_ms`."""
        return self.scheduler.schedule(delay_ms, operation)

    def activate(self) -> Result:
        """Resumes the transactions whose markers may not all be written."""
        for transactional_id, transaction in self.transactions.items():
            if transaction.state.is_prepared:
                self.markers.begin(transactional_id, transaction)
        return Result()

    def deactivate(self, error: ErrorCode) -> None:
        """Answers the waiting requests."""
        self.markers.stop()
        self.waits.refuse_all(error)

    # -- transactional ids ---------------------------------------------------------------------------------------

    def transaction_of(self, transactional_id: str, producer_id: int) -> Transaction:
        """The state that this producer may act on; INVALID_PRODUCER_ID_MAPPING if the id is not the producer's.

        CONCURRENT_TRANSACTIONS for the id that the previous transaction granted: it is valid from the last marker on.
        """
        transaction = self.transactions.get(transactional_id)
        if transaction is None or producer_id not in (transaction.producer_id, transaction.granted.producer_id):
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if transaction.producer_id != producer_id:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        return transaction

    def check_bound(self) -> None:
        """Raises POLICY_VIOLATION if the broker holds as many transactional ids as it may."""
        most = IDS_SHARE * self.config.bytes_max
        if self._total_ids() >= self.config.transactional_ids_max or self._total_id_bytes() >= most:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "too many transactional ids")

    def check_growth(self, growth_bytes: int) -> None:
        """Raises COORDINATOR_NOT_AVAILABLE, which clients retry, if transactions may not take that many more bytes."""
        most = (1 - IDS_SHARE) * self.config.bytes_max
        if growth_bytes > 0 and self._total_partition_bytes() + growth_bytes > most:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the open transactions have too many partitions")

    # -- ends of transactions ------------------------------------------------------------------------------------

    def prepared(self, records: list[TransactionRecord], response: object = None) -> Result:
        """Makes decisions durable; then their markers are written, if they have partitions."""

        def decided(error: ErrorCode) -> None:
            if error:
                return
            for transactional_id, transaction in records:
                if transaction is not None and transaction.state.is_prepared:
                    self.markers.begin(transactional_id, transaction)

        return Result(list(records), response=response, on_complete=decided)

    def _markers_written(self, transactional_id: str, prepared: Transaction) -> None:
        self.schedule(0, lambda: self._complete(transactional_id, prepared))

    def _complete(self, transactional_id: str, prepared: Transaction) -> Result | None:
        if self.transactions.get(transactional_id) is not prepared:
            return None

        def completed(error: ErrorCode) -> None:
            if error:  # nothing was appended
                self.schedule(_COMPLETE_RETRY_MS, lambda: self._complete(transactional_id, prepared))

        return Result([TransactionRecord(transactional_id, complete(prepared, self.now_ms()))], on_complete=completed)

    # -- replay --------------------------------------------------------------------------------------------------

    def encode(self, record: TransactionRecord) -> tuple[bytes, bytes | None]:
        """Key and value of a record."""
        return encode_record(record)

    def decode(self, key: bytes, value: bytes | None) -> TransactionRecord:
        """The record; raises UnknownRecordError."""
        return decode_record(key, value)

    def replay(self, record: TransactionRecord, stamp: ProducerStamp | None = None) -> None:
        """Applies one record. The only place where durable state changes."""
        before = self.transactions.get(record.transactional_id)
        for transaction, sign in ((record.value, 1), (before, -1)):
            if transaction is not None:
                self.id_bytes += sign * (TRANSACTION_BYTES + getsizeof(record.transactional_id))
                self.partition_bytes += sign * PARTITION_BYTES * len(transaction.partitions)
        if record.value is None:
            self.transactions.pop(record.transactional_id, None)
        else:
            self.transactions[record.transactional_id] = record.value
        if self._runtime is not None and record.value is not None and record.value.state in RESULTS:
            self.ended[RESULTS[record.value.state]] += before is None or before.state.is_prepared
        if record.value is None or not record.value.state.is_prepared:
            self.waits.resume(record.transactional_id)

    def replay_marker(self, marker: Marker) -> None:
        """The coordinator's own records are in no transaction."""

    # -- snapshot ------------------------------------------------------------------------------------------------

    def live_keys(self) -> Iterator[str]:
        """The transactional ids."""
        return iter(self.transactions)

    def live_record(self, key: str) -> TransactionRecord | None:
        """The record with the current state of `key`; None if there is none any more."""
        transaction = self.transactions.get(key)
        return None if transaction is None else TransactionRecord(key, transaction)


def complete(prepared: Transaction, now_ms: int) -> Transaction:
    """The state after the last marker. An id that was reserved at Prepare* becomes the current one."""
    committed = prepared.state is TransactionState.PREPARE_COMMIT
    identity = prepared.granted
    return prepared.changed(
        state=TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        next_producer_id=-1,
        partitions=frozenset(),
        last_update_ms=now_ms,
    )
