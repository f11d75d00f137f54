"""The manifest in memory: every object of every partition, and what flushes said about offsets and producers.

The image is the fold of all manifest records. `apply` judges a record as a whole first: an overlap, a gap or a value
going backwards raises CorruptionError that names the record, and nothing of it is applied.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kbroker.errors import CorruptionError
from kbroker.storage.manifest_record import ManifestRecord, PartitionDelta, parse_record
from kbroker.storage.partition_state import (
    ObjectRef,
    PartitionState,
    RefRow,
    StoredObject,
    trim_epochs,
)


class ManifestImage:
    """What the bucket holds, as far as readers may know.

    `root` (ending with a slash, or empty) is put before every key on the way out. One lock, innermost of all, taken
    for microseconds: it makes the look-ups of other threads see a partition before or after a record, never between.
    Only Manifest calls `apply`. `partitions` and the states in it may be read without it, one attribute at a time.
    """

    def __init__(self, root: str = "") -> None:
        self.root = root
        self.lock = threading.RLock()
        self.partitions: dict[bytes, dict[int, PartitionState]] = {}
        self.files: dict[int, StoredObject] = {}
        self.wal_flushed: dict[str, int] = {}
        self.deletions: dict[str, int] = {}  # key below the root -> when it may be deleted, ms since the epoch
        self.reserved: dict[str, int] = {}  # key that a rewrite may become live under -> when it is given up
        self._next_file = 0
        self._file_of_key: dict[str, int] = {}

    # -- look-ups ----------------------------------------------------------------------------------------------

    def wal_flushed_lsn(self, data_dir_id: str) -> int | None:
        """Everything of this data directory's WAL below this position is in objects; None: nothing is known of it."""
        return self.wal_flushed.get(data_dir_id)

    def partition(self, topic_id: bytes, partition: int) -> PartitionState | None:
        """The state of one partition; None when nothing was ever flushed for it."""
        return self.partitions.get(topic_id, {}).get(partition)

    def states(self) -> list[PartitionState]:
        """All partitions, as of now."""
        with self.lock:
            return [state for states in self.partitions.values() for state in states.values()]

    def find(self, topic_id: bytes, partition: int, offset: int) -> ObjectRef | None:
        """The object that holds `offset`, or the first one above it; None when there is none."""
        with self.lock:
            state = self.partition(topic_id, partition)
            if state is None:
                return None
            index = state.index_of(offset)
            return self.ref(state.row(index)) if index < state.object_count else None

    def objects_from(self, topic_id: bytes, partition: int, offset: int = 0) -> Iterator[ObjectRef]:
        """The objects from the one that holds `offset` on, in offset order; looks each up when it is asked for."""
        while ref := self.find(topic_id, partition, offset):
            yield ref
            offset = ref.end_offset

    def object_count(self, topic_id: bytes, partition: int) -> int:
        """How many objects (or images in packs) a partition has."""
        state = self.partition(topic_id, partition)
        return state.object_count if state is not None else 0

    def live_keys(self) -> set[str]:
        """The keys, below the root, of all objects that hold live data."""
        with self.lock:
            return set(self._file_of_key)

    def is_live(self, relative_key: str) -> bool:
        """True when the manifest names this key as the home of live data."""
        return relative_key in self._file_of_key

    def is_known(self, relative_key: str) -> bool:
        """True when a record names this key: as live, reserved, or to be deleted."""
        return relative_key in self._file_of_key or relative_key in self.deletions or relative_key in self.reserved

    def live_images(self, relative_key: str) -> int:
        """How many references into an object are live (a pack has one per partition in it)."""
        file = self._file_of_key.get(relative_key)
        return self.files[file].live if file is not None else 0

    def due_deletions(self, now_ms: int, limit: int, at_once: Callable[[str], bool] = lambda key: False) -> list[str]:
        """Keys below the root whose grace time is over or that have none, never one that holds live data."""
        with self.lock:
            waiting = itertools.chain(self.deletions.items(), self.reserved.items())
            due = (key for key, due_ms in waiting if (due_ms <= now_ms or at_once(key)) and not self.is_live(key))
            return [key for key, _ in zip(due, range(limit), strict=False)]

    def ref(self, row: RefRow) -> ObjectRef:
        """A row of a partition's state with what is known of its object. The caller holds the lock."""
        file = self.files[row.file]
        return ObjectRef(
            key=self.root + file.key,
            kind=file.kind,
            base_offset=row.base_offset,
            end_offset=row.end_offset,
            start=row.start,
            length=row.length,
            size=file.size,
            etag=file.etag,
            crc32c=row.crc32c,
            leader_epoch=row.leader_epoch,
            max_timestamp=row.max_timestamp,
            record_count=row.record_count,
            created_ms=file.created_ms,
        )

    # -- records -----------------------------------------------------------------------------------------------

    def judge(self, payload: Any, name: str) -> ManifestRecord:
        """Parses a record and checks that it fits; CorruptionError, naming the record, when it does not."""
        record = parse_record(payload, name)
        if record.wal is not None:
            data_dir_id, lsn = record.wal
            if lsn < self.wal_flushed.get(data_dir_id, 0):
                raise CorruptionError(f"{name}: flushed WAL position goes back to {lsn}")
        keys = [entry.key for entry in record.files]
        if len(set(keys)) != len(keys):
            raise CorruptionError(f"{name}: an object is named twice")
        for key in keys:
            if key in self._file_of_key or key in self.deletions:
                raise CorruptionError(f"{name}: object {key} was named by an earlier record")
        for key, _ in record.queued:
            if key in self._file_of_key or key in keys:
                raise CorruptionError(f"{name}: object {key} is live and to be deleted")
        for key in record.deleted:
            if key in self._file_of_key or key in keys:
                raise CorruptionError(f"{name}: object {key} is live and was deleted")
        for key, _ in record.reserved:
            if key in self._file_of_key or key in self.deletions or key in self.reserved or key in keys:
                raise CorruptionError(f"{name}: object {key} cannot be reserved, it is known already")
        for topic_id, _ in record.dropped_topics:
            if any(key[0] == topic_id for key in record.partitions):
                raise CorruptionError(f"{name}: topic {topic_id.hex()} is dropped and changed")
        used = {row.file for delta in record.partitions.values() for row in delta.added}
        if len(used) != len(keys):
            raise CorruptionError(f"{name}: an object holds data of no partition")
        for (topic_id, partition), delta in record.partitions.items():
            self._judge_partition(topic_id, partition, delta, f"{name}: partition {topic_id.hex()}/{partition}")
        return record

    def _judge_partition(self, topic_id: bytes, partition: int, delta: PartitionDelta, what: str) -> None:
        state = self.partition(topic_id, partition) or PartitionState(topic_id, partition, delta.log_start_offset or 0)
        if delta.log_start_offset is not None and delta.log_start_offset < state.log_start_offset:
            raise CorruptionError(f"{what}: log start offset goes back to {delta.log_start_offset}")
        end_offset = _judge_added(state, delta, what)
        if delta.end_offset is not None and delta.end_offset != end_offset:
            raise CorruptionError(f"{what}: end offset {delta.end_offset}, but its objects end at {end_offset}")
        if delta.last_stable_offset is not None and delta.last_stable_offset > end_offset:
            raise CorruptionError(f"{what}: last stable offset {delta.last_stable_offset} is above {end_offset}")
        if delta.clean_offset is not None and not state.clean_offset <= delta.clean_offset <= end_offset:
            raise CorruptionError(f"{what}: clean offset {delta.clean_offset} is below the last one or above the end")
        last_epoch, last_start = state.leader_epochs[-1] if state.leader_epochs else (-1, -1)
        for epoch, start in delta.leader_epochs:
            if epoch <= last_epoch or start < last_start:
                raise CorruptionError(f"{what}: leader epoch {epoch} at {start} follows {last_epoch} at {last_start}")
            last_epoch, last_start = epoch, start

    def apply(self, payload: Any, name: str = "manifest record") -> None:
        """Judges and applies one record."""
        self.apply_record(self.judge(payload, name))

    def apply_record(self, record: ManifestRecord) -> None:
        """Applies a record that `judge` accepted for the image as it is now."""
        with self.lock:
            files = {}
            for number, entry in enumerate(record.files):
                files[number] = self._next_file
                self._file_of_key[entry.key] = self._next_file
                self.reserved.pop(entry.key, None)
                self.files[self._next_file] = StoredObject(*entry, created_ms=record.time_ms)
                self._next_file += 1
            # Counted before anything is dropped: a partition may drop at once what another one still needs.
            for delta in record.partitions.values():
                for row in delta.added:
                    self.files[files[row.file]].live += 1
            for (topic_id, partition), delta in record.partitions.items():
                self._apply_partition(topic_id, partition, delta, files, record.time_ms)
            for topic_id, grace_ms in record.dropped_topics:
                for state in self.partitions.pop(topic_id, {}).values():
                    self._release(state.remove(0, state.object_count), record.time_ms + grace_ms)
            self.reserved.update(record.reserved)
            for key, due_ms in record.queued:
                self.reserved.pop(key, None)
                self.deletions.setdefault(key, due_ms)
            for key in record.deleted:
                self.deletions.pop(key, None)
                self.reserved.pop(key, None)
            if record.wal is not None:
                self.wal_flushed[record.wal[0]] = record.wal[1]

    def _apply_partition(
        self, topic_id: bytes, partition: int, delta: PartitionDelta, files: dict[int, int], time_ms: int
    ) -> None:
        states = self.partitions.setdefault(topic_id, {})
        state = states.get(partition)
        if state is None:
            state = states[partition] = PartitionState(topic_id, partition, delta.log_start_offset or 0)
        due_ms = time_ms + delta.grace_ms
        replaced = _remove(state, delta.removed)
        for row in sorted(delta.added):
            stored = row._replace(file=files[row.file])
            if row.base_offset >= state.end_offset:
                state.append(stored)
                state.end_offset = row.end_offset
            else:
                state.insert(stored)
        if delta.open_transactions is not None:
            state.open_transactions = delta.open_transactions
        if delta.last_stable_offset is not None:
            state.last_stable_offset = delta.last_stable_offset
        for entry in delta.producers:
            state.producers[entry[0]] = entry
        state.leader_epochs += delta.leader_epochs
        state.aborted += delta.aborted
        if delta.aborted_gone:
            gone = set(delta.aborted_gone)
            state.aborted = tuple(entry for entry in state.aborted if entry[2] not in gone)
        if delta.clean_offset is not None:
            state.clean_offset = delta.clean_offset
        if delta.log_start_offset is not None and delta.log_start_offset > state.log_start_offset:
            self._move_log_start(state, delta.log_start_offset)
        self._release(replaced + state.remove(0, state.expired()), due_ms)

    def _move_log_start(self, state: PartitionState, log_start_offset: int) -> None:
        state.log_start_offset = log_start_offset
        # Not beyond what is flushed: epochs that begin there, below a start that DeleteRecords moved, are yet to come.
        state.leader_epochs = trim_epochs(state.leader_epochs, min(log_start_offset, state.end_offset))
        state.aborted = tuple(entry for entry in state.aborted if entry[2] >= log_start_offset)

    def _release(self, rows: Iterable[RefRow], due_ms: int) -> None:
        """Objects that hold nothing live any more go to the delete queue."""
        for row in rows:
            file = self.files[row.file]
            file.live -= 1
            if file.live == 0:
                self.deletions[file.key] = due_ms
                del self.files[row.file]
                del self._file_of_key[file.key]

    def expire_producers(self, now_ms: int, expiration_ms: int) -> None:
        """Forgets producers without an open transaction that were silent for `expiration_ms`."""
        with self.lock:
            for state in self.states():
                gone = [p[0] for p in state.producers.values() if p[4] < 0 and now_ms - p[3] >= expiration_ms]
                for producer_id in gone:
                    del state.producers[producer_id]


