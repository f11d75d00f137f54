"""The state of a transactional id, and the rules of its producer epochs (KIP-98, KIP-360, KIP-890).

    Empty ─► Ongoing ─► PrepareCommit | PrepareAbort ─► CompleteCommit | CompleteAbort ─► Ongoing | Empty

An epoch is granted once. A transaction that the coordinator ends by itself (time-out, a new producer) is ended under a
higher epoch that no producer gets, which fences the producer that had it open.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple

from kbroker.errors import ErrorCode

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
LAST_GRANTED_EPOCH = 32_766  # 32767 is reserved for fencing the producer that has this one

TRANSACTION_BYTES = 600
PARTITION_BYTES = 400  # with a long topic name, of which each request brings a new copy

TopicPartition = tuple[str, int]


class TransactionState(IntEnum):
    """States by their number in records. Dead and PrepareEpochFence are in no record and never stored: ids
    are removed and producers fenced in one step; tools may filter by them.
    """

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """Kafka's name: PrepareCommit."""
        return _TITLES[self]

    @property
    def is_prepared(self) -> bool:
        """Decided, and markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


_TITLES = {state: "".join(word.capitalize() for word in state.name.split("_")) for state in TransactionState}
DURABLE_STATES = frozenset(set(TransactionState) - {TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE})


@dataclass(frozen=True, slots=True)
class Transaction:
    """The durable state of a transactional id. Times are milliseconds."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    last_update_ms: int
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = -1  # of the transaction: its first partition; -1: there was none yet
    previous_producer_id: int = NO_PRODUCER_ID  # before the last change of state
    next_producer_id: int = NO_PRODUCER_ID  # with epoch 0 from Complete* on; the producer has it already
    last_producer_epoch: int = NO_PRODUCER_EPOCH  # its holder may ask for the current one; -1: no producer may
    client_version: int = 0  # transaction.version that the client uses

    def changed(self, **changes: Any) -> Transaction:
        """The next state."""
        return replace(self, **{"previous_producer_id": self.producer_id, **changes})

    def is_held_with(self, producer_epoch: int) -> bool:
        """True if a producer has got this epoch and no later one."""
        return producer_epoch == self.producer_epoch and 0 <= producer_epoch <= LAST_GRANTED_EPOCH

    @property
    def is_exhausted(self) -> bool:
        """True if no epoch is left to grant."""
        return self.producer_epoch >= LAST_GRANTED_EPOCH

    @property
    def granted(self) -> ProducerIdentity:
        """The producer id and epoch for the next transaction, if this one ended by EndTxn v5 or above."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return ProducerIdentity(self.next_producer_id, 0)
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    def was_granted_after(self, producer_id: int, producer_epoch: int) -> bool:
        """True if the current epoch was granted to the holder of this one, which may have missed the answer."""
        if producer_epoch != self.last_producer_epoch or producer_epoch == NO_PRODUCER_EPOCH:
            return False
        if producer_id == self.producer_id:
            return self.producer_epoch == producer_epoch + 1
        # The epochs of the old id were used up.
        return (
            producer_id == self.previous_producer_id
            and producer_epoch >= LAST_GRANTED_EPOCH
            and self.producer_epoch == 0
        )


class TransactionRecord(NamedTuple):
    """A record of `__transaction_state`; without a value the transactional id is removed."""

    transactional_id: str
    value: Transaction | None


class ProducerIdentity(NamedTuple):
    """The answer of InitProducerId and EndTxn."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    error: ErrorCode = ErrorCode.NONE


def refused(error: ErrorCode) -> ProducerIdentity:
    """The answer of a refused request."""
    return ProducerIdentity(error=error)
