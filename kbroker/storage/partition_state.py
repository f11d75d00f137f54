"""What the manifest knows of one partition: offsets, epochs, transactions, producers and its objects in order.

Objects are held in two arrays instead of one Python object each: a broker may have several hundred thousand of them
(every flush of ten thousand quiet partitions adds ten thousand images of a pack). `ObjectRef` is built on the way out.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import NamedTuple

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


class ObjectRef(NamedTuple):
    """A run of batches of one partition in the bucket: a whole KLIX object, one KLIX image in a pack, or a segment.

    Bytes [start, start + length) of the object at `key` are a complete KLIX image of offsets
    [base_offset, end_offset), or, of a KafScale segment (kind KFS), the batches alone; crc32c is of those bytes, etag
    and size of the whole object. Ranged reads carry the ETag.
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


class StoredObject:
    """One object in the bucket that the manifest names; `live` counts the ref entries that point into it."""

    __slots__ = ("crc32c", "created_ms", "etag", "key", "live", "size")

    def __init__(self, key: str, size: int, etag: str, crc32c: int, created_ms: int, live: int = 0) -> None:
        self.key = key  # below the root
        self.size = size
        self.etag = etag
        self.crc32c = crc32c
        self.created_ms = created_ms
        self.live = live

    @property
    def kind(self) -> str:
        """KLIX, PACK or KFS, told by the key."""
        return _KINDS.get(self.key[self.key.rfind(".") :], KLIX)


_KINDS = {".pack": PACK, ".kfs": KFS}


class RefRow(NamedTuple):
    """One object reference as stored in a state: `file` is the image's number of the StoredObject."""

    base_offset: int
    end_offset: int
    start: int
    length: int
    crc32c: int
    leader_epoch: int
    max_timestamp: int
    record_count: int
    file: int


_STRIDE = len(RefRow._fields) - 1  # base offsets are an array of their own, for bisect


class PartitionState:
    """The manifest's state of one partition. Changed only by ManifestImage, under its lock.

    log_start_offset may be above end_offset: DeleteRecords may pass what is flushed.
    """

    __slots__ = (
        "_bases",
        "_rows",
        "aborted",
        "clean_offset",
        "data_bytes",
        "end_offset",
        "last_stable_offset",
        "leader_epochs",
        "log_start_offset",
        "open_transactions",
        "partition",
        "producers",
        "topic_id",
    )

    def __init__(self, topic_id: bytes, partition: int, log_start_offset: int = 0) -> None:
        self.topic_id = topic_id
        self.partition = partition
        self.log_start_offset = log_start_offset
        self.end_offset = log_start_offset
        self.last_stable_offset = log_start_offset
        self.clean_offset = log_start_offset  # compaction has been up to here; the log start may have passed it
        self.open_transactions: tuple[tuple[int, int], ...] = ()
        self.leader_epochs: tuple[tuple[int, int], ...] = ()
        self.aborted: tuple[AbortedTransaction, ...] = ()
        self.producers: dict[int, ProducerEntry] = {}
        self.data_bytes = 0  # of all objects, indexes included
        self._bases = array("q")
        self._rows = array("q")

    @property
    def object_count(self) -> int:
        """Number of objects; images in packs count as objects."""
        return len(self._bases)

    def row(self, index: int) -> RefRow:
        """The object at a place in offset order."""
        at = index * _STRIDE
        return RefRow(self._bases[index], *self._rows[at : at + _STRIDE])

    def index_of(self, offset: int) -> int:
        """Place of the object that holds `offset`, or of the first one above it; object_count when there is none."""
        index = bisect_right(self._bases, offset)
        if index and offset < self._rows[(index - 1) * _STRIDE]:
            return index - 1
        return index

    def append(self, row: RefRow) -> None:
        """Adds an object behind all others."""
        self._rows.extend(row[1:])
        self._bases.append(row.base_offset)
        self.data_bytes += row.length

    def insert(self, row: RefRow) -> None:
        """Adds an object at its place in offset order."""
        index = bisect_right(self._bases, row.base_offset)
        at = index * _STRIDE
        self._rows[at:at] = array("q", row[1:])
        self._bases.insert(index, row.base_offset)
        self.data_bytes += row.length

    def remove(self, first: int, last: int) -> list[RefRow]:
        """Takes out the objects at places [first, last) and returns them."""
        removed = [self.row(index) for index in range(first, last)]
        del self._bases[first:last]
        del self._rows[first * _STRIDE : last * _STRIDE]
        self.data_bytes -= sum(row.length for row in removed)
        return removed

    def expired(self) -> int:
        """How many objects, from the first on, lie wholly below the log start offset."""
        index = 0
        while index < len(self._bases) and self._rows[index * _STRIDE] <= self.log_start_offset:
            index += 1
        return index

    def columns(self) -> list[array[int]]:
        """The objects as columns in RefRow's order (for a checkpoint)."""
        return [self._bases, *(self._rows[column::_STRIDE] for column in range(_STRIDE))]


def trim_epochs(epochs: tuple[tuple[int, int], ...], log_start_offset: int) -> tuple[tuple[int, int], ...]:
    """Leader epochs after the log start moved: the first one that still has data starts at the log start offset."""
    first = 0
    while first + 1 < len(epochs) and epochs[first + 1][1] <= log_start_offset:
        first += 1
    if not epochs or epochs[first][1] >= log_start_offset:
        return epochs[first:]
    return ((epochs[first][0], log_start_offset), *epochs[first + 1 :])
