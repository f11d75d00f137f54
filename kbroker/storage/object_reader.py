"""Reads batches back from objects: footer, ranged GET with read-ahead, CRC of every batch.

Every range begins and ends at a batch boundary (the footer's index says where), so what is cached is always whole
batches, and each batch's CRC is checked once, when its range arrives.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np

from kbroker._fast.records import iter_batches
from kbroker.errors import CorruptionError
from kbroker.limits import KIB, MIB
from kbroker.storage.klix import TAIL_BYTES, KlixFooter
from kbroker.storage.manifest_image import ManifestImage
from kbroker.storage.object_store import NotFound, ObjectStore, PreconditionFailed
from kbroker.storage.partition_state import ObjectRef
from kbroker.storage.range_cache import RangeCache

READ_AHEAD_BYTES_MIN = 512 * KIB
READ_AHEAD_BYTES_MAX = 32 * MIB
STREAMS_MAX = 10_000

T = TypeVar("T")


class ObjectBatches(NamedTuple):
    """Whole batches of one partition as they lie in an object; `data` borrows the cache's memory."""

    data: memoryview
    base_offset: int
    next_offset: int  # where the next read continues


class FooterCache:
    """Parsed footers, bounded by bytes, least recently used out first. Thread-safe."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self._lock = threading.Lock()
        self._footers: OrderedDict[tuple[str, str, int], KlixFooter] = OrderedDict()

    def get(self, slot: tuple[str, str, int]) -> KlixFooter | None:
        """The footer of the image at (key, ETag, start), if it is still here."""
        with self._lock:
            footer = self._footers.get(slot)
            if footer is not None:
                self._footers.move_to_end(slot)
            return footer

    def put(self, slot: tuple[str, str, int], footer: KlixFooter) -> None:
        """Keeps a footer; others go when the bound is passed."""
        with self._lock:
            if slot in self._footers:
                return
            self._footers[slot] = footer
            self.used_bytes += footer.nbytes
            while self.used_bytes > self._capacity_bytes and len(self._footers) > 1:
                self.used_bytes -= self._footers.popitem(last=False)[1].nbytes


class ObjectReader:
    """Reads of one cluster's objects through one cache. Blocking; called from the cold-read pool.

    Args:
        store: where the objects are; its wrappers retry.
        image: the manifest, which says what object holds an offset.
        cache_bytes: bound of footers and ranges together.
    """

    def __init__(self, store: ObjectStore, image: ManifestImage, cache_bytes: int) -> None:
        self._store = store
        self._image = image
        self.footers = FooterCache(max(1 * MIB, cache_bytes // 8))
        self.ranges = RangeCache(max(2 * MIB, cache_bytes * 7 // 8))
        self._window_max = max(READ_AHEAD_BYTES_MIN, min(READ_AHEAD_BYTES_MAX, cache_bytes // 8))
        self._windows: OrderedDict[tuple[bytes, int, int], int] = OrderedDict()  # next offset of a stream -> window
        self._windows_lock = threading.Lock()

    # -- batches -----------------------------------------------------------------------------------------------

    def read(self, topic_id: bytes, partition: int, offset: int, upper: int, max_bytes: int) -> ObjectBatches | None:
        """Whole batches from the one that holds `offset`, below `upper`, at most `max_bytes` but at least one.

        None when no object holds data at or above `offset`. Raises StoreError, CorruptionError.
        """

        def attempt(ref: ObjectRef) -> ObjectBatches | None:
            if ref.base_offset >= upper:
                return None
            return self._read_from(ref, topic_id, partition, offset, upper, max_bytes)

        return self._with_current(topic_id, partition, offset, attempt)

    def _with_current(
        self, topic_id: bytes, partition: int, offset: int, attempt: Callable[[ObjectRef], T]
    ) -> T | None:
        """Runs `attempt` on the object of `offset`; once more when it was replaced meanwhile."""
        ref = self._image.find(topic_id, partition, offset)
        for _ in range(3):
            if ref is None:
                return None
            try:
                return attempt(ref)
            except (NotFound, PreconditionFailed):
                fresh = self._image.find(topic_id, partition, offset)
                if fresh == ref:
                    raise
                ref = fresh
        return None

    def _read_from(
        self, ref: ObjectRef, topic_id: bytes, partition: int, offset: int, upper: int, max_bytes: int
    ) -> ObjectBatches | None:
        footer = self.footer(ref)
        first = footer.find_offset(offset)
        if first is None:  # the offset lies in a gap at the object's end
            return self.read(topic_id, partition, ref.end_offset, upper, max_bytes)
        window = self._window((topic_id, partition, offset), max_bytes)
        start, length = footer.read_range(first, window)
        start += ref.start
        found = self.ranges.load(
            (ref.key, ref.etag),
            start,
            start + length,
            lambda begin, end: self._load(ref, begin, end, int(footer.entries["base_offset"][first])),
        )
        _, used = footer.read_range(first, min(max_bytes, found.end - start))
        stop = footer.find_offset(upper)
        if stop is not None:
            used = min(used, max(footer.batch_range(first)[1], ref.start + footer.batch_range(stop)[0] - start))
        begin = start - found.start
        if begin + used > len(found.data):
            raise CorruptionError(f"{ref.key}: the index does not match the bytes at {start}")
        after = int(np.searchsorted(footer.entries["position"], start - ref.start + used))
        last = footer.entries[after - 1]
        next_offset = int(last["base_offset"]) + int(last["last_offset_delta"]) + 1
        self._remember((topic_id, partition, next_offset), window)
        data = memoryview(found.data)[begin : begin + used]
        return ObjectBatches(data, int(footer.entries["base_offset"][first]), next_offset)

    def _load(self, ref: ObjectRef, start: int, end: int, base_offset: int) -> bytes:
        data = self._store.get(ref.key, start, end - start, if_match=ref.etag)
        if len(data) != end - start:
            raise CorruptionError(f"{ref.key}: {len(data)} bytes at {start}, {end - start} expected")
        try:
            expected = base_offset
            for header, _ in iter_batches(data, check_crc=True):
                if header.base_offset < expected:
                    raise ValueError(f"offset {header.base_offset} follows {expected}")
                expected = header.next_offset
        except ValueError as error:
            raise CorruptionError(f"{ref.key}: batches at {start}: {error}") from None
        return data

    # -- read-ahead --------------------------------------------------------------------------------------------

    def _window(self, stream: tuple[bytes, int, int], max_bytes: int) -> int:
        """Bytes to get at once: doubles while a reader goes on where its last read ended."""
        with self._windows_lock:
            window = self._windows.pop(stream, 0)
        return min(self._window_max, max(READ_AHEAD_BYTES_MIN, window * 2, min(max_bytes, 4 * MIB)))

    def _remember(self, stream: tuple[bytes, int, int], window: int) -> None:
        with self._windows_lock:
            self._windows[stream] = window
            while len(self._windows) > STREAMS_MAX:
                self._windows.popitem(last=False)

    # -- footers -----------------------------------------------------------------------------------------------

    def footer(self, ref: ObjectRef) -> KlixFooter:
        """The index of one KLIX image. Raises StoreError, CorruptionError."""
        slot = (ref.key, ref.etag, ref.start)
        footer = self.footers.get(slot)
        if footer is not None:
            return footer
        tail_bytes = min(TAIL_BYTES, ref.length)
        while True:
            tail = self._store.get(ref.key, ref.start + ref.length - tail_bytes, tail_bytes, if_match=ref.etag)
            parsed = KlixFooter.parse(tail, ref.length, ref.key)
            if isinstance(parsed, KlixFooter):
                break
            tail_bytes = parsed.tail_bytes
        self.footers.put(slot, parsed)
        return parsed

    # -- timestamps --------------------------------------------------------------------------------------------

    def batch_for_timestamp(
        self, topic_id: bytes, partition: int, timestamp: int, min_offset: int
    ) -> tuple[memoryview, int] | None:
        """The first batch at or above `min_offset` whose largest timestamp is >= `timestamp`, and its next offset."""
        for ref in self._image.objects_from(topic_id, partition, min_offset):
            if ref.max_timestamp < timestamp:
                continue
            footer = self.footer(ref)
            index = footer.find_timestamp(timestamp)
            while index is not None:
                entry = footer.entries[index]
                if int(entry["base_offset"]) + int(entry["last_offset_delta"]) >= min_offset:
                    return self._one_batch(topic_id, partition, int(entry["base_offset"]))
                index = footer.find_timestamp(timestamp, index + 1)
        return None

    def batch_of_max_timestamp(
        self, topic_id: bytes, partition: int, min_offset: int
    ) -> tuple[memoryview, int] | None:
        """The earliest batch that holds the highest timestamp of all objects, and its next offset."""
        best: ObjectRef | None = None
        for ref in self._image.objects_from(topic_id, partition, min_offset):
            if best is None or ref.max_timestamp > best.max_timestamp:
                best = ref
        if best is None:
            return None
        footer = self.footer(best)
        return self._one_batch(topic_id, partition, int(footer.entries["base_offset"][footer.find_max_timestamp()]))

    def _one_batch(self, topic_id: bytes, partition: int, base_offset: int) -> tuple[memoryview, int] | None:
        found = self.read(topic_id, partition, base_offset, base_offset + 1, 1)
        return (found.data, found.next_offset) if found else None
