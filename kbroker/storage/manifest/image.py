"""The manifest in memory: every object of every partition, and the offsets and producers of committed flushes.

The image is the fold of all manifest records. `apply` checks a record as a whole first: an overlap, a gap or a value
going backwards raises CorruptionError that names the record, and nothing of it is applied.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kbroker._fast.partition.producer_pool import ProducerPool
from kbroker.errors import CorruptionError
from kbroker.lazy_numpy import np
from kbroker.storage.formats.kfs_keys import SEGMENT_SUFFIX
from kbroker.storage.manifest.deletions import NEVER_MS, DeleteQueue
from kbroker.storage.manifest.files import CHUNK_BITS, FileTable
from kbroker.storage.manifest.partition_state import (
    COLUMNS,
    ObjectRef,
    PartitionState,
    RefRow,
    trim_epochs,
)
from kbroker.storage.manifest.record import ManifestRecord, PartitionDelta, parse_record

ROW_BYTES = 8 * COLUMNS
STATE_BYTES = 1000  # of a partition without its references, approximate
DROPPED_MAX = 100_000  # deleted topics that are remembered: proof that their orphans may be deleted


class Replaced(Exception):
    """The manifest names another object now: look it up again."""


class ManifestImage:
    """The committed content of the bucket.

    `root` (ending with a slash, or empty) is prefixed to every key that is returned. One lock, innermost of all, held
    for microseconds: look-ups by other threads see a partition before or after a record, never in between.
    `producer_ids_max`: bound of producers of all partitions together; those longest without a record are evicted.
    Only Manifest calls `apply`. `partitions` and the states in it may be read without it, one attribute at a time.
    """

    def __init__(self, root: str = "", producer_ids_max: int = 0) -> None:
        self.root = root
        self.producer_pool = ProducerPool(producer_ids_max)  # 0: no bound
        self.lock = threading.RLock()
        self.partitions: dict[bytes, dict[int, PartitionState]] = {}
        self.files = FileTable()
        self.wal_flushed: dict[str, int] = {}
        self.deletions = DeleteQueue()  # key below the root -> when it may be deleted, ms since the epoch
        self.reserved = DeleteQueue()  # key that a rewrite may use -> when the reservation expires
        self.dropped: dict[bytes, int] = {}  # topics dropped by a record -> when; the newest DROPPED_MAX
        self.changed: set[tuple[bytes, int]] = set()  # partitions that a checkpoint must write again

    # -- look-ups ----------------------------------------------------------------------------------------------

    def wal_flushed_lsn(self, data_dir_id: str) -> int | None:
        """Everything of this data directory's WAL below this position is in objects; None: unknown directory."""
        return self.wal_flushed.get(data_dir_id)

    def partition(self, topic_id: bytes, partition: int) -> PartitionState | None:
        """The state of one partition; None when nothing was ever flushed for it."""
        return self.partitions.get(topic_id, {}).get(partition)

    def states(self) -> list[PartitionState]:
        """A copy of all partition states."""
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
        """The objects from the one that holds `offset` on, in offset order; each is looked up lazily."""
        while ref := self.find(topic_id, partition, offset):
            yield ref
            offset = ref.end_offset

    def objects_reaching(self, topic_id: bytes, partition: int, offset: int, timestamp: int) -> Iterator[ObjectRef]:
        """As `objects_from`, only those with a largest timestamp of at least `timestamp`; skips the others quickly."""
        while True:
            with self.lock:
                state = self.partition(topic_id, partition)
                index = state.first_reaching(state.index_of(offset), timestamp) if state is not None else None
                if state is None or index is None:
                    return
                ref = self.ref(state.row(index))
            yield ref
            offset = ref.end_offset

    def objects_newest_first(self, topic_id: bytes, partition: int, offset: int) -> Iterator[ObjectRef]:
        """The objects from the one that holds `offset` on, those with the largest timestamps first, then by offset.

        In the order at the call. Raises Replaced when it reaches one that has been replaced.
        """
        with self.lock:
            state = self.partition(topic_id, partition)
            if state is None:
                return
            first = state.index_of(offset)
            bases, newest = state.column(0, first), state.column(6, first)
        for place in np.argsort(-newest, kind="stable"):
            ref = self.find(topic_id, partition, int(bases[place]))
            if ref is None or (ref.base_offset, ref.max_timestamp) != (bases[place], newest[place]):
                raise Replaced
            yield ref

    def object_count(self, topic_id: bytes, partition: int) -> int:
        """How many objects (or images in packs) a partition has."""
        state = self.partition(topic_id, partition)
        return state.object_count if state is not None else 0

    @property
    def memory_bytes(self) -> int:
        """Approximate: columns, index, and the Python objects around them. Producers are in `producer_pool`."""
        with self.lock:
            states = [state for states in self.partitions.values() for state in states.values()]
            rows = sum(state.object_count for state in states)
            return self.files.memory_bytes + ROW_BYTES * rows + STATE_BYTES * len(states)

    def live_keys(self) -> set[str]:
        """The keys, below the root, of all objects with live data, as strings."""
        with self.lock:
            return {self.files.key(place) for place in self.files}

    def segment_keys(self) -> list[str]:
        """The keys, below the root, of all live KafScale segments."""
        with self.lock:
            return [key for key in self.files.other() if key.endswith(SEGMENT_SUFFIX)]

    def is_live(self, relative_key: str) -> bool:
        """Whether the object with this key holds live data."""
        with self.lock:
            return self.files.place_of(relative_key) is not None

    def is_known(self, relative_key: str) -> bool:
        """Whether a record names this key: as live, reserved, or to be deleted."""
        return relative_key in self.deletions or relative_key in self.reserved or self.is_live(relative_key)

    def described(self, key: str, etag: str) -> tuple[int, int] | None:
        """Size and CRC-32C of the object with this full key; None unless it is live and named with this ETag."""
        with self.lock:
            place = self._place_of(key)
            if place is None or self.files.etag(place) != etag:
                return None
            return self.files.size[place], self.files.crc32c[place]

    def adopt_etag(self, key: str, etag: str, present: str) -> None:
        """The object named with `etag` has the ETag `present` in this store: a copy of the same bytes.

        The next checkpoint records it.
        """
        with self.lock:
            place = self._place_of(key)
            if place is not None and self.files.etag(place) == etag:
                self.files.set_etag(place, present)
                self.files.changed.add(place >> CHUNK_BITS)

    def _place_of(self, key: str) -> int | None:
        return self.files.place_of(key.removeprefix(self.root)) if key.startswith(self.root) else None

    def live_images(self, relative_key: str) -> int:
        """How many references into an object are live (a pack has one per partition in it)."""
        with self.lock:
            place = self.files.place_of(relative_key)
            return self.files.live[place] if place is not None else 0

    def due_deletions(self, now_ms: int, limit: int, at_once: Callable[[str], bool] = lambda key: False) -> list[str]:
        """Keys below the root that are due for deletion, never one with live data.

        `at_once` is called only for segments in KafScale's format.
        """
        with self.lock:
            due: list[str] = []
            for queue in (self.deletions, self.reserved):
                if len(due) < limit:
                    due += [key for key in queue.due(now_ms, limit - len(due), at_once) if not self.is_live(key)]
            return due

    def ref(self, row: RefRow) -> ObjectRef:
        """A row of a partition's state joined with its object. The caller holds the lock."""
        files = self.files
        return ObjectRef(
            key=self.root + files.key(row.file),
            kind=files.kind(row.file),
            base_offset=row.base_offset,
            end_offset=row.end_offset,
            start=row.start,
            length=row.length,
            size=files.size[row.file],
            etag=files.etag(row.file),
            crc32c=row.crc32c,
            leader_epoch=row.leader_epoch,
            max_timestamp=row.max_timestamp,
            record_count=row.record_count,
            created_ms=files.created_ms[row.file],
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
        with self.lock:
            self._judge_keys(record, keys, name)
        for topic_id, _ in record.dropped_topics:
            if any(key[0] == topic_id for key in record.partitions):
                raise CorruptionError(f"{name}: topic {topic_id.hex()} is dropped and changed")
        used = {row.file for delta in record.partitions.values() for row in delta.added}
        if len(used) != len(keys):
            raise CorruptionError(f"{name}: an object holds data of no partition")
        for (topic_id, partition), delta in record.partitions.items():
            self._judge_partition(topic_id, partition, delta, f"{name}: partition {topic_id.hex()}/{partition}")
        return record

    def _judge_keys(self, record: ManifestRecord, keys: list[str], name: str) -> None:
        named = set(keys)
        for key in keys:
            if self.is_live(key) or key in self.deletions:
                raise CorruptionError(f"{name}: object {key} was named by an earlier record")
        for key, _ in record.queued:
            if key in named or self.is_live(key):
                raise CorruptionError(f"{name}: object {key} is live and to be deleted")
        for key in record.deleted:
            if key in named or self.is_live(key):
                raise CorruptionError(f"{name}: object {key} is live and was deleted")
        for key, _ in record.reserved:
            if key in named or self.is_known(key):
                raise CorruptionError(f"{name}: object {key} cannot be reserved, it is known already")

    def _judge_partition(self, topic_id: bytes, partition: int, delta: PartitionDelta, what: str) -> None:
        state = self.partition(topic_id, partition) or self._new_state(topic_id, partition, delta)
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
        """Checks and applies one record."""
        self.apply_record(self.judge(payload, name))

    def apply_record(self, record: ManifestRecord) -> None:
        """Applies a record that `judge` accepted for the current image."""
        with self.lock:
            files = {}
            for number, entry in enumerate(record.files):
                self.reserved.pop(entry.key, None)
                files[number] = self.files.add(*entry, created_ms=record.time_ms)
            # Counted before anything is removed: two partitions may share an object.
            for delta in record.partitions.values():
                for row in delta.added:
                    self.files.live[files[row.file]] += 1
            for (topic_id, partition), delta in record.partitions.items():
                self._apply_partition(topic_id, partition, delta, files, record.time_ms)
            for topic_id, grace_ms in record.dropped_topics:
                for state in self.partitions.pop(topic_id, {}).values():
                    self._release(state.remove(0, state.object_count), record.time_ms + grace_ms)
                    self.changed.add((topic_id, state.partition))
                self._note_dropped(topic_id, record.time_ms)
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
            state = states[partition] = self._new_state(topic_id, partition, delta)
        self.changed.add((topic_id, partition))
        due_ms = time_ms + delta.grace_ms
        replaced = _remove(state, delta.removed) if delta.removed else None
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
            state.producers.put(entry, time_ms)
        state.leader_epochs += delta.leader_epochs
        state.aborted += delta.aborted
        if delta.aborted_gone:
            gone = set(delta.aborted_gone)
            state.aborted = tuple(entry for entry in state.aborted if entry[2] not in gone)
        if delta.clean_offset is not None:
            state.clean_offset = delta.clean_offset
            state.horizon_ms = -1 if delta.horizon_ms is None else delta.horizon_ms
        if delta.log_start_offset is not None and delta.log_start_offset > state.log_start_offset:
            self._move_log_start(state, delta.log_start_offset)
        if replaced is not None:
            self._release(replaced, due_ms)
        if expired := state.expired():
            self._release(state.remove(0, expired), due_ms)

    def _new_state(self, topic_id: bytes, partition: int, delta: PartitionDelta) -> PartitionState:
        return PartitionState(topic_id, partition, delta.log_start_offset or 0, self.producer_pool)

    def _move_log_start(self, state: PartitionState, log_start_offset: int) -> None:
        state.log_start_offset = log_start_offset
        # Not beyond the flushed end: later epochs below a start that DeleteRecords moved are still to be flushed.
        state.leader_epochs = trim_epochs(state.leader_epochs, min(log_start_offset, state.end_offset))
        state.aborted = tuple(entry for entry in state.aborted if entry[2] >= log_start_offset)

    def _release(self, rows: np.ndarray, due_ms: int) -> None:
        """Queues objects without live data for deletion."""
        if not len(rows):
            return
        due_ms = min(due_ms, NEVER_MS)
        for place in self.files.drop_references(rows[:, -1]):
            self.deletions[self.files.key(place)] = due_ms
            self.files.remove(place)

    def _note_dropped(self, topic_id: bytes, time_ms: int) -> None:
        self.dropped.pop(topic_id, None)
        self.dropped[topic_id] = time_ms
        while len(self.dropped) > DROPPED_MAX:
            del self.dropped[next(iter(self.dropped))]

    def bound_producers(self, producer_ids_max: int) -> None:
        """Bounds the number of producers after a load: the oldest are evicted, now and later; 0: no bound."""
        if producer_ids_max:
            self.producer_pool.rows_max = producer_ids_max
        self.producer_pool.trim()

    def expire_producers(self, now_ms: int, expiration_ms: int) -> None:
        """Drops producers that were silent for `expiration_ms` (PartitionState.live_producers)."""
        with self.lock:
            for state in self.states():
                if state.forget_silent_producers(now_ms, expiration_ms):
                    self.changed.add((state.topic_id, state.partition))


def _judge_added(state: PartitionState, delta: PartitionDelta, what: str) -> int:
    """Checks that the objects stay contiguous; returns the end offset afterwards."""
    end_offset = state.end_offset
    inside: list[RefRow] = []
    for row in sorted(delta.added):
        if row.base_offset < state.end_offset:
            inside.append(row)
        elif row.base_offset == end_offset:
            end_offset = row.end_offset
        elif end_offset < row.base_offset <= max(state.log_start_offset, delta.log_start_offset or 0):
            end_offset = row.end_offset  # DeleteRecords had passed the flushed end, and the rest was never flushed
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


def _remove(state: PartitionState, base_offsets: Iterable[int]) -> np.ndarray:
    """Removes the objects that begin at these offsets, adjacent ones together: compaction may replace thousands."""
    removed: list[np.ndarray] = [np.empty((0, COLUMNS), np.int64)]
    wanted = sorted(base_offsets)
    while wanted:
        first = last = state.index_of(wanted[0])
        taken = 0
        while taken < len(wanted) and last < state.object_count and state.row(last).base_offset == wanted[taken]:
            last += 1
            taken += 1
        removed.append(state.remove(first, last))
        del wanted[:taken]
    return np.concatenate(removed)


def _ranges(rows: list[RefRow]) -> list[tuple[int, int]]:
    """Offset ranges of sorted rows, adjacent ones joined; overlaps stay visible."""
    ranges: list[tuple[int, int]] = []
    for row in rows:
        if ranges and ranges[-1][1] == row.base_offset:
            ranges[-1] = (ranges[-1][0], row.end_offset)
        else:
            ranges.append((row.base_offset, row.end_offset))
    return ranges
