"""The manifest state of one partition after a recovery: folded on from the end of the readable part.

Leader epochs, producers, and open and aborted transactions follow from the later batches, by the rules of a flush
(storage.flush.fold).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kbroker.exchange.recover.chain import Chain
from kbroker.exchange.recover.prefix import Position
from kbroker.exchange.recover.survey import found_scans
from kbroker.storage.flush.fold import PartitionFold
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.manifest.partition_state import PartitionState, RefRow, join_epochs, trim_epochs
from kbroker.storage.manifest.record import PartitionDelta
from kbroker.storage.stores.object_store import ObjectStore


@dataclass(slots=True)
class RecoveredPartition:
    """A recovered partition. `base_offset`: of the first piece; below the log start when that is inside one."""

    topic: str
    position: Position
    known: PartitionState | None  # in the readable part
    chain: Chain
    log_start_offset: int
    base_offset: int
    end_offset: int
    folded: PartitionDelta  # by PartitionFold
    notes: list[str] = field(default_factory=list)

    @property
    def known_end_offset(self) -> int:
        """The end offset in the readable part of the manifest."""
        return self.known.end_offset if self.known is not None else 0

    def first_delta(self, rows: list[RefRow]) -> PartitionDelta:
        """The manifest state with all objects."""
        known = self.known
        folded = self.folded
        open_transactions = folded.open_transactions
        if open_transactions is None:
            open_transactions = known.open_transactions if known is not None else ()
        producers = dict(known.producers) if known is not None else {}
        producers.update((entry[0], entry) for entry in folded.producers)
        epochs = join_epochs(known.leader_epochs if known is not None else (), folded.leader_epochs)
        if epochs and known is None:
            # Compaction may have removed its first batches; nothing precedes it.
            epochs = ((epochs[0][0], self.base_offset), *epochs[1:])
        aborted = (known.aborted if known is not None else ()) + folded.aborted
        clean = known.clean_offset if known is not None else 0
        return PartitionDelta(
            log_start_offset=self.base_offset,
            end_offset=self.end_offset,
            last_stable_offset=min(max(folded.last_stable_offset or 0, self.base_offset), self.end_offset),
            open_transactions=open_transactions,
            leader_epochs=trim_epochs(epochs, min(self.log_start_offset, self.end_offset)),
            aborted=tuple(entry for entry in aborted if entry[2] >= self.log_start_offset),
            producers=tuple(producers.values()),
            added=tuple(rows),
            clean_offset=min(clean, self.end_offset) if clean > self.base_offset else None,
        )

    def second_delta(self) -> PartitionDelta | None:
        """The log start, if it is not the first object's base offset."""
        if self.log_start_offset <= self.base_offset:
            return None
        return PartitionDelta(log_start_offset=self.log_start_offset)


def fold(
    store: ObjectStore, keys: ObjectKeys, position: Position, known: PartitionState | None, chain: Chain, end: int
) -> PartitionDelta:
    """The state at the end of the log, as a delta on top of `known`. Raises StoreError, CorruptionError."""
    folding = PartitionFold(known)
    start = known.end_offset if known is not None else 0
    for piece in chain.pieces:
        if piece.image is None or piece.end_offset <= start:
            continue
        low = max(piece.base_offset, start)
        for _, scan in found_scans(store, keys, piece.image, low, piece.end_offset):
            folding.add(scan, scan.done)
    return folding.delta(end)
