"""The effect of a window's batches on a partition's epochs, transactions and producers, for the manifest record.

The state is folded from the batches of the flush itself, not taken from the running partition, which is ahead of the
flush: so the bucket holds one consistent moment. Rules: Kafka's ProducerStateManager and KIP-98.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kbroker._fast.records.gather import BatchScan
from kbroker.storage.manifest.partition_state import (
    PRODUCER_BATCHES_MAX,
    AbortedTransaction,
    PartitionState,
    ProducerBatch,
    ProducerEntry,
)
from kbroker.storage.manifest.record import PartitionDelta
from kbroker.storage.manifest.tails import epochs_begun, used_epochs

_TRANSACTIONAL = 1 << 4
_CONTROL = 1 << 5
_ABORT = 0
_MARKERS = (0, 1)


class PartitionFold:
    """Folds the batches of one partition in offset order, block by block, on top of its state in the manifest.

    `earlier`: the folds, oldest first, of earlier windows whose records are not in that state yet (or were added just
    now); they are complete, and read only by the constructor.
    """

    def __init__(self, state: PartitionState | None, earlier: Sequence[PartitionFold] = ()) -> None:
        self.leader_epochs: list[tuple[int, int]] = []
        self.aborted: list[AbortedTransaction] = []
        self._earlier_producers = [fold._touched for fold in reversed(earlier)]
        self._state = state
        used, self._unused = used_epochs(state) if state else ((), None)
        self.last_epoch = used[-1][0] if used else -1  # of what is in objects, or was added
        self._open: dict[int, int] = dict(state.open_transactions) if state else {}
        if earlier:
            self.last_epoch = max(self.last_epoch, earlier[-1].last_epoch)
            if self._unused is not None and self.last_epoch >= self._unused[0]:
                self._unused = None
            self._open = dict(earlier[-1]._open)
        self._opened_before = tuple(sorted(self._open.items()))
        self._touched: dict[int, ProducerEntry] = {}

    def add(self, scan: BatchScan, ended: int) -> None:
        """Adds the batches that ended in the last feed of a scan."""
        if ended == 0:
            return
        entries = scan.entries[scan.done - ended : scan.done]
        self._add_epochs(entries, scan.leader_epochs[:ended])
        producer_ids = scan.producer_ids[:ended]
        if producer_ids.max() < 0:
            return
        flags = scan.attributes[:ended]
        if (flags & (_TRANSACTIONAL | _CONTROL)).any():
            chosen: Iterator[int] = iter(range(ended))
        else:
            chosen = _newest_per_producer(producer_ids)
        for place in chosen:
            producer_id = int(producer_ids[place])
            if producer_id < 0:
                continue
            if flags[place] & _CONTROL:
                self._add_marker(scan, entries, place, producer_id)
            else:
                self._add_batch(scan, entries, place, producer_id, bool(flags[place] & _TRANSACTIONAL))

    def _add_epochs(self, entries: Any, epochs: Any) -> None:
        if epochs[-1] == self.last_epoch and epochs[0] == self.last_epoch:
            return  # epochs never go back within a partition
        for place in np.flatnonzero(np.diff(epochs, prepend=np.int32(self.last_epoch)) > 0):
            epoch = int(epochs[place])
            if epoch > self.last_epoch:
                self.leader_epochs.append((epoch, int(entries["base_offset"][place])))
                self.last_epoch = epoch

    def _entry(self, producer_id: int) -> ProducerEntry:
        entry = self._touched.get(producer_id)
        for touched in self._earlier_producers:
            if entry is not None:
                return entry
            entry = touched.get(producer_id)
        if entry is None and self._state is not None:
            entry = self._state.producers.get(producer_id)
        return entry or (producer_id, -1, -1, -1, -1, ())

    def _add_batch(self, scan: BatchScan, entries: Any, place: int, producer_id: int, transactional: bool) -> None:
        _, epoch, coordinator_epoch, _, first, batches = self._entry(producer_id)
        base_offset, delta = int(entries["base_offset"][place]), int(entries["last_offset_delta"][place])
        timestamp = int(entries["max_timestamp"][place])
        batch_epoch = int(scan.producer_epochs[place])
        if batch_epoch != epoch:
            batches = ()
        if transactional and first < 0:
            first = base_offset
            self._open[producer_id] = first
        base_sequence = int(scan.base_sequences[place])
        if base_sequence >= 0:  # a coordinator's batch has none
            batch: ProducerBatch = ((base_sequence + delta) & 0x7FFFFFFF, base_offset + delta, delta, timestamp)
            batches = (*batches, batch)[-PRODUCER_BATCHES_MAX:]
        self._touched[producer_id] = (producer_id, batch_epoch, coordinator_epoch, timestamp, first, batches)

    def _add_marker(self, scan: BatchScan, entries: Any, place: int, producer_id: int) -> None:
        marker = int(scan.marker_types[place])
        if marker not in _MARKERS:
            return
        _, epoch, coordinator_epoch, _, _, batches = self._entry(producer_id)
        offset = int(entries["base_offset"][place])
        first = self._open.pop(producer_id, None)
        if first is not None and marker == _ABORT:
            stable = min(self._open.values(), default=offset + 1)
            self.aborted.append((producer_id, first, offset, min(stable, offset + 1)))
        if int(scan.producer_epochs[place]) != epoch:
            epoch, batches = int(scan.producer_epochs[place]), ()
        coordinator_epoch = max(coordinator_epoch, int(scan.coordinator_epochs[place]))
        timestamp = int(entries["max_timestamp"][place])
        self._touched[producer_id] = (producer_id, epoch, coordinator_epoch, timestamp, -1, batches)

    def delta(self, end_offset: int) -> PartitionDelta:
        """What a manifest record says of the partition, without its objects."""
        open_transactions = tuple(sorted(self._open.items()))
        return PartitionDelta(
            end_offset=end_offset,
            last_stable_offset=min(self._open.values(), default=end_offset),
            open_transactions=open_transactions if open_transactions != self._opened_before else None,
            leader_epochs=epochs_begun(tuple(self.leader_epochs), self._unused, end_offset),
            aborted=tuple(self.aborted),
            producers=tuple(self._touched.values()),
        )


def _newest_per_producer(producer_ids: Any) -> Iterator[int]:
    """Places of the newest few batches of each producer; those of one producer in order."""
    order = np.argsort(producer_ids, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(producer_ids[order])) + 1, len(order))
    start = 0
    for end in ends.tolist():
        yield from order[max(start, end - PRODUCER_BATCHES_MAX) : end].tolist()
        start = end
