"""The input of a compaction round: the batches of objects in order, in blocks, each checked against CRC and index.

It bypasses the caches: a scan would only evict what clients read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np

from kbroker._fast.records.batch_check import check_batches
from kbroker._fast.records.record_batch import CorruptRecordsError
from kbroker.errors import CorruptionError
from kbroker.storage.formats.klix import TAIL_BYTES, KlixFooter
from kbroker.storage.manifest.partition_state import ObjectRef
from kbroker.storage.stores.object_store import ObjectStore


class ObjectBlocks:
    """Reads images with one reused buffer. `acquire(bytes)` waits until so many may be read."""

    def __init__(self, store: ObjectStore, acquire: Callable[[int], None], read_bytes: int) -> None:
        self._store = store
        self._acquire = acquire
        self._read_bytes = read_bytes
        self._buffer = memoryview(bytearray(read_bytes))
        self.bytes_read = 0

    def blocks(self, ref: ObjectRef, from_offset: int = 0) -> Iterator[memoryview]:
        """Whole batches of an image, from the one that holds `from_offset` on; each block is valid until the next.

        Raises StoreError (NotFound, PreconditionFailed: the object has been replaced), CorruptionError.
        """
        if ref.length <= self._read_bytes:
            image = self._get(ref, ref.start, ref.length)
            footer = self._parse(ref, bytes(image[-_tail_bytes(image) :]))
            position = _position(footer, footer.find_offset(from_offset))
            if position < footer.data_length:
                yield self._checked(ref, footer, position, image[position : footer.data_length])
            return
        footer = self._read_footer(ref)
        index = footer.find_offset(from_offset)
        while index is not None and index < len(footer):
            position, length = footer.read_range(index, self._read_bytes)
            yield self._checked(ref, footer, position, self._get(ref, ref.start + position, length))
            end = position + length
            index = int(np.searchsorted(footer.entries["position"], end)) if end < footer.data_length else None

    def _get(self, ref: ObjectRef, start: int, length: int) -> memoryview:
        self._acquire(length)
        # One batch may be larger than a block.
        out = self._buffer[:length] if length <= len(self._buffer) else memoryview(bytearray(length))
        self._store.get_into(ref.key, start, out, if_match=ref.etag)
        self.bytes_read += length
        return out

    def _read_footer(self, ref: ObjectRef) -> KlixFooter:
        tail_bytes = min(TAIL_BYTES, ref.length)
        while True:
            tail = self._store.get(ref.key, ref.start + ref.length - tail_bytes, tail_bytes, if_match=ref.etag)
            footer = KlixFooter.parse(tail, ref.length, ref.key)
            if isinstance(footer, KlixFooter):
                return footer
            tail_bytes = footer.tail_bytes

    def _parse(self, ref: ObjectRef, tail: bytes) -> KlixFooter:
        footer = KlixFooter.parse(tail, ref.length, ref.key)
        assert isinstance(footer, KlixFooter), "the whole index was given"
        return footer

    def _checked(self, ref: ObjectRef, footer: KlixFooter, position: int, block: memoryview) -> memoryview:
        first = int(np.searchsorted(footer.entries["position"], position))
        stop = int(np.searchsorted(footer.entries["position"], position + len(block)))
        entries = footer.entries[first:stop]
        if footer.base_offset < ref.base_offset or footer.end_offset > ref.end_offset:
            raise CorruptionError(f"{ref.key}: its offsets do not match the manifest")
        try:
            check_batches(block, int(entries["base_offset"][0]), memoryview(entries.tobytes()))
        except ValueError as error:
            raise CorruptionError(f"{ref.key}: from byte {ref.start + position} on: {error}") from None
        return block


def _tail_bytes(image: memoryview) -> int:
    """Bytes of the index and its trailer, as the trailer says; the whole image when that is impossible."""
    return min(len(image), int.from_bytes(image[-8:-4], "big") * 32 + 8)


def _position(footer: KlixFooter, index: int | None) -> int:
    return footer.data_length if index is None else footer.batch_range(index)[0]


@contextlib.contextmanager
def corruption_of(ref: ObjectRef) -> Iterator[None]:
    """Names the object in what its batches raise: CorruptRecordsError becomes CorruptionError."""
    try:
        yield
    except CorruptRecordsError as error:
        raise CorruptionError(f"{ref.key}: {error}") from None
