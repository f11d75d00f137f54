"""Reads a share's batches from its objects, in ranges loaded ahead of the decoder; every batch is checked when it
arrives.

When an object is gone or has another version, its offsets are looked up in the manifest again: compaction and
conversion may replace objects while a query runs.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from kbroker._fast.records import footer as klix_entries
from kbroker._fast.records.batch_check import check_batches
from kbroker.errors import CorruptionError
from kbroker.pipeline import data_loss
from kbroker.pipeline.batch_choice import (
    Batches,
    CountedRows,
    IndexCount,
    index_bytes,
    is_counted,
    ranges,
    within_time,
)
from kbroker.pipeline.bucket_view import BucketView, store_of
from kbroker.pipeline.object_index import ObjectIndex, entries_of_all
from kbroker.pipeline.options import OptionError, SourceOptions
from kbroker.pipeline.plan.planned_objects import PlannedObject, objects_between
from kbroker.pipeline.plan.splits import Share, Split, is_read_whole
from kbroker.pipeline.read_ahead import WINDOW_BYTES, ReadAhead
from kbroker.storage.formats.kfs_keys import SEGMENT_SUFFIX
from kbroker.storage.formats.klix import TAIL_BYTES
from kbroker.storage.manifest.partition_state import TIMES_UNKNOWN, ObjectRef
from kbroker.storage.stores.object_store import InvalidRange, NotFound, ObjectStore, PreconditionFailed

INDEXES_AHEAD = 2
COUNTED_WHOLE_BYTES = 64 * 1024  # when rows are only counted, a smaller image is read in one GET
LOOK_UPS_MAX = 8  # of one share: a limit on repeated replacement

_REPLACED = (NotFound, PreconditionFailed, InvalidRange)


class _Replaced(Exception):
    """An object differs from the plan; the share has been read up to offset `first`."""

    def __init__(self, ref: PlannedObject, first: int, error: Exception) -> None:
        super().__init__(f"{ref.key}: {error}")
        self.ref, self.first, self.error = ref, first, error


@dataclass(frozen=True, slots=True)
class _Window:
    """A range of an image: some batches and their index entries, or the whole image if `entries` is None.

    With `rows`, nothing is read.
    """

    ref: PlannedObject
    start: int
    length: int
    entries: np.ndarray | None
    first: int  # offsets below this one were read before
    stop: int  # the offset after its batches
    rows: CountedRows | None = None


class ObjectBatchReader:
    """The batches of one share, in order. Not thread-safe; `ahead` owns the threads."""

    def __init__(
        self,
        options: SourceOptions,
        split: Split,
        share: Share,
        ahead: ReadAhead,
        store: ObjectStore | None = None,
    ) -> None:
        self._options = options
        self._ahead = ahead
        self._share = share
        self._split = split
        self._counted = is_counted(options.columns, split.lowest_timestamp, split.highest_timestamp)
        self._store = store if store is not None else store_of(options.place)
        self._given_store = store

    def batches(self) -> Iterator[tuple[memoryview, str, int]]:
        """Yields checked whole batches, the key of their object, and the first offset to take from them.

        The bytes are valid until the next iteration.
        """
        for window, data in self._all():
            yield data, window.ref.key, window.first

    def counted(self) -> Iterator[CountedRows | tuple[memoryview, str, int]]:
        """Yields rows known from the indexes and, where these are not enough, batches as `batches` does."""
        for window, data in self._all():
            yield (data, window.ref.key, window.first) if window.rows is None else window.rows

    def _all(self) -> Iterator[tuple[_Window, memoryview]]:
        objects: Iterator[PlannedObject] = iter(self._split.objects_of(self._share))
        offset = self._share.first
        for _ in range(LOOK_UPS_MAX):
            try:
                yield from self._ahead.run(self._fitting(objects, offset), self._load)
                return
            except _Replaced as replaced:
                offset, objects = self._look_up(replaced)
        raise CorruptionError(f"{self._share.name}: its objects are replaced faster than they can be read")

    def _look_up(self, replaced: _Replaced) -> tuple[int, Iterator[PlannedObject]]:
        """Where, and with which objects, to continue after an object differed from the plan."""
        share, first, fail = self._share, replaced.first, self._options.fail_on_data_loss
        place = dataclasses.replace(self._options.place, cluster_id=self._split.cluster_id)
        view = BucketView(place, self._given_store)
        manifest = view.manifest
        state = manifest.partition(share.topic_id, share.partition)
        if state is None:
            data_loss.report(f"{share.name} was deleted, with it {replaced.ref.key}", fail)
            return share.stop, iter(())
        if state.log_start_offset > first:
            end = min(share.stop, state.log_start_offset)
            data_loss.report(f"offsets {first} to {end - 1} of {share.name}, in {replaced.ref.key}, were deleted", fail)
            first = end
        found = manifest.find(share.topic_id, share.partition, first)
        if found is not None and _is_same(found, replaced.ref) and not _is_copy(view.store, found):
            how = "not in the store" if isinstance(replaced.error, NotFound) else "the store's is another object"
            data_loss.report(f"{found.key} is in the manifest but {how} ({replaced.error})", fail)
            first = found.end_offset
        timestamps = self._split.lowest_timestamp, self._split.highest_timestamp
        return first, objects_between(manifest, share.topic_id, share.partition, (first, share.stop), timestamps)

    # -- what to load ------------------------------------------------------------------------------------------

    def _fitting(self, objects: Iterator[PlannedObject], offset: int) -> Iterator[_Window]:
        """Yields the windows. Raises OptionError at one that is too large for the task's memory."""
        limit = self._options.read_memory_bytes // 2
        for window in self._windows(objects, offset):
            if window.length > limit:
                raise OptionError(
                    f"{window.ref.key}: {window.length} bytes from offset {window.first} of {self._share.name} on are "
                    f"read at once: set option 'readMemoryBytes' to {2 * window.length} or more (it is "
                    f"{self._options.read_memory_bytes})"
                )
            yield window

    def _windows(self, objects: Iterator[PlannedObject], offset: int) -> Iterator[_Window]:
        for one, index in self._indexed(objects):
            first = max(offset, one.base_offset)
            if index is None:
                yield _Window(one, one.start, one.length, None, first, one.end_offset)
                continue
            choose = self._counted_windows if self._counted else self._windows_within_time
            try:
                for window in choose(one, index.result().pieces(self._ahead.submit), first):
                    yield window
                    first = window.stop
            except _REPLACED as error:
                raise _Replaced(one, first, error) from None

    def _indexed(self, objects: Iterator[PlannedObject]) -> Iterator[tuple[PlannedObject, Future[ObjectIndex] | None]]:
        """Yields objects with their indexes, a few of which are read ahead; None: the object is read whole."""
        ahead: deque[tuple[PlannedObject, Future[ObjectIndex] | None]] = deque()
        for one in objects:
            whole = is_read_whole(one)
            if self._counted and one.length > COUNTED_WHOLE_BYTES and not one.key.endswith(SEGMENT_SUFFIX):
                whole = False
            ahead.append((one, None if whole else self._ahead.submit(self._index, one)))
            if len(ahead) > INDEXES_AHEAD:
                yield ahead.popleft()
        yield from ahead

    def _wanted(self, entries: np.ndarray, first: int) -> Batches:
        """The batches of a piece of an index that have offsets from `first` to the share's end."""
        low = klix_entries.find_offset(memoryview(entries.view(np.uint8)), first)  # type: ignore[arg-type]
        return Batches(low, max(low, int(np.searchsorted(entries["base_offset"], self._share.stop))))

    def _windows_within_time(self, one: PlannedObject, pieces: Iterator[np.ndarray], first: int) -> Iterator[_Window]:
        lowest, highest = self._split.lowest_timestamp, self._split.highest_timestamp
        newest = TIMES_UNKNOWN
        for entries in pieces:
            batches = self._wanted(entries, first)
            within, newest = within_time(entries, lowest, highest, one.min_timestamp, one.late_ms, newest)
            places = batches.low + np.flatnonzero(within[batches.low : batches.high])
            for chosen in ranges(entries, places, WINDOW_BYTES):
                yield _window(one, entries, chosen, first)
            if batches.high < len(entries):
                return

    def _counted_windows(self, one: PlannedObject, pieces: Iterator[np.ndarray], first: int) -> Iterator[_Window]:
        """Yields windows of counted rows and, between them, of batches that must be read."""
        aborted = self._share.aborted if self._options.read_committed else ()
        offsets = "offset" in self._options.columns
        records = 0
        for entries in pieces:
            records += int(entries["record_count"].sum(dtype=np.int64))
            batches = self._wanted(entries, first)
            if batches.low == batches.high:
                continue
            count = IndexCount(entries, batches, first, self._share.stop, offsets=offsets, aborted=aborted)
            low = batches.low
            for chosen in (*ranges(entries, count.unknown(), WINDOW_BYTES), Batches(batches.high, batches.high)):
                if low < chosen.low:
                    rows = count.rows(Batches(low, chosen.low))
                    yield _Window(one, 0, 0, None, first, _end(entries, chosen.low), rows)
                if chosen.low < chosen.high:
                    yield _window(one, entries, chosen, first)
                low = chosen.high
        if records != one.record_count:
            raise CorruptionError(
                f"{one.key}: the index at byte {one.start} has {records} records, the manifest says {one.record_count}"
            )

    # -- one range ---------------------------------------------------------------------------------------------

    def _load(self, window: _Window, memory: memoryview) -> memoryview:
        ref, entries = window.ref, window.entries
        if window.rows is not None:
            return memory
        try:
            self._store.get_into(ref.key, window.start, memory, if_match=ref.etag)
        except _REPLACED as error:
            raise _Replaced(ref, window.first, error) from None
        data = memory
        if entries is None:
            entries, data_length = entries_of_all(ref, data)
            data = data[:data_length]
        index = memoryview(np.ascontiguousarray(entries).view(np.uint8))  # type: ignore[arg-type]
        try:
            check_batches(data, int(entries["base_offset"][0]), index)
        except ValueError as error:
            raise CorruptionError(f"{ref.key}: from byte {window.start} on: {error}") from None
        return data

    def _index(self, ref: PlannedObject) -> ObjectIndex:
        first_bytes = int(index_bytes(np.array(ref.length))) if self._counted else TAIL_BYTES
        return ObjectIndex(ref, lambda start, length: self._get(ref, ref.start + start, length), first_bytes)

    def _get(self, ref: PlannedObject, start: int, length: int) -> memoryview:
        data = memoryview(np.empty(length, np.uint8))  # type: ignore[arg-type]
        self._store.get_into(ref.key, start, data, if_match=ref.etag)
        return data


def _window(one: PlannedObject, entries: np.ndarray, chosen: Batches, first: int) -> _Window:
    """A window of some batches of an object."""
    low, high = chosen
    start = int(entries["position"][low])
    length = int(entries["position"][high - 1]) + int(entries["length"][high - 1]) - start
    first = max(first, int(entries["base_offset"][low]))
    return _Window(one, one.start + start, length, entries[low:high], first, _end(entries, high))


def _end(entries: np.ndarray, high: int) -> int:
    """The offset after batch `high` - 1."""
    return int(entries["base_offset"][high - 1]) + int(entries["last_offset_delta"][high - 1]) + 1


def _is_same(ref: ObjectRef, one: PlannedObject) -> bool:
    """Whether both name the same image of the same version of an object."""
    return (ref.key, ref.etag, ref.start) == (one.key, one.etag, one.start)


def _is_copy(store: ObjectStore, ref: ObjectRef) -> bool:
    """Whether the store serves these bytes after all, under another ETag, now that it has the manifest."""
    try:
        store.get(ref.key, 0, 1, if_match=ref.etag)
    except (NotFound, PreconditionFailed):
        return False
    return True
