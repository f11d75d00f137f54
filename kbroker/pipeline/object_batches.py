"""Reads a share's batches from its objects: ranged GETs ahead of the decoder, every batch checked when it arrives.

A range that is gone or another version is looked up in the manifest again: compaction and conversion replace objects
while a query runs, with the same offsets in them.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from kbroker._fast.records import footer as klix_entries
from kbroker._fast.records.batch_check import check_batches
from kbroker.errors import CorruptionError
from kbroker.limits import MIB
from kbroker.pipeline import data_loss
from kbroker.pipeline.bucket_view import BucketView, store_of
from kbroker.pipeline.options import SourceOptions
from kbroker.pipeline.splits import Share, Split, is_read_whole, objects_between
from kbroker.storage.formats.kfs_keys import SEGMENT_SUFFIX
from kbroker.storage.formats.klix import TAIL_BYTES, KlixFooter
from kbroker.storage.manifest.partition_state import ObjectRef
from kbroker.storage.read.object_reader import image_id
from kbroker.storage.stores.object_store import InvalidRange, NotFound, ObjectStore, PreconditionFailed

WINDOW_BYTES = 4 * MIB  # one GET, unless a single batch is larger
WINDOWS_AHEAD = 3
LOOK_UPS_MAX = 8  # of one share: a limit on repeated replacement
INDEX_BYTES_MAX = 256 * MIB

_REPLACED = (NotFound, PreconditionFailed, InvalidRange)


class _Replaced(Exception):
    """An object is not what the plan says; the share is read up to offset `first`."""

    def __init__(self, ref: ObjectRef, first: int, error: Exception) -> None:
        super().__init__(f"{ref.key}: {error}")
        self.ref, self.first, self.error = ref, first, error


@dataclass(frozen=True, slots=True)
class _Window:
    """Some batches of an image: a range of bytes and their index entries; the whole image where there are none."""

    ref: ObjectRef
    start: int
    length: int
    entries: np.ndarray | None
    first: int  # what lies below this offset has been read before


class ObjectBatchReader:
    """The batches of one share, in order. Not thread-safe; a few threads of its own read ahead."""

    def __init__(self, options: SourceOptions, split: Split, share: Share, store: ObjectStore | None = None) -> None:
        self._options = options
        self._share = share
        self._lowest_timestamp = split.lowest_timestamp
        self._store = store if store is not None else store_of(options.place)
        self._given_store = store
        self._cluster_id = split.cluster_id
        self._pool = ThreadPoolExecutor(WINDOWS_AHEAD, thread_name_prefix="kbroker-read")

    def close(self) -> None:
        """Cancels the reads ahead."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def batches(self) -> Iterator[tuple[memoryview, str, int]]:
        """Checked whole batches, the key of their object, and the offset from which they count."""
        objects: Iterator[ObjectRef] = iter(self._share.objects)
        offset = self._share.first
        for _ in range(LOOK_UPS_MAX):
            try:
                for window, data in self._ahead(objects, offset):
                    yield data, window.ref.key, window.first
                return
            except _Replaced as replaced:
                offset, objects = self._look_up(replaced)
        raise CorruptionError(f"{self._share.name}: its objects are replaced faster than they can be read")

    def _look_up(self, replaced: _Replaced) -> tuple[int, Iterator[ObjectRef]]:
        """Where to continue after an object was not as planned, and with which objects."""
        share, first, fail = self._share, replaced.first, self._options.fail_on_data_loss
        place = dataclasses.replace(self._options.place, cluster_id=self._cluster_id)
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
        if found is not None and image_id(found) == image_id(replaced.ref) and not _is_copy(view.store, found):
            how = "not in the store" if isinstance(replaced.error, NotFound) else "the store's is another object"
            data_loss.report(f"{found.key} is in the manifest but {how} ({replaced.error})", fail)
            first = found.end_offset
        return first, objects_between(manifest, share.topic_id, share.partition, first, share.stop)

    # -- reading ahead -----------------------------------------------------------------------------------------

    def _ahead(self, objects: Iterator[ObjectRef], offset: int) -> Iterator[tuple[_Window, memoryview]]:
        """Windows in order, some of them being read while one is used."""
        running: deque[tuple[_Window, Future[memoryview]]] = deque()
        windows = self._windows(objects, offset)
        replaced: _Replaced | None = None
        try:
            while True:
                while replaced is None and len(running) < WINDOWS_AHEAD:
                    try:
                        window = next(windows)
                    except StopIteration:
                        break
                    except _Replaced as error:
                        replaced = error  # what is being read lies before it, and counts
                    else:
                        running.append((window, self._pool.submit(self._load, window)))
                if not running:
                    break
                window, future = running.popleft()
                try:
                    data = future.result()
                except _REPLACED as error:
                    raise _Replaced(window.ref, window.first, error) from None
                yield window, data
        finally:
            for _, future in running:
                future.cancel()
        if replaced is not None:
            raise replaced

    def _windows(self, objects: Iterator[ObjectRef], offset: int) -> Iterator[_Window]:
        for ref in objects:
            first = max(offset, ref.base_offset)
            if is_read_whole(ref):
                yield _Window(ref, ref.start, ref.length, None, first)
            else:
                yield from self._windows_of_large(ref, first)

    def _windows_of_large(self, ref: ObjectRef, first: int) -> Iterator[_Window]:
        try:
            footer = self._footer(ref)
        except _REPLACED as error:
            raise _Replaced(ref, first, error) from None
        entries = footer.entries
        index = footer.find_offset(first)
        if index is None:
            return
        stop = int(np.searchsorted(entries["base_offset"], self._share.stop))
        wanted = entries["max_timestamp"] >= self._lowest_timestamp
        while index < stop:
            if not wanted[index]:
                index += 1
                continue
            end = index + 1
            limit = int(entries["position"][index]) + WINDOW_BYTES
            while end < stop and wanted[end] and int(entries["position"][end]) + int(entries["length"][end]) <= limit:
                end += 1
            start = int(entries["position"][index])
            length = int(entries["position"][end - 1]) + int(entries["length"][end - 1]) - start
            begins = max(first, int(entries["base_offset"][index]))
            yield _Window(ref, ref.start + start, length, entries[index:end], begins)
            index = end

    # -- one range ---------------------------------------------------------------------------------------------

    def _load(self, window: _Window) -> memoryview:
        ref, entries = window.ref, window.entries
        data = self._get(ref, window.start, window.length)
        if entries is None:
            footer = _footer_of_all(ref, data)
            entries = _checked(ref, footer).entries
            data = data[: footer.data_length]
        index = memoryview(np.ascontiguousarray(entries).view(np.uint8))  # type: ignore[arg-type]
        try:
            check_batches(data, int(entries["base_offset"][0]), index)
        except ValueError as error:
            raise CorruptionError(f"{ref.key}: from byte {window.start} on: {error}") from None
        return data

    def _footer(self, ref: ObjectRef) -> KlixFooter:
        tail_bytes = min(TAIL_BYTES, ref.length)
        while True:
            tail = self._get(ref, ref.start + ref.length - tail_bytes, tail_bytes)
            footer = KlixFooter.parse(tail, ref.length, ref.key)
            if isinstance(footer, KlixFooter):
                return _checked(ref, footer)
            tail_bytes = footer.tail_bytes
            if tail_bytes > INDEX_BYTES_MAX:
                raise CorruptionError(f"{ref.key}: an index of {tail_bytes} bytes, more than any writer makes")

    def _get(self, ref: ObjectRef, start: int, length: int) -> memoryview:
        data = memoryview(np.empty(length, np.uint8))  # type: ignore[arg-type]
        self._store.get_into(ref.key, start, data, if_match=ref.etag)
        return data


