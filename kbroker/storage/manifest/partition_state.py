"""The manifest's state of one partition: offsets, epochs, transactions, producers and its objects in order.

Objects are held in arrays instead of one Python object each: a broker may have a million of them (every flush of ten
thousand quiet partitions adds ten thousand images of a pack). `ObjectRef` is built on access. The arrays are cut into
blocks, so that a change in the middle moves little, and a checkpoint writes only changed blocks.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

from kbroker._fast.manifest.partition_numbers import PartitionNumbers, RowArrays
from kbroker._fast.partition.producer_map import ProducerMap
from kbroker._fast.partition.producer_pool import ProducerPool
from kbroker.lazy_numpy import np
from kbroker.storage.manifest.leadership import NO_EPOCH, NO_LEADER, Mode

KLIX = "klix"
PACK = "pack"
KFS = "kfs"

# A producer's last batch: (last sequence, last offset, last offset delta, timestamp).
ProducerBatch = tuple[int, int, int, int]
# (producer id, epoch, coordinator epoch, last timestamp, open transaction's first offset or -1, newest <= 5 batches)
ProducerEntry = tuple[int, int, int, int, int, tuple[ProducerBatch, ...]]
# (producer id, first offset, last offset, last stable offset when it ended)
AbortedTransaction = tuple[int, int, int, int]

PRODUCER_BATCHES_MAX = 5
TIMES_UNKNOWN = -(1 << 63)  # a smallest timestamp that is not known: below all others
SPAN_MAX = (1 << 32) - 2  # of `span_ms` and `late_ms`; a larger one counts as not known


class ObjectRef(NamedTuple):
    """A run of batches of one partition in the bucket: a whole KLIX object, one KLIX image in a pack, or a segment.

    Bytes [start, start + length) of the object at `key` are a complete KLIX image of offsets
    [base_offset, end_offset), or, of a KafScale segment (kind KFS), the batches alone; crc32c is of those bytes, etag
    and size of the whole object. Ranged reads carry the ETag.

    No record is below `min_timestamp`, unless that is TIMES_UNKNOWN. `late_ms` is how far, at most, a record's
    timestamp lies below the largest one of all batches before its own here: 0 for ordered data, -1 when not known.
    """

    key: str
    kind: str
    base_offset: int
    end_offset: int
    start: int
    length: int
    size: int
    etag: str
    crc32c: int
    leader_epoch: int
    max_timestamp: int
    record_count: int
    created_ms: int
    min_timestamp: int = TIMES_UNKNOWN
    late_ms: int = -1


def is_same_object(found: ObjectRef | None, ref: ObjectRef) -> bool:
    """Whether both name the same bytes. The ETag may have been adopted from the store in between; it counts only for
    KafScale segments, whose keys are reused."""
    if found is None or ref.kind == KFS:
        return found == ref
    return found._replace(etag=ref.etag) == ref


def pack_times(span_ms: int, late_ms: int) -> int:
    """Both as one integer of a RefRow, 32 bits of each, plus 1: -1 is not known, so 0 says that neither is."""
    packed = (span_ms + 1) << 32 | (late_ms + 1)
    return packed - (1 << 64) if packed >> 63 else packed


def times_of(max_timestamp: int, min_timestamp: int, late_ms: int) -> int:
    """`times` of a RefRow, from what an ObjectRef has; what does not fit counts as not known."""
    span_ms = max_timestamp - min_timestamp if min_timestamp > TIMES_UNKNOWN else -1
    return pack_times(span_ms if 0 <= span_ms <= SPAN_MAX else -1, late_ms if 0 <= late_ms <= SPAN_MAX else -1)


class RefRow(NamedTuple):
    """One object reference as stored in a state: `file` is the object's place in the image's table.

    `times`: how early its records can be, see `pack_times`.
    """

    base_offset: int
    end_offset: int
    start: int
    length: int
    crc32c: int
    leader_epoch: int
    max_timestamp: int
    record_count: int
    times: int
    file: int

    @property
    def span_ms(self) -> int:
        """Largest timestamp less smallest one; -1: not known."""
        return (self.times >> 32 & 0xFFFFFFFF) - 1

    @property
    def late_ms(self) -> int:
        """See ObjectRef."""
        return (self.times & 0xFFFFFFFF) - 1

    @property
    def min_timestamp(self) -> int:
        """See ObjectRef."""
        return self.max_timestamp - self.span_ms if self.span_ms >= 0 else TIMES_UNKNOWN

    def reference(self) -> list[int]:
        """As a manifest record has it."""
        return [self.file, *self[:8], self.span_ms, self.late_ms]


COLUMNS = len(RefRow._fields)
TIMES, FILE = RefRow._fields.index("times"), RefRow._fields.index("file")
_STRIDE = COLUMNS - 1  # base offsets are an array of their own, for bisect
BLOCK_ROWS = 65_536


class RowBlock(RowArrays):
    """Consecutive references. `part`: its part of a checkpoint (manifest.checkpoint), until it changes."""

    __slots__ = ()

    def __init__(self, bases: array[int] | None = None, rows: array[int] | None = None, part: Any = None) -> None:
        self.bases = bases if bases is not None else array("q")
        self.rows = rows if rows is not None else array("q")
        self.part = part

    @classmethod
    def of(cls, matrix: np.ndarray, part: Any = None) -> RowBlock:
        """A block of the rows of a matrix, in RefRow's order."""
        # Of the exact size: `frombytes` takes a sixteenth more.
        bases, rows = array("q", [0]) * len(matrix), array("q", [0]) * (len(matrix) * _STRIDE)
        np.frombuffer(bases, np.int64)[:] = matrix[:, 0]
        np.frombuffer(rows, np.int64)[:] = matrix[:, 1:].reshape(-1)
        return cls(bases, rows, part)

    def matrix(self, first: int = 0, last: int | None = None) -> np.ndarray:
        """Rows [first, last) as a new matrix of int64, a row for each reference in RefRow's order."""
        last = len(self.bases) if last is None else last
        found = np.empty((last - first, COLUMNS), np.int64)
        found[:, 0] = np.frombuffer(self.bases, np.int64)[first:last]
        found[:, 1:] = np.frombuffer(self.rows, np.int64).reshape(-1, _STRIDE)[first:last]
        return found


