"""What simulated clients write, and the state of producers and transactions that follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kbroker.storage.manifest import tails
from kbroker.storage.manifest.partition_state import (
    PRODUCER_BATCHES_MAX,
    AbortedTransaction,
    PartitionState,
    ProducerEntry,
)

Place = tuple[bytes, int]  # topic id, partition


def named(place: Place) -> str:
    """A partition, for the reader of a failure."""
    return f"t{int.from_bytes(place[0], 'big')}-{place[1]}"


class Data(NamedTuple):
    """A batch of one record of an idempotent producer. `in_transaction`: the producer's id is that of its one
    transaction."""

    producer: int
    sequence: int
    in_transaction: bool = False

    def __repr__(self) -> str:
        return f"data {self.producer}/{self.sequence}{' in a transaction' if self.in_transaction else ''}"


class Marker(NamedTuple):
    """The end of a transaction in one partition. `end`: tells it from Data, as tuples are compared."""

    transaction: int
    commit: bool
    end: str = "marker"

    def __repr__(self) -> str:
        return f"marker {self.transaction} {'commit' if self.commit else 'abort'}"


class TransactionState(NamedTuple):
    """A record of the internal topic: "ongoing", a decision, or a decision that all partitions have."""

    transaction: int
    status: str
    partitions: tuple[Place, ...]
    name: str = "transaction"

    def __repr__(self) -> str:
        return f"transaction {self.transaction} {self.status}"


Record = Data | Marker | TransactionState


class Entry(NamedTuple):
    """An appended record."""

    place: Place
    offset: int
    leader_epoch: int
    record: Record

    def __repr__(self) -> str:
        return f"{self.record} of epoch {self.leader_epoch}"

    @property
    def base_offset(self) -> int:
        """As of a batch of one record."""
        return self.offset

    @property
    def end_offset(self) -> int:
        """As of a batch of one record."""
        return self.offset + 1


class LogState(NamedTuple):
    """Producers, open transactions and leader epochs of a partition at an offset; never changed in place."""

    producers: dict[int, ProducerEntry]
    open: dict[int, int]  # producer -> first offset
    epochs: tails.Epochs = ()

    @classmethod
    def of_row(cls, row: PartitionState) -> LogState:
        """As the ledger has it at the row's end."""
        return cls(dict(row.producers.items()), dict(row.open_transactions), tails.used_epochs(row)[0])

    def after(self, entries: Iterable[Entry]) -> LogState:
        """After these entries too."""
        producers, open_, epochs = dict(self.producers), dict(self.open), self.epochs
        for _, offset, leader_epoch, record in entries:
            if not epochs or epochs[-1][0] < leader_epoch:
                epochs = (*epochs, (leader_epoch, offset))
            if type(record) is Data:
                _, _, coordinator, _, first, batches = producers.get(record.producer, (0, 0, -1, -1, -1, ()))
                if record.in_transaction and first < 0:
                    first = open_[record.producer] = offset
                batches = (*batches, (record.sequence, offset, 0, offset))[-PRODUCER_BATCHES_MAX:]
                producers[record.producer] = (record.producer, 0, coordinator, offset, first, batches)
            elif type(record) is Marker:
                batches = producers.get(record.transaction, (0, 0, -1, -1, -1, ()))[5]
                open_.pop(record.transaction, None)
                producers[record.transaction] = (record.transaction, 0, 0, offset, -1, batches)
        return LogState(producers, open_, epochs)

    def is_ended(self, transaction: int) -> bool:
        """Its marker is there: nothing of it may follow."""
        entry = self.producers.get(transaction)
        return entry is not None and entry[2] >= 0

    def marker_offset(self, transaction: int) -> int:
        """Of one that `is_ended`."""
        return self.producers[transaction][3]

    def offset_of(self, producer: int, sequence: int) -> int | None:
        """Of one of the producer's newest batches; -1: the sequence is due next; None: neither."""
        entry = self.producers.get(producer)
        batches = entry[5] if entry is not None else ()
        if sequence == (batches[-1][0] + 1 if batches else 0):
            return -1
        return next((offset for known, offset, _, _ in batches if known == sequence), None)

    def touched_since(self, before: LogState) -> tuple[ProducerEntry, ...]:
        """What a record has to say of producers, after one that left them as `before`."""
        return tuple(entry for id_, entry in self.producers.items() if before.producers.get(id_) != entry)


def is_superseded(record: Record, later: Iterable[Record]) -> bool:
    """Whether compaction may drop a record: a later one has its key, the producer. Transactions stay whole."""
    return (
        type(record) is Data
        and not record.in_transaction
        and any(
            type(other) is Data and other.producer == record.producer and other.sequence > record.sequence
            for other in later
        )
    )


def aborted_in(before: LogState, entries: Iterable[Entry]) -> Iterator[AbortedTransaction]:
    """The transactions that end in these entries without a commit."""
    open_ = dict(before.open)
    for _, offset, _, record in entries:
        if type(record) is Data and record.in_transaction:
            open_.setdefault(record.producer, offset)
        elif type(record) is Marker:
            first = open_.pop(record.transaction, None)
            if first is not None and not record.commit:
                yield record.transaction, first, offset, min([offset + 1, *open_.values()])