def _judge_added(state: PartitionState, delta: PartitionDelta, what: str) -> int:
    """Checks that objects stay in one gapless row; returns the end offset afterwards."""
    end_offset = state.end_offset
    inside: list[RefRow] = []
    for row in sorted(delta.added):
        if row.base_offset < state.end_offset:
            inside.append(row)
        elif row.base_offset == end_offset:
            end_offset = row.end_offset
        elif end_offset < row.base_offset <= max(state.log_start_offset, delta.log_start_offset or 0):
            end_offset = row.end_offset  # DeleteRecords had passed the flushed end, and the rest was lost or dropped
        else:
            raise CorruptionError(
                f"{what}: an object of offsets {row.base_offset} to {row.end_offset} follows {end_offset}"
            )
    removed = []
    if len(set(delta.removed)) != len(delta.removed):
        raise CorruptionError(f"{what}: replaces an object twice")
    for base_offset in sorted(delta.removed):
        index = state.index_of(base_offset)
        if index >= state.object_count or state.row(index).base_offset != base_offset:
            raise CorruptionError(f"{what}: replaces an object at offset {base_offset}, which is not there")
        removed.append(state.row(index))
    if _ranges(inside) != _ranges(removed):
        raise CorruptionError(f"{what}: replaces offsets {_ranges(removed)} by {_ranges(inside)}")
    return end_offset


def _remove(state: PartitionState, base_offsets: Iterable[int]) -> list[RefRow]:
    """Takes out the objects that begin at these offsets, neighbours together: compaction may replace thousands."""
    removed: list[RefRow] = []
    wanted = sorted(base_offsets)
    while wanted:
        first = last = state.index_of(wanted[0])
        taken = 0
        while taken < len(wanted) and last < state.object_count and state.row(last).base_offset == wanted[taken]:
            last += 1
            taken += 1
        removed += state.remove(first, last)
        del wanted[:taken]
    return removed


def _ranges(rows: list[RefRow]) -> list[tuple[int, int]]:
    """Offset ranges of sorted rows, neighbours joined; overlaps stay visible."""
    ranges: list[tuple[int, int]] = []
    for row in rows:
        if ranges and ranges[-1][1] == row.base_offset:
            ranges[-1] = (ranges[-1][0], row.end_offset)
        else:
            ranges.append((row.base_offset, row.end_offset))
    return ranges
