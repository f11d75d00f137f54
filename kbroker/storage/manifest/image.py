"""The manifest in memory: every object of every partition, and the offsets and producers of committed flushes.

The image is the fold of all manifest records. A record is checked as a whole first (record_check): an overlap, a gap or
a value going backwards raises CorruptionError that names the record, and nothing of it is applied (record_apply).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from kbroker._fast.partition.producer_pool import ProducerPool
from kbroker.lazy_numpy import np
from kbroker.storage.formats.kfs_keys import SEGMENT_SUFFIX
from kbroker.storage.manifest.deletions import DeleteQueue
from kbroker.storage.manifest.files import CHUNK_BITS, FileTable
from kbroker.storage.manifest.leadership import NO_EPOCH, Registered
from kbroker.storage.manifest.partition_state import COLUMNS, ObjectRef, PartitionState, RefRow

ROW_BYTES = 8 * COLUMNS
STATE_BYTES = 1000  # of a partition without its references, approximate


class Replaced(Exception):
    """The manifest names another object now: look it up again."""


class ManifestImage:
    """The committed content of the bucket.

    `root` (ending with a slash, or empty) is prefixed to every key that is returned. One lock, innermost of all:
    look-ups by other threads see a partition before or after a record, never in between. A record of ten thousand
    partitions is applied under it at once, so an I/O thread only tries to take it (ObjectReader.cached).
    `producer_ids_max`: bound of producers of all partitions together; those longest without a record are evicted.
    Records are applied one at a time, under Manifest's lock. `partitions` and the states in it may be read without the
    image's lock, one attribute at a time.
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
        self.dropped: dict[bytes, int] = {}  # topics dropped by a record -> when; the newest record_apply.DROPPED_MAX
        self.changed: set[tuple[bytes, int]] = set()  # partitions that a checkpoint must write again
        self.registrations: dict[str, Registered] = {}  # by directory id
        self.numbers: dict[int, str] = {}  # directory ids by number: each directory's newest one, and all not fenced
        self.last_number = 0  # the highest broker number that was ever given
        self.leader_epoch = NO_EPOCH  # the highest that was ever given, of all partitions
        self.has_leadership = False  # a record had registrations, moves, modes or new partitions

    # -- look-ups ----------------------------------------------------------------------------------------------

    def wal_flushed_lsn(self, data_dir_id: str) -> int | None:
        """Everything of this data directory's WAL below this position is in objects; None: unknown directory."""
        return self.wal_flushed.get(data_dir_id)

    def partition(self, topic_id: bytes, partition: int) -> PartitionState | None:
        """The state of one partition; None when nothing was ever flushed for it."""
        return self.partitions.get(topic_id, {}).get(partition)

    def directory_of(self, number: int) -> str | None:
        """The directory of a broker number, None for an unknown one, and for one that is fenced and has a successor."""
        return self.numbers.get(number)

    def is_fenced(self, number: int) -> bool:
        """Whether a broker number can commit nothing more. A number that was never given is not fenced."""
        directory_id = self.numbers.get(number)
        if directory_id is None:
            return 0 < number <= self.last_number
        registered = self.registrations[directory_id]
        return registered.fenced and registered.registration.number == number

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

    def timestamp_near(self, topic_id: bytes, partition: int, offset: int) -> int:
        """About the timestamp of the record at `offset` or the next one in objects, without reading them; -1: unknown.

        Interpolated between the largest timestamps of the object before and of the object that holds it.
        """
        with self.lock:
            state = self.partition(topic_id, partition)
            index = state.index_of(offset) if state is not None else 0
            if state is None or index >= state.object_count:
                return -1
            row = state.row(index)
            before = state.row(index - 1).max_timestamp if index else -1
        if not 0 <= before < row.max_timestamp or offset < row.base_offset:
            return row.max_timestamp
        share = (offset - row.base_offset) / (row.end_offset - row.base_offset)
        return before + int((row.max_timestamp - before) * share)

    @property
    def reference_count(self) -> int:
        """References to objects: one for each partition in it."""
        with self.lock:
            return sum(state.object_count for states in self.partitions.values() for state in states.values())

    @property
    def memory_bytes(self) -> int:
        """Approximate: columns, index, and the Python objects around them. Producers are in `producer_pool`."""
        with self.lock:
            count = sum(map(len, self.partitions.values()))
            return self.files.memory_bytes + ROW_BYTES * self.reference_count + STATE_BYTES * count

    def live_keys(self) -> set[str]:
        """The keys, below the root, of all objects with live data, as strings."""
        with self.lock:
            return {self.files.keys.key(place) for place in self.files.keys}

    def segment_keys(self) -> list[str]:
        """The keys, below the root, of all live KafScale segments."""
        with self.lock:
            return [key for key in self.files.keys.others.values() if key.endswith(SEGMENT_SUFFIX)]

    def is_live(self, relative_key: str) -> bool:
        """Whether the object with this key holds live data."""
        with self.lock:
            return self.files.keys.place_of(relative_key) is not None

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
        return self.files.keys.place_of(key.removeprefix(self.root)) if key.startswith(self.root) else None

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
            key=self.root + files.keys.key(row.file),
            kind=files.keys.kind(row.file),
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
            min_timestamp=row.min_timestamp,
            late_ms=row.late_ms,
        )

    # -- producers ---------------------------------------------------------------------------------------------

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