def _is_copy(store: ObjectStore, ref: ObjectRef) -> bool:
    """True if the store, which knows the manifest by now, has the bytes that this names, under another ETag."""
    try:
        store.get(ref.key, 0, 1, if_match=ref.etag)
    except (NotFound, PreconditionFailed):
        return False
    return True


def _footer_of_all(ref: ObjectRef, data: memoryview) -> KlixFooter:
    """The index of an image of which every byte is here; of a KafScale segment, which has none, one made of it."""
    if ref.key.endswith(SEGMENT_SUFFIX):
        try:
            return KlixFooter(klix_entries.encode_batches(data), len(data))
        except klix_entries.FooterError as error:
            raise CorruptionError(f"{ref.key}: {error}") from None
    footer = KlixFooter.parse(data, ref.length, ref.key)
    assert isinstance(footer, KlixFooter)  # nothing is missing
    return footer


def _checked(ref: ObjectRef, footer: KlixFooter) -> KlixFooter:
    if footer.base_offset < ref.base_offset or footer.end_offset > ref.end_offset:
        raise CorruptionError(
            f"{ref.key}: offsets {footer.base_offset} to {footer.end_offset} at byte {ref.start}, the manifest says "
            f"{ref.base_offset} to {ref.end_offset}"
        )
    return footer
