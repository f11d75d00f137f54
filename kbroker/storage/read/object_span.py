"""A run of batches of one image, by their places in its index and in the object."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

import numpy as np

from kbroker._fast.records.batch_check import check_batches
from kbroker.errors import CorruptionError
from kbroker.limits import MIB
from kbroker.storage.formats.klix import KlixFooter
from kbroker.storage.manifest.partition_state import ObjectRef
from kbroker.storage.read.cached_pieces import Cut, ObjectId
from kbroker.storage.read.read_sharing import OffsetRange

Owner = tuple[bytes, int]  # topic id, partition

PIECE_BYTES = 1 * MIB  # of the cache, unless a single batch is larger
GET_BYTES_MAX = 8 * MIB  # of one GET, unless a single batch is larger; a larger window is several GETs in parallel


def image_id(ref: ObjectRef) -> ObjectId:
    """Identifies an image of one version of an object."""
    return ref.key, ref.etag, ref.start


class ObjectBatches(NamedTuple):
    """Whole batches of one partition, in offset order; `parts` borrow the cache's memory and keep it alive."""

    parts: list[memoryview]
    base_offset: int
    next_offset: int  # where the next read continues


class Span:
    """Batches [first, stop) of an image of a partition (`owner`)."""

    __slots__ = ("_positions", "first", "footer", "image", "owner", "ref", "stop")

    def __init__(self, owner: Owner, ref: ObjectRef, footer: KlixFooter, first: int, stop: int) -> None:
        self.owner = owner
        self.ref = ref
        self.footer = footer
        self.first = first
        self.stop = stop
        self.image = image_id(ref)
        self._positions = footer.entries["position"]

    @classmethod
    def of(cls, owner: Owner, ref: ObjectRef, footer: KlixFooter, offset: int, upper: int | None) -> Span | None:
        """The batches from `offset` on that end at or below `upper`; None if there are none."""
        first = footer.find_offset(offset)
        stop = footer.find_offset(upper) if upper is not None else None
        if stop is None:
            stop = len(footer)
        return cls(owner, ref, footer, first, stop) if first is not None and first < stop else None

    def position(self, index: int) -> int:
        """First byte of a batch, in the object; of the index, for the one after the last."""
        positions = self._positions
        return self.ref.start + (int(positions[index]) if index < len(positions) else self.footer.data_length)

    def within(self, first: int, stop: int, max_bytes: int) -> int:
        """Where whole batches from `first` on end that take at most `max_bytes`, below `stop` but at least one."""
        limit = self.position(first) + max_bytes
        return first + 1 + bisect_right(range(first + 2, stop + 1), limit, key=self.position)

    def block_end(self, first: int, max_bytes: int) -> int:
        """Where a GET that begins with `first` should end.

        The image is divided into fixed blocks of GET_BYTES_MAX, so that GETs of readers at different places fit
        together. A block has the batches that end in it.
        """
        position = self.position(first + 1) - self.ref.start - 1
        left = GET_BYTES_MAX - position % GET_BYTES_MAX
        whole = self.within(first, len(self.footer), self.position(first + 1) - self.position(first) + left - 1)
        return min(whole, self.within(first, len(self.footer), max_bytes))

    def at(self, position: int) -> int:
        """The batch that begins at a byte of the object."""
        return bisect_left(range(len(self.footer) + 1), position, key=self.position)

    def base_offset(self, index: int) -> int:
        """The offset of the first record of a batch."""
        return int(self.footer.entries["base_offset"][index])

    def end_offset(self, index: int) -> int:
        """The offset after the batch before `index`."""
        last = self.footer.entries[index - 1]
        return int(last["base_offset"]) + int(last["last_offset_delta"]) + 1

    def offsets(self, first: int, stop: int) -> OffsetRange:
        """The offsets of batches [first, stop)."""
        return OffsetRange(self.owner, self.base_offset(first), self.end_offset(stop))

    def check_and_cut(self, begin: int, data: memoryview | np.ndarray) -> list[Cut]:
        """Checks every batch in `data`, which begins at byte `begin`, against CRC and index; returns the cuts."""
        first, stop = self.at(begin), self.at(begin + len(data))
        entries = self.footer.entries[first:stop]
        index = memoryview(entries.view(np.uint8))  # type: ignore[arg-type]
        try:
            check_batches(data, int(entries["base_offset"][0]), index)  # type: ignore[arg-type]
        except ValueError as error:
            raise CorruptionError(f"{self.ref.key}: from byte {begin} on: {error}") from None
        cuts = []
        while first < stop:
            end = self.within(first, stop, PIECE_BYTES)
            cuts.append(Cut(self.position(end) - begin, self.offsets(first, end)))
            first = end
        return cuts
