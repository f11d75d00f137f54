"""Leader epochs of a partition: which leader wrote from which offset on (KIP-101, KIP-279, KIP-320).

A row of the manifest has an epoch begin at the row's end. Where the leader took entries of the tail with it, they keep
the epochs of their batches, and its own epoch begins behind them: a consumer that has read them is not truncated.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from kbroker.storage.manifest.partition_state import trim_epochs

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class LeaderEpochs:
    """(epoch, start offset) pairs, both increasing; an immutable tuple, read without a lock.

    One writer at a time: the start of the log, then what moves the log start (see PartitionLog).
    """

    __slots__ = ("entries",)

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self.entries: tuple[tuple[int, int], ...] = ()
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)

    @property
    def latest(self) -> int:
        """The newest epoch, or -1."""
        return self.entries[-1][0] if self.entries else UNDEFINED_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        """An epoch has records from an offset on, unless it began before. Epochs that have written nothing below it,
        and later ones, which begin behind its records, give way."""
        earlier = tuple(entry for entry in self.entries if entry[0] <= epoch)
        if not earlier or earlier[-1][0] != epoch:
            earlier = (*(entry for entry in earlier if entry[1] < start_offset), (epoch, start_offset))
        self.entries = earlier

    def trim_start(self, log_start_offset: int) -> None:
        """The log start moved: epochs below it go, and the first one left starts there."""
        self.entries = trim_epochs(self.entries, log_start_offset)

    def epoch_at(self, offset: int) -> int:
        """The epoch that wrote `offset`, or -1."""
        index = bisect_right(self.entries, offset, key=lambda entry: entry[1])
        return self.entries[index - 1][0] if index else UNDEFINED_EPOCH

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(epoch, offset) where the largest known epoch <= `epoch` ended; (-1, -1) when that is not known."""
        entries = self.entries
        if epoch == UNDEFINED_EPOCH or not entries or epoch > entries[-1][0]:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == entries[-1][0]:
            return epoch, log_end_offset
        index = bisect_right(entries, epoch, key=lambda entry: entry[0])
        if index == 0:
            return epoch, entries[0][1]
        return entries[index - 1][0], entries[index][1]
