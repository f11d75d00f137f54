"""Offsets committed in transactions that are still open: not visible yet (KIP-98, KIP-447).

When its transaction commits, an offset becomes the group's, unless a later record in the log has committed the
partition: the later record wins, transactional or not. Until the end of the transaction the partition is unstable
either way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kbroker.coordinator.group.memory import of_offset, of_pending_offset
from kbroker.coordinator.group.offsets.state import OffsetAndMetadata
from kbroker.coordinator.runtime.result import ProducerStamp

TopicPartition = tuple[str, int]


@dataclass(slots=True)
class _Pending:
    """One offset of one open transaction."""

    position: int  # in the order of the log
    value: OffsetAndMetadata | None  # None: a later record has superseded it


@dataclass(slots=True)
class _OpenTransaction:
    """The commits of one producer in its open transaction."""

    producer_epoch: int
    partitions: set[tuple[str, TopicPartition]] = field(default_factory=set)  # group id, partition


class TransactionalOffsets:
    """The pending offsets of one shard. Changed only by replay, in log order."""

    def __init__(self) -> None:
        self.by_group: dict[str, dict[TopicPartition, dict[int, _Pending]]] = {}  # innermost: by producer id
        self._transactions: dict[int, _OpenTransaction] = {}  # by producer id
        self._position = 0
        self.bytes = 0  # approximate memory

    def __bool__(self) -> bool:
        return bool(self._transactions)

    def is_open(self, stamp: ProducerStamp) -> bool:
        """True if this transaction has pending offsets here."""
        transaction = self._transactions.get(stamp.producer_id)
        return transaction is not None and transaction.producer_epoch == stamp.producer_epoch

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """True if an open transaction has committed this partition."""
        partitions = self.by_group.get(group_id)
        return partitions is not None and (topic, partition) in partitions

    def has_group(self, group_id: str) -> bool:
        """True if an open transaction has committed any partition of the group."""
        return group_id in self.by_group

    def of_group(self, group_id: str) -> list[TopicPartition]:
        """The partitions of the group that open transactions have committed."""
        return list(self.by_group.get(group_id, ()))

    # -- replay --------------------------------------------------------------------------------------------------

    def put(self, stamp: ProducerStamp, group_id: str, topic: str, partition: int, value: OffsetAndMetadata) -> None:
        """An offset was committed in the producer's transaction."""
        self._position += 1
        transaction = self._transactions.get(stamp.producer_id)
        if transaction is None:
            transaction = self._transactions[stamp.producer_id] = _OpenTransaction(stamp.producer_epoch)
        transaction.producer_epoch = stamp.producer_epoch
        transaction.partitions.add((group_id, (topic, partition)))
        by_producer = self.by_group.setdefault(group_id, {}).setdefault((topic, partition), {})
        before = by_producer.get(stamp.producer_id)
        by_producer[stamp.producer_id] = _Pending(self._position, value)
        self.bytes += of_pending_offset(value) - (0 if before is None else of_pending_offset(before.value))

    def supersede(self, group_id: str, topic: str, partition: int) -> None:
        """The partition was committed outside a transaction: its pending offsets are older."""
        for pending in self.by_group.get(group_id, {}).get((topic, partition), {}).values():
            self._give_way(pending)

    def remove(self, group_id: str, topic: str, partition: int) -> None:
        """The partition's offset was deleted, and its pending offsets with it."""
        key = topic, partition
        for producer_id in list(self.by_group.get(group_id, {}).get(key, ())):
            self._take(producer_id, group_id, key)

    def end(self, producer_id: int, commit: bool) -> Iterator[tuple[str, TopicPartition, OffsetAndMetadata | None]]:
        """Ends the producer's transaction. Yields its pending offsets, with the value if it is to be published."""
        transaction = self._transactions.get(producer_id)
        if transaction is None:
            return
        for group_id, key in list(transaction.partitions):
            pending = self._take(producer_id, group_id, key)
            if commit and pending.value is not None:
                self._supersede_older(group_id, key, pending.position)
            yield group_id, key, pending.value if commit else None

    def _supersede_older(self, group_id: str, key: TopicPartition, position: int) -> None:
        for other in self.by_group.get(group_id, {}).get(key, {}).values():
            if other.position < position:
                self._give_way(other)

    def _give_way(self, pending: _Pending) -> None:
        self.bytes -= of_offset(pending.value)
        pending.value = None

    def _take(self, producer_id: int, group_id: str, key: TopicPartition) -> _Pending:
        """Removes one pending offset, and containers that become empty."""
        partitions = self.by_group[group_id]
        pending = partitions[key].pop(producer_id)
        self.bytes -= of_pending_offset(pending.value)
        if not partitions[key]:
            del partitions[key]
        if not partitions:
            del self.by_group[group_id]
        transaction = self._transactions[producer_id]
        transaction.partitions.remove((group_id, key))
        if not transaction.partitions:
            del self._transactions[producer_id]
        return pending
