"""Reads batches back from objects: footer, ranged GET with read-ahead, every batch checked once when it arrives.

A KafScale segment has no such footer: it is read whole once, held against its checksum, and one is made of it.

Every range begins and ends at a batch boundary (the footer's index says where, and the batches must agree), so what
is cached is always whole batches.
"""

from __future__ import annotations

import contextlib
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np

from kbroker._fast.batch_check import check_batches
from kbroker.errors import CorruptionError
from kbroker.limits import KIB, MIB
from kbroker.storage.convoy import Convoy
from kbroker.storage.folder_cache import FolderCache
from kbroker.storage.footer_cache import FooterCache
from kbroker.storage.kfs_read import load_ref
from kbroker.storage.klix import TAIL_BYTES, KlixFooter
from kbroker.storage.manifest_image import ManifestImage, Replaced
from kbroker.storage.neighbours import Neighbours
from kbroker.storage.object_store import InvalidRange, NotFound, ObjectStore, PreconditionFailed, StoreError
from kbroker.storage.partition_state import KFS, ObjectRef
from kbroker.storage.range_cache import Loader, ObjectId, Piece, RangeCache
from kbroker.storage.read_ahead import WINDOW_BYTES_MAX, WINDOW_BYTES_MIN, Place, ReadAhead, Stream

logger = logging.getLogger(__name__)

PIECE_BYTES = 1 * MIB  # of the cache, unless a single batch is larger
WHOLE_IMAGE_BYTES = 128 * KIB  # a smaller image comes whole with its footer
WHOLE_SEGMENT_BYTES = 1 * MIB  # of a larger segment only what is asked for is kept
FOOTER_BYTES_MAX = 256 * MIB

MANIFEST_BYTES_FREE = 4 * MIB  # of a manifest: no more than other small things that no bound counts

GET_BYTES_MAX = 8 * MIB  # of one GET: a larger window is several, at the same time

Background = Callable[[Hashable, Callable[[], None]], object]  # owner, call


class ObjectBatches(NamedTuple):
    """Whole batches of one partition, in offset order; `parts` borrow the cache's memory and keep it alive."""

    parts: list[memoryview]
    base_offset: int
    next_offset: int  # where the next read goes on


class _Span:
    """Batches [first, stop) of an image: what a read may answer with."""

    __slots__ = ("_positions", "first", "footer", "ref", "stop")

    def __init__(self, ref: ObjectRef, footer: KlixFooter, first: int, stop: int) -> None:
        self.ref = ref
        self.footer = footer
        self.first = first
        self.stop = stop
        self._positions = footer.entries["position"]

    @property
    def image(self) -> ObjectId:
        return image_id(self.ref)

    def position(self, index: int) -> int:
        """First byte of a batch, in the object; of the index, for the one after the last."""
        positions = self._positions
        return self.ref.start + (int(positions[index]) if index < len(positions) else self.footer.data_length)

    @property
    def bytes_per_offset(self) -> float:
        """About how much of the object an offset takes."""
        return self.footer.data_length / (self.footer.end_offset - self.footer.base_offset)

    def within(self, first: int, stop: int, max_bytes: int) -> int:
        """Where whole batches from `first` on end that take at most `max_bytes`, below `stop` but at least one."""
        limit = self.position(first) + max_bytes
        return first + 1 + bisect_right(range(first + 2, stop + 1), limit, key=self.position)

    def at(self, position: int) -> int:
        """The batch that begins at a byte of the object."""
        return bisect_left(range(len(self.footer) + 1), position, key=self.position)

    def end_offset(self, index: int) -> int:
        """The offset after the batch before `index`."""
        last = self.footer.entries[index - 1]
        return int(last["base_offset"]) + int(last["last_offset_delta"]) + 1


def image_id(ref: ObjectRef) -> ObjectId:
    """What tells an image from all others, in every version of its object."""
    return ref.key, ref.etag, ref.start


def _is_small(ref: ObjectRef) -> bool:
    return ref.kind != KFS and ref.length <= WHOLE_IMAGE_BYTES