class PartitionState(PartitionNumbers):
    """The manifest's state of one partition. Changed only under the image's lock (record_apply).

    log_start_offset may be above end_offset: DeleteRecords may pass what is flushed. `appended_count` and
    `appended_bytes` only grow: objects appended since this process has the partition.

    `leader` is a broker number. `leader_epochs` has no epoch that ended where it began, but for the current one.
    `mode_version` is one more with each change of `mode`. `tail` and `is_clean`: see leadership.Move.
    """

    __slots__ = (
        "_firsts",
        "aborted",
        "is_clean",
        "leader_epochs",
        "mode",
        "mode_version",
        "open_transactions",
        "tail",
    )

    def __init__(
        self, topic_id: bytes, partition: int, log_start_offset: int = 0, pool: ProducerPool | None = None
    ) -> None:
        self.topic_id = topic_id
        self.partition = partition
        self.log_start_offset = log_start_offset
        self.end_offset = log_start_offset
        self.last_stable_offset = log_start_offset
        self.clean_offset = log_start_offset  # compacted up to here; the log start may have passed it
        self.horizon_ms = -1  # when all remaining tombstones and markers below may be removed; -1: none
        self.open_transactions: tuple[tuple[int, int], ...] = ()
        self.leader_epochs: tuple[tuple[int, int], ...] = ()
        self.aborted: tuple[AbortedTransaction, ...] = ()
        self.leader = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.mode = Mode.WAL  # that everything acknowledged has reached
        self.mode_version = 0
        self.tail: tuple[str, int] | None = None
        self.is_clean = True
        self.producers = ProducerMap(pool)  # with the time of the last record that names them, if known
        self.data_bytes = 0  # of all objects, indexes included
        self.object_count = 0  # images in packs count as objects
        self.appended_count = 0
        self.appended_bytes = 0
        self.blocks = []  # none is empty
        self._firsts: list[int] = []  # base offset of the first object of each block

    def __reduce__(self) -> tuple[Any, ...]:
        """For Spark's tasks. What Cython makes leaves the slots out."""
        return _restored, ([getattr(self, name) for name in _FIELDS],)

    def reach(self, leader_epoch: int) -> int:
        """The offset up to which what was appended under this leader epoch is in objects; -1: the epoch has none."""
        end_offset = self.end_offset
        for epoch, start in reversed(self.leader_epochs):
            if epoch == leader_epoch:
                return end_offset
            end_offset = start
        return -1

    def row(self, index: int) -> RefRow:
        """The object at a place in offset order."""
        block, at = self._at(index)
        return RefRow(block.bases[at], *block.rows[at * _STRIDE : (at + 1) * _STRIDE])

    def rows(self, first: int, last: int) -> np.ndarray:
        """The objects at places [first, last) as a matrix of int64, in RefRow's order."""
        parts: list[np.ndarray] = []
        for block in self.blocks:
            count = len(block.bases)
            if first < count and last > 0:
                parts.append(block.matrix(max(first, 0), min(last, count)))
            first, last = first - count, last - count
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty((0, COLUMNS), np.int64), *parts])

    def column(self, column: int, first: int) -> np.ndarray:
        """One column, by its place in RefRow, of the objects from place `first` on."""
        parts = [np.frombuffer(block.bases, np.int64) for block in self.blocks]
        if column:
            parts = [np.frombuffer(block.rows, np.int64)[column - 1 :: _STRIDE] for block in self.blocks]
        return np.concatenate([np.empty(0, np.int64), *parts])[first:]

    def _at(self, index: int) -> tuple[RowBlock, int]:
        for block in self.blocks:
            if index < len(block.bases):
                return block, index
            index -= len(block.bases)
        raise IndexError(index)

    def index_of(self, offset: int) -> int:
        """Place of the object that holds `offset`, or of the first one above it; object_count when there is none."""
        number = max(bisect_right(self._firsts, offset) - 1, 0)
        if not self.blocks:
            return 0
        block = self.blocks[number]
        index = bisect_right(block.bases, offset)
        if index and offset < block.rows[(index - 1) * _STRIDE]:
            index -= 1
        return sum(len(before.bases) for before in self.blocks[:number]) + index

    def first_reaching(self, index: int, timestamp: int) -> int | None:
        """Place of the first object, from a place on, with a largest timestamp of at least this; None without one."""
        before = 0
        for block in self.blocks:
            count = len(block.bases)
            if index < before + count:
                skipped = max(index - before, 0)
                newest = np.frombuffer(block.rows, np.int64).reshape(-1, _STRIDE)[skipped:, 5]
                found = int(np.argmax(newest >= timestamp))
                if newest[found] >= timestamp:
                    return before + skipped + found
            before += count
        return None

    def append(self, row: RefRow) -> None:
        """Appends an object."""
        if not self.blocks or len(self.blocks[-1].bases) >= BLOCK_ROWS:
            self.blocks.append(RowBlock())
            self._firsts.append(row.base_offset)
        block = self.blocks[-1]
        block.rows.extend(row[1:])
        block.bases.append(row.base_offset)
        block.part = None
        self.data_bytes += row.length
        self.object_count += 1
        self.appended_count += 1
        self.appended_bytes += row.length

    def insert(self, row: RefRow) -> None:
        """Inserts an object in offset order."""
        if not self.blocks:
            self.append(row)
            return
        number = max(bisect_right(self._firsts, row.base_offset) - 1, 0)
        block = self.blocks[number]
        index = bisect_right(block.bases, row.base_offset)
        at = index * _STRIDE
        block.rows[at:at] = array("q", row[1:])
        block.bases.insert(index, row.base_offset)
        block.part = None
        self._firsts[number] = block.bases[0]
        self.data_bytes += row.length
        self.object_count += 1
        if len(block.bases) > BLOCK_ROWS:
            half = len(block.bases) // 2
            upper = RowBlock(block.bases[half:], block.rows[half * _STRIDE :])
            del block.bases[half:], block.rows[half * _STRIDE :]
            self.blocks.insert(number + 1, upper)
            self._firsts.insert(number + 1, upper.bases[0])

    def remove(self, first: int, last: int) -> np.ndarray:
        """Removes the objects at places [first, last) and returns them, as `rows` does."""
        removed = self.rows(first, last)
        kept: list[RowBlock] = []
        for block in self.blocks:
            count = len(block.bases)
            low, high = max(first, 0), min(last, count)
            if low < high:
                del block.bases[low:high], block.rows[low * _STRIDE : high * _STRIDE]
                block.part = None
            if block.bases:
                kept.append(block)
            first, last = first - count, last - count
        self.blocks = kept
        self._firsts = [block.bases[0] for block in kept]
        self.data_bytes -= int(removed[:, 3].sum())
        self.object_count -= len(removed)
        return removed

    def expired(self) -> int:
        """How many objects, from the first on, lie wholly below the log start offset."""
        if not self.object_count or self.blocks[0].rows[0] > self.log_start_offset:
            return 0
        return self.index_of(self.log_start_offset)

    def live_producers(self, now_ms: int, expiration_ms: int) -> Iterator[ProducerEntry]:
        """The producers that have not expired: with an open transaction, or not silent for `expiration_ms`.

        Silent: by the newest batch's timestamp, as in Kafka, and also by when it was committed to objects.
        """
        for producer_id, entry in self.producers.items():
            newest_ms = max(entry[3], self.producers.written_ms(producer_id, now_ms))
            if entry[4] >= 0 or now_ms - newest_ms < expiration_ms:
                yield entry

    def last_batches(self, now_ms: int, expiration_ms: int) -> dict[int, tuple[int, int]]:
        """Of the producers that have not expired: the offset of the last data batch, or -1, and the epoch."""
        return {
            producer_id: (batches[-1][1] if batches else -1, epoch)
            for producer_id, epoch, _, _, _, batches in self.live_producers(now_ms, expiration_ms)
        }

    def forget_silent_producers(self, now_ms: int, expiration_ms: int) -> bool:
        """Drops those that have expired; True when there are other producers than at the last call."""
        return self.producers.expire(now_ms, expiration_ms)

    def load_block(self, block: RowBlock, length: int) -> None:
        """From a checkpoint: appends a block of references with so many bytes together."""
        self.blocks.append(block)
        self._firsts.append(block.bases[0])
        self.object_count += len(block.bases)
        self.data_bytes += length


def trim_epochs(epochs: tuple[tuple[int, int], ...], log_start_offset: int) -> tuple[tuple[int, int], ...]:
    """Leader epochs after the log start moved: the first one that still has data starts at the log start offset."""
    first = 0
    while first + 1 < len(epochs) and epochs[first + 1][1] <= log_start_offset:
        first += 1
    if not epochs or epochs[first][1] >= log_start_offset:
        return epochs[first:]
    return ((epochs[first][0], log_start_offset), *epochs[first + 1 :])


def join_epochs(epochs: tuple[tuple[int, int], ...], begun: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Leader epochs after a record that says which ones begin. The row's own, which a move had begin at the row's end,
    is said again where the leader appended entries of earlier epochs, which its log had."""
    return (*(entry for entry in epochs if not begun or entry[0] < begun[0][0]), *begun)


_FIELDS = (*(name for name in vars(PartitionNumbers) if not name.startswith("_")), *PartitionState.__slots__)


def _restored(values: list[Any]) -> PartitionState:
    state = PartitionState.__new__(PartitionState)
    for name, value in zip(_FIELDS, values, strict=True):
        setattr(state, name, value)
    return state
