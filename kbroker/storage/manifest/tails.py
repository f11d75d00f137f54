"""Which entries of a broker's own WAL count (cluster protocol §5): recovery and every flush take these only.

`tail_epoch` is the rule of the running broker, too; there Partition.replay does the work of `entries_of_tail`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from kbroker.errors import CorruptionError
from kbroker.storage.manifest.leadership import NO_EPOCH
from kbroker.storage.manifest.partition_state import PartitionState

EVERY_EPOCH = -1

Epochs = tuple[tuple[int, int], ...]  # with their start offsets


class LogEntry(Protocol):
    """A batch in the WAL."""

    @property
    def base_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def leader_epoch(self) -> int: ...


E = TypeVar("E", bound=LogEntry)


def tail_epoch(row: PartitionState | None, directory_id: str) -> int | None:
    """The first leader epoch of which this directory's entries count; None: none do, another directory has the tail.

    Also under a new leader epoch: the tail stays when a directory comes back, and when a leader resigns to itself.
    EVERY_EPOCH: no record has given the partition a leader, as in the bucket of one broker before level 3.
    """
    if row is None or row.leader_epoch == NO_EPOCH:
        return EVERY_EPOCH
    if row.tail is None or row.tail[0] != directory_id:
        return None
    return row.tail[1]


def is_of_tail(entry: LogEntry, first_epoch: int) -> bool:
    """Generations of a partition may lie in one WAL: what is older than the tail was taken over by another broker."""
    return entry.leader_epoch >= first_epoch


def entries_of_tail(entries: Iterable[E], row: PartitionState, directory_id: str) -> tuple[list[E], int]:
    """Of a partition's entries, in the order of the WAL: those behind the row's end that count, and how many beyond it
    were dropped. CorruptionError if what counts is not contiguous: it begins at the row's end, or where DeleteRecords
    has passed that end."""
    first_epoch = tail_epoch(row, directory_id)
    found: list[E] = []
    dropped = 0
    expected = row.end_offset
    for entry in entries:
        if entry.end_offset <= row.end_offset:
            continue
        if first_epoch is None or not is_of_tail(entry, first_epoch):
            dropped += 1
            continue
        if not found and expected < entry.base_offset <= row.log_start_offset:
            expected = entry.base_offset
        if entry.base_offset != expected:
            name = f"{row.topic_id.hex()}/{row.partition}"
            raise CorruptionError(f"log of {name} in {directory_id}: {entry.base_offset} follows {expected}")
        found.append(entry)
        expected = entry.end_offset
    return found, dropped


def first_offset(row: PartitionState, entries: Sequence[LogEntry]) -> int:
    """Where a log begins that has these entries behind the row's end.

    At the log start if that is beyond all that is left: DeleteRecords may have passed what was flushed, and the log
    that had it was given up. Appended below, a record could not be read.
    """
    if entries and entries[-1].end_offset >= row.log_start_offset:
        return entries[0].base_offset
    return max(row.end_offset, row.log_start_offset)


def used_epochs(row: PartitionState) -> tuple[Epochs, tuple[int, int] | None]:
    """The row's leader epochs of which objects have something, and its leader's with its start, if they have not."""
    epochs = row.leader_epochs
    if epochs and epochs[-1][0] == row.leader_epoch and epochs[-1][1] >= row.end_offset:
        return epochs[:-1], epochs[-1]
    return epochs, None


def epochs_begun(added: Epochs, unused: tuple[int, int] | None, end_offset: int) -> Epochs:
    """What a window up to `end_offset` says of leader epochs: `added`, those that its batches begin, and the leader's,
    which begins behind what its log had of earlier ones. `unused`: as of used_epochs, None if a window before had it.

    Where the row says so, since it only knew its end, a consumer that has read these would be truncated.
    """
    if unused is not None and (not added or added[-1][0] < unused[0]):
        added = (*added, (unused[0], end_offset))
    return added if added != (unused,) else ()