class ObjectReader:
    """Reads of one cluster's objects through one cache. `read` and the look-ups block: for the cold-read pool.

    Args:
        store: where the objects are; its wrappers retry.
        image: the manifest, which says what object holds an offset.
        cache_bytes: bound of footers and ranges together.
        folder: where ranges are kept too once they were read, if anywhere.
    """

    def __init__(
        self, store: ObjectStore, image: ManifestImage, cache_bytes: int, folder: FolderCache | None = None
    ) -> None:
        self._store = store
        self._image = image
        self.folder = folder
        self.neighbours = Neighbours(store)
        self.footers = FooterCache(max(1 * MIB, cache_bytes // 8))
        self.ranges = RangeCache(max(2 * MIB, cache_bytes * 7 // 8))
        self.read_ahead = ReadAhead(cache_bytes // 4)
        self.convoy = Convoy(self.ranges.capacity_bytes)
        self._background: Background | None = None

    def start_read_ahead(self, background: Background) -> None:
        """Gives it something that runs a blocking call elsewhere, for an owner (a partition), when there is room.

        Before, nothing is read ahead of a reader.
        """
        self._background = background

    @property
    def crowded(self) -> bool:
        """True while answers that nobody takes hold so much memory that no more should be read for clients."""
        return self.ranges.crowded

    def end_offset(self, topic_id: bytes, partition: int) -> int:
        """Where the objects of a partition end; 0 when it has none."""
        state = self._image.partition(topic_id, partition)
        return state.end_offset if state is not None else 0

    def expect(self, places: Sequence[Place]) -> None:
        """Tells what else is going to be read: small images that lie near each other come with one GET."""
        refs = [ref for place in places if (ref := self._image.find(*place)) is not None]
        self.neighbours.expect([ref for ref in refs if _is_small(ref) and self.footers.get(image_id(ref)) is None])

    # -- batches -----------------------------------------------------------------------------------------------

    def read(self, topic_id: bytes, partition: int, offset: int, upper: int, max_bytes: int) -> ObjectBatches | None:
        """Whole batches from the one that holds `offset` (or the next one), at most `max_bytes` but at least one.

        Only batches that end at or below `upper`. None when no object holds such a batch. Raises StoreError,
        CorruptionError.
        """
        wanted = offset
        while (ref := self._image.find(topic_id, partition, offset)) is not None and ref.base_offset < upper:
            try:
                span = _span(ref, self.footer(ref), offset, upper)
                if span is not None:
                    return self._read_span(span, (topic_id, partition, wanted), max_bytes)
            except (NotFound, PreconditionFailed):
                if self._image.find(topic_id, partition, offset) == ref:
                    raise
                continue  # it was replaced meanwhile: the manifest names another one now
            if ref.end_offset >= upper:
                return None
            offset = ref.end_offset  # it lies in a gap at the object's end
        return None

    def cached(self, topic_id: bytes, partition: int, offset: int, upper: int, max_bytes: int) -> ObjectBatches | None:
        """As `read`, from memory only: never blocks. None also when it would have to."""
        # A record about ten thousand partitions is applied under this lock: an I/O thread must not wait for that.
        if not self._image.lock.acquire(blocking=False):
            return None
        try:
            ref = self._image.find(topic_id, partition, offset)
        finally:
            self._image.lock.release()
        footer = self.footers.get(image_id(ref)) if ref is not None else None
        if ref is None or footer is None:
            return None
        span = _span(ref, footer, offset, upper)
        if span is None:
            return None
        end = span.position(span.within(span.first, span.stop, max_bytes))
        pieces = self.ranges.get(span.image, span.position(span.first), end)
        if not pieces:
            return None
        place = (topic_id, partition, offset)
        stream = self.read_ahead.find(place)
        return self._answer(span, pieces, end, place, stream or Stream(WINDOW_BYTES_MIN), stream is not None)

    def _read_span(self, span: _Span, place: Place, max_bytes: int) -> ObjectBatches:
        begin = span.position(span.first)
        end = span.position(span.within(span.first, span.stop, max_bytes))
        pieces = self.ranges.get(span.image, begin, end)
        known = self.read_ahead.find(place)
        stream = known or Stream(WINDOW_BYTES_MIN)
        if not pieces:
            window = self.read_ahead.window(known, max_bytes)
            stop = span.within(span.first, len(span.footer), min(window, GET_BYTES_MAX))
            load = self._loader(span)
            self.convoy.hold(place[:2], place[2], span.bytes_per_offset)
            pieces, loaded_end = self.ranges.load(span.image, begin, span.position(stop), load, until=end)
            self.read_ahead.loaded(self.ranges.wasted_bytes)
            stream.window_bytes = window
            stream.ahead_offset = span.end_offset(span.at(loaded_end))
        return self._answer(span, pieces, end, place, stream, known is not None)

    def _answer(
        self, span: _Span, pieces: list[Piece], end: int, place: Place, stream: Stream, goes_on: bool
    ) -> ObjectBatches:
        """The batches that the pieces hold, up to byte `end`; and a look at what the stream will want next."""
        position = span.position(span.first)
        parts = []
        for piece in pieces:
            if position < end:
                parts.append(piece.view(position, end))
                position += len(parts[-1])
        stop = span.at(position)
        next_offset = span.end_offset(stop)
        self.convoy.moved(place[:2], place[2], next_offset)
        self.read_ahead.goes_on((place[0], place[1], next_offset), stream)
        if goes_on and self._background is not None:
            self._maybe_read_ahead(span, stop, place, stream)
        return ObjectBatches(parts, int(span.footer.entries["base_offset"][span.first]), next_offset)

    def _loader(self, span: _Span) -> Loader:
        """Brings bytes of an image, from the folder or the store; each batch is held against its CRC and the index."""

        def load(begin: int, end: int) -> tuple[np.ndarray, list[int]]:
            ref = span.ref
            data = np.empty(end - begin, dtype=np.uint8)
            out = memoryview(data)  # type: ignore[arg-type]
            if self.folder is not None and self.folder.read_into(span.image, begin, out):
                try:
                    return data, _check_and_cut(span, begin, data)
                except CorruptionError as error:
                    self.folder.reject(span.image, begin, end, str(error))
            try:
                self._store.get_into(ref.key, begin, out, if_match=ref.etag)
            except InvalidRange as error:
                raise CorruptionError(f"{error}; {ref.key} has {ref.size} bytes in the manifest") from error
            cuts = _check_and_cut(span, begin, data)
            if self.folder is not None:
                self.folder.offer(span.image, begin, data)
            return data, cuts

        return load

    # -- read-ahead --------------------------------------------------------------------------------------------

    def _maybe_read_ahead(self, span: _Span, next_index: int, place: Place, stream: Stream) -> None:
        """Reads the next window in the background when less than half of the last one is left."""
        footer = span.footer
        if stream.ahead_offset < 0 or stream.ahead_offset > footer.end_offset or self.crowded:
            return  # nothing was loaded yet, or it is beyond this object already
        found = footer.find_offset(stream.ahead_offset)
        left = span.position(len(footer) if found is None else found) - span.position(next_index)
        if left * 2 > stream.window_bytes or not self.read_ahead.begin(stream):
            return
        at, ahead = span.end_offset(next_index), max(stream.ahead_offset, span.end_offset(next_index))

        def read() -> None:
            held = self.convoy.hold(place[:2], at, span.bytes_per_offset)
            self._read_ahead(place[0], place[1], ahead, stream, GET_BYTES_MAX if held else WINDOW_BYTES_MAX)

        self._in_background(stream, place[:2], read)

    def _in_background(self, stream: Stream, owner: Hashable, call: Callable[[], None]) -> None:
        """`call` later; then the stream has one read less under way."""

        def run() -> None:
            try:
                if not self.crowded:
                    call()
            except (StoreError, CorruptionError, OSError) as error:
                logger.debug("reading ahead: %s", error)  # whoever needs these bytes will get the error
            finally:
                self.read_ahead.ended(stream)

        assert self._background is not None
        try:
            self._background(owner, run)
        except RuntimeError:  # the pool is closed
            self.read_ahead.ended(stream)

    def _read_ahead(self, topic_id: bytes, partition: int, offset: int, stream: Stream, window_max: int) -> None:
        """The next window: its first part here, the others beside it."""
        ref = self._image.find(topic_id, partition, offset)
        span = _span(ref, self.footer(ref), offset, None) if ref is not None else None
        if span is None:
            return
        window = min(window_max, self.read_ahead.window(stream, 0))
        stop = span.within(span.first, len(span.footer), window)
        stream.window_bytes = window
        stream.ahead_offset = span.end_offset(stop)
        parts = []
        first = span.first
        while first < stop:
            end = span.within(first, stop, GET_BYTES_MAX)
            parts.append((span.position(first), span.position(end)))
            first = end
        for begin, end in parts[1:]:
            self.read_ahead.begin_more(stream)
            self._in_background(stream, (topic_id, partition), lambda b=begin, e=end: self._part(span, b, e))  # type: ignore[misc]
        self._part(span, *parts[0])

    def _part(self, span: _Span, begin: int, end: int) -> None:
        self.ranges.load_ahead(span.image, begin, end, self._loader(span))
        self.read_ahead.loaded(self.ranges.wasted_bytes)

    # -- footers -----------------------------------------------------------------------------------------------

    def footer(self, ref: ObjectRef) -> KlixFooter:
        """The index of one KLIX image. Raises StoreError, CorruptionError."""
        return self.footers.load(image_id(ref), lambda: self._load_footer(ref))

    def _load_footer(self, ref: ObjectRef) -> KlixFooter:
        if ref.kind == KFS:
            return self._load_segment(ref)
        tail_bytes = ref.length if ref.length <= WHOLE_IMAGE_BYTES else TAIL_BYTES
        while True:
            start = ref.start + ref.length - tail_bytes
            tail = self.neighbours.take(ref) if tail_bytes == ref.length else None
            if tail is None:
                tail = self._store.get(ref.key, start, tail_bytes, if_match=ref.etag)
            if len(tail) != tail_bytes:
                raise CorruptionError(f"{ref.key}: {len(tail)} bytes at {start}, {tail_bytes} expected")
            footer = KlixFooter.parse(tail, ref.length, ref.key)
            if isinstance(footer, KlixFooter):
                break
            tail_bytes = footer.tail_bytes
            if tail_bytes > FOOTER_BYTES_MAX:
                raise CorruptionError(f"{ref.key}: an index of {tail_bytes} bytes, more than any writer makes")
        _check_offsets(ref, footer)
        if tail_bytes == ref.length:
            self._keep(ref, footer, memoryview(tail)[: footer.data_length])
        return footer

    def _load_segment(self, ref: ObjectRef) -> KlixFooter:
        segment, footer = load_ref(self._store, ref)
        _check_offsets(ref, footer)
        if ref.length <= WHOLE_SEGMENT_BYTES:
            self._keep(ref, footer, memoryview(segment.body))
        return footer

    def _keep(self, ref: ObjectRef, footer: KlixFooter, data: memoryview) -> None:
        """All batches of an image came with its index."""
        cuts = _check_and_cut(_Span(ref, footer, 0, len(footer)), ref.start, data)
        self.ranges.put(image_id(ref), ref.start, data, cuts)

    # -- timestamps --------------------------------------------------------------------------------------------

    def batch_for_timestamp(
        self, topic_id: bytes, partition: int, timestamp: int, min_offset: int
    ) -> tuple[memoryview, int] | None:
        """The first batch that reaches `min_offset` with a max timestamp >= `timestamp`, and its next offset."""
        while True:
            with contextlib.suppress(Replaced):
                return self._for_timestamp(topic_id, partition, timestamp, min_offset)

    def _for_timestamp(
        self, topic_id: bytes, partition: int, timestamp: int, min_offset: int
    ) -> tuple[memoryview, int] | None:
        for ref in self._image.objects_reaching(topic_id, partition, min_offset, timestamp):
            footer = self._present_footer(topic_id, partition, ref)
            first = footer.find_offset(min_offset)
            index = footer.find_timestamp(timestamp, first) if first is not None else None
            if index is not None:
                return self._one_batch(topic_id, partition, ref, footer, index)
        return None

    def batch_of_max_timestamp(self, topic_id: bytes, partition: int, min_offset: int) -> tuple[memoryview, int] | None:
        """The earliest batch at or above `min_offset` with the highest timestamp of all, and its next offset.

        Batches that compaction has emptied do not count: their timestamp is that of a record that is gone.
        """
        while True:
            with contextlib.suppress(Replaced):
                return self._of_max_timestamp(topic_id, partition, min_offset)

    def _of_max_timestamp(self, topic_id: bytes, partition: int, min_offset: int) -> tuple[memoryview, int] | None:
        best: tuple[int, ObjectRef, int] | None = None  # timestamp, object, place in its index
        # What the manifest says of an object is a bound: of its batches some may be empty, or below `min_offset`.
        for ref in self._image.objects_newest_first(topic_id, partition, min_offset):
            if best is not None and (ref.max_timestamp, -ref.base_offset) < (best[0], -best[1].base_offset):
                break  # and so it is with all that follow
            found = _highest_timestamp(self._present_footer(topic_id, partition, ref), min_offset)
            if found is None:
                continue
            if best is None or (found[0], -ref.base_offset) > (best[0], -best[1].base_offset):
                best = (found[0], ref, found[1])
        if best is None:
            return None
        footer = self._present_footer(topic_id, partition, best[1])
        return self._one_batch(topic_id, partition, best[1], footer, best[2])

    def _present_footer(self, topic_id: bytes, partition: int, ref: ObjectRef) -> KlixFooter:
        """The index of an object that the manifest named. Raises Replaced when it names another one by now."""
        try:
            return self.footer(ref)
        except (NotFound, PreconditionFailed):
            if self._image.find(topic_id, partition, ref.base_offset) == ref:
                raise
            raise Replaced from None

    def _one_batch(
        self, topic_id: bytes, partition: int, ref: ObjectRef, footer: KlixFooter, index: int
    ) -> tuple[memoryview, int] | None:
        """A batch that the index tells of. Raises Replaced when compaction has taken it meanwhile."""
        entry = footer.entries[index]
        base_offset = int(entry["base_offset"])
        found = self.read(topic_id, partition, base_offset, base_offset + int(entry["last_offset_delta"]) + 1, 1)
        if found is None and self._image.find(topic_id, partition, ref.base_offset) != ref:
            raise Replaced
        return (found.parts[0], found.next_offset) if found else None


def cache_beside(image: ManifestImage, cache_bytes: int) -> int:
    """What is left for a reader's cache where the manifest takes its memory from it; at least half."""
    taken = max(0, image.memory_bytes - MANIFEST_BYTES_FREE)
    return max(cache_bytes // 2, cache_bytes - taken)


def _check_offsets(ref: ObjectRef, footer: KlixFooter) -> None:
    if footer.base_offset < ref.base_offset or footer.end_offset > ref.end_offset:
        raise CorruptionError(
            f"{ref.key}: offsets {footer.base_offset} to {footer.end_offset} at byte {ref.start}, "
            f"the manifest says {ref.base_offset} to {ref.end_offset}"
        )


def _highest_timestamp(footer: KlixFooter, min_offset: int) -> tuple[int, int] | None:
    """The highest timestamp of the batches with records from `min_offset` on, and the first place that has it."""
    first = footer.find_offset(min_offset)
    if first is None:
        return None
    places = first + np.flatnonzero(footer.entries["record_count"][first:] > 0)
    if not len(places):
        return None
    place = int(places[footer.entries["max_timestamp"][places].argmax()])
    return int(footer.entries["max_timestamp"][place]), place


def _span(ref: ObjectRef, footer: KlixFooter, offset: int, upper: int | None) -> _Span | None:
    """The batches of an image from `offset` on that end at or below `upper`; None if there are none."""
    first = footer.find_offset(offset)
    stop = footer.find_offset(upper) if upper is not None else None
    if stop is None:
        stop = len(footer)
    return _Span(ref, footer, first, stop) if first is not None and first < stop else None


def _check_and_cut(span: _Span, begin: int, data: memoryview | np.ndarray) -> list[int]:
    """Holds every batch in `data`, which begins at byte `begin`, against its CRC and the index; where to cut it."""
    first, stop = span.at(begin), span.at(begin + len(data))
    entries = span.footer.entries[first:stop]
    index = memoryview(entries.view(np.uint8))  # type: ignore[arg-type]
    try:
        check_batches(data, int(entries["base_offset"][0]), index)  # type: ignore[arg-type]
    except ValueError as error:
        raise CorruptionError(f"{span.ref.key}: from byte {begin} on: {error}") from None
    cuts = []
    while first < stop:
        first = span.within(first, stop, PIECE_BYTES)
        cuts.append(span.position(first) - begin)
    return cuts
