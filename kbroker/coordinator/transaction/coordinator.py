"""The transaction coordinator: what handlers and the produce path call. Any thread may; requests return a Future."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

from kbroker.clock import Clock
from kbroker.coordinator.runtime.all_shards import list_all, run_every
from kbroker.coordinator.runtime.internal_topic import InternalTopic
from kbroker.coordinator.runtime.request import Request
from kbroker.coordinator.runtime.result import Marker, Result
from kbroker.coordinator.runtime.shard_set import ShardSet, identity
from kbroker.coordinator.transaction import add_partitions, init_producer_id
from kbroker.coordinator.transaction import admin as transaction_admin
from kbroker.coordinator.transaction import end as end_transaction
from kbroker.coordinator.transaction import expiry as transaction_expiry
from kbroker.coordinator.transaction.add_partitions import PartitionsRequest
from kbroker.coordinator.transaction.admin import ListFilter
from kbroker.coordinator.transaction.config import TransactionConfig
from kbroker.coordinator.transaction.end import EPOCH_PER_TRANSACTION, EndRequest
from kbroker.coordinator.transaction.init_producer_id import InitRequest
from kbroker.coordinator.transaction.marker_writer import Markers
from kbroker.coordinator.transaction.producer_id_pool import OutOfProducerIds, ProducerIdPool, ProducerIdSource
from kbroker.coordinator.transaction.shard import TransactionShard
from kbroker.coordinator.transaction.state import ProducerIdentity, TopicPartition, refused
from kbroker.errors import ErrorCode, KafkaError
from kbroker.futures import completed
from kbroker.protocol.apis.transactions import k65_describe_transactions as k65
from kbroker.protocol.apis.transactions import k66_list_transactions as k66

Run = Callable[[TransactionShard], Result]


class TransactionCoordinator:
    """Transactional ids of the broker.

    `markers` ends transactions in partitions of any topic (marker_sink.MarkerSink). `newest_leader_epoch` gives the
    highest leader epoch of any partition that this broker knows. The other arguments are ShardSet's. Start it when the
    topics are known.
    """

    def __init__(
        self,
        config: TransactionConfig,
        clock: Clock,
        *,
        topic: InternalTopic,
        markers: Markers,
        producer_ids: ProducerIdSource,
        newest_leader_epoch: Callable[[], int],
        executor: Executor | None = None,
    ) -> None:
        self.config = config
        self.markers = markers
        self._newest_leader_epoch = newest_leader_epoch
        self.ended: Counter[str] = Counter()  # transactions since the start, by result; written by the loop thread
        self.verification_enabled = True  # transaction.partition.verification.enable; the produce path reads it
        self.shards: ShardSet[TransactionShard] = ShardSet(
            "transaction-coordinator",
            config,
            clock,
            partitions=config.state_log_partitions,
            new_shard=lambda: TransactionShard(
                config,
                markers=markers,
                post=lambda callback: self.loop.post(callback),
                take_producer_id=lambda: self._pool.take(),
                total_ids=lambda: self.transactional_ids,
                total_id_bytes=lambda: self.id_bytes,
                total_partition_bytes=lambda: self.partition_bytes,
                ended=self.ended,
            ),
            topic=topic,
            executor=executor,
        )
        self.loop = self.shards.loop
        self._pool = ProducerIdPool(producer_ids, self.loop.post)

    # -- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread and, if the topic exists, the loads of the shards that are led here."""
        self.loop.post(self._schedule_rounds)
        self.shards.start()

    def start_by_hand(self) -> None:
        """`start` without the thread: the caller runs the loop."""
        self.loop.post(self._schedule_rounds)
        self.shards.start_by_hand()

    def stop(self) -> None:
        """Answers all waiting requests with NOT_COORDINATOR and ends the threads."""
        self.shards.stop()

    def _schedule_rounds(self) -> None:
        run_every(self.shards, self.config.abort_timed_out_interval_ms, transaction_expiry.abort_timed_out)
        run_every(self.shards, self.config.remove_expired_interval_ms, transaction_expiry.remove_expired)

    @property
    def transactional_ids(self) -> int:
        """How many transactional ids there are."""
        return sum(len(runtime.shard.transactions) for runtime in self.shards.runtimes)

    @property
    def memory_bytes(self) -> int:
        """The approximate memory of the ids and the partitions of their transactions."""
        return self.id_bytes + self.partition_bytes

    @property
    def id_bytes(self) -> int:
        """The part of `memory_bytes` that lives as long as the ids."""
        return sum(runtime.shard.id_bytes for runtime in self.shards.runtimes)

    @property
    def partition_bytes(self) -> int:
        """The part of `memory_bytes` that ends with each transaction."""
        return sum(runtime.shard.partition_bytes for runtime in self.shards.runtimes)

    @property
    def unfinished(self) -> int:
        """Decided transactions whose markers are being written now."""
        return sum(len(runtime.shard.markers) for runtime in self.shards.runtimes)

    def locate(self) -> Future[ErrorCode]:
        """NONE once `__transaction_state` exists; creates it if necessary (FindCoordinator)."""
        return self.shards.locate()

    # -- producers -----------------------------------------------------------------------------------------------

    def init_producer_id(self, request: InitRequest) -> Future[ProducerIdentity]:
        """InitProducerId with a transactional id."""
        return self._submit(
            request.transactional_id,
            lambda shard: init_producer_id.init_producer_id(shard, request),
            refused,
            needs_topic=True,
        )

    def end_transaction(self, request: EndRequest) -> Future[ProducerIdentity]:
        """EndTxn; answered when the decision is durable."""
        return self._submit(
            request.transactional_id,
            lambda shard: end_transaction.end_transaction(shard, request),
            refused,
            waits_for_completion=True,
        )

    def add_partitions(self, request: PartitionsRequest) -> Future[ErrorCode]:
        """AddPartitionsToTxn and AddOffsetsToTxn; one answer for all partitions."""
        return self._submit(
            request.transactional_id,
            lambda shard: add_partitions.add_partitions(shard, request),
            identity,
            waits_for_completion=True,
        )

    def verify_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        add: bool,
    ) -> Future[dict[TopicPartition, ErrorCode]]:
        """Checks that the partitions are in the producer's open transaction; with `add`, first adds them, durably.

        An error per partition, NONE if it may be written: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED,
        CONCURRENT_TRANSACTIONS, TRANSACTION_ABORTABLE (not in the transaction), or the reason why this
        broker does not coordinate now. The caller translates them for its request's version.
        """
        request = PartitionsRequest(
            transactional_id,
            producer_id,
            producer_epoch,
            frozenset(partitions),
            EPOCH_PER_TRANSACTION if add else 0,
        )

        def run(shard: TransactionShard) -> Result:
            if not add:
                return add_partitions.verify_partitions(shard, request)
            added = add_partitions.add_partitions(shard, request)
            added.response = dict.fromkeys(request.partitions, ErrorCode.NONE)
            return added

        return self._submit(
            transactional_id,
            run,
            lambda error: dict.fromkeys(request.partitions, error),
            waits_for_completion=add,
        )

    # -- administration ------------------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> Future[k65.TransactionState]:
        """One transactional id; an unknown one has error TRANSACTIONAL_ID_NOT_FOUND."""
        return self._submit(
            transactional_id,
            lambda shard: transaction_admin.describe(shard, transactional_id),
            partial(transaction_admin.not_described, transactional_id),
        )

    def list(self, wanted: ListFilter) -> Future[list[k66.TransactionState] | ErrorCode]:
        """All transactional ids coordinated here that pass the filter, or the first error."""
        return list_all(self.shards, lambda shard: transaction_admin.list_transactions(shard, wanted))

    def write_markers(self, markers: Sequence[tuple[TopicPartition, Marker]]) -> Sequence[Future[ErrorCode]]:
        """Ends transactions in partitions without their coordinator (WriteTxnMarkers: an operator aborts)."""
        newest = max([self._newest_leader_epoch(), *(runtime.leader_epoch for runtime in self.shards.runtimes)])
        return [
            # No coordinator has a later epoch: a marker with one would fence all following ones.
            completed(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
            if marker.coordinator_epoch > newest
            else completed(ErrorCode.INVALID_PRODUCER_EPOCH)
            if marker.producer_id < 0 or marker.producer_epoch < 0
            else self.markers.write(*partition, marker)
            for partition, marker in markers
        ]

    # -- dispatch ------------------------------------------------------------------------------------------------

    def _submit(
        self,
        transactional_id: str,
        run: Run,
        error_response: Callable[[ErrorCode], Any],
        *,
        needs_topic: bool = False,
        waits_for_completion: bool = False,
    ) -> Future[Any]:
        """Runs an operation on the id's shard.

        It is restarted when it needs a producer id that must be claimed first. It is also restarted, once, when the
        markers of the previous transaction are written: soon, and sooner than a client's retry backoff.
        """
        may_wait = waits_for_completion

        def again() -> None:
            self.shards.runtime(transactional_id).submit(request)

        def attempt(shard: TransactionShard, future: Future) -> Result | None:
            nonlocal may_wait
            try:
                return run(shard)
            except OutOfProducerIds:
                self._pool.refill(again, request.refuse)
            except KafkaError as error:
                if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS or not may_wait:
                    raise
                may_wait = False
                wait_ms = self.config.completion_wait_ms
                shard.waits.park(transactional_id, shard.scheduler, wait_ms, again, request.refuse)
            return None

        request = Request(attempt, error_response, needs_topic=needs_topic, is_read=True)
        return self.shards.submit(transactional_id, request)
