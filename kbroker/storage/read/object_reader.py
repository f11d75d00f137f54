"""Reads batches back from objects: footer, ranged GET with read-ahead, every batch checked once when it arrives.

A KafScale segment has no such footer: it is read whole once, checked against its checksum, and a footer is built of it.

Every range begins and ends at a batch boundary (by the footer's index, which the batches must match), so the cache
holds whole batches only.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from kbroker.errors import CorruptionError
from kbroker.limits import KIB, MIB
from kbroker.storage.formats.klix import TAIL_BYTES, KlixFooter
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.partition_state import KFS, ObjectRef
from kbroker.storage.read.cached_pieces import Cut, ObjectId, Piece
from kbroker.storage.read.coalesced_reads import CoalescedReads
from kbroker.storage.read.folder_cache import FolderCache
from kbroker.storage.read.footer_cache import FooterCache
from kbroker.storage.read.kfs_read import load_ref
from kbroker.storage.read.object_span import GET_BYTES_MAX, ObjectBatches, Owner, Span, image_id
from kbroker.storage.read.range_cache import Load, Loader, RangeCache
from kbroker.storage.read.read_ahead import Place, ReadAhead, Stream
from kbroker.storage.read.read_sharing import ReaderPositions
from kbroker.storage.read.timestamp_lookup import TimestampLookup
from kbroker.storage.stores.object_store import InvalidRange, NotFound, ObjectStore, PreconditionFailed, StoreError

logger = logging.getLogger(__name__)

WHOLE_IMAGE_BYTES = 128 * KIB  # a smaller image is read whole, with its footer
WHOLE_SEGMENT_BYTES = 1 * MIB  # of a larger segment only the requested batches are cached
FOOTER_BYTES_MAX = 256 * MIB

MANIFEST_BYTES_FREE = 4 * MIB  # of a manifest; not counted against the cache

Background = Callable[[Hashable, Callable[[], None]], object]  # owner, call


def _is_small(ref: ObjectRef) -> bool:
    return ref.kind != KFS and ref.length <= WHOLE_IMAGE_BYTES


class ObjectReader:
    """Reads of one cluster's objects through one cache. `read` and the look-ups block: for the cold-read pool.

    Args:
        store: where the objects are; its wrappers retry.
        image: the manifest, which maps offsets to objects.
        cache_bytes: bound of footers and ranges together.
        folder: the second tier of the cache, if there is one.
    """

    def __init__(
        self, store: ObjectStore, image: ManifestImage, cache_bytes: int, folder: FolderCache | None = None
    ) -> None:
        self._store = store
        self._image = image
        self.folder = folder
        self.coalesced = CoalescedReads(store)
        self.footers = FooterCache(max(1 * MIB, cache_bytes // 8))
        ranges_bytes = max(2 * MIB, cache_bytes * 7 // 8)
        self._readers = ReaderPositions()
        self.ranges = RangeCache(ranges_bytes, self._readers.distance)
        self.read_ahead = ReadAhead(cache_bytes // 4)
        self._background: Background | None = None
        self.timestamps = TimestampLookup(image, self.footer, self.read)
        self._expected: set[ObjectId] = set()  # images whose footer is read ahead

    def start_read_ahead(self, background: Background) -> None:
        """Turns read-ahead on. `background` runs a blocking call on another thread, for an owner (a partition)."""
        self._background = background

    @property
    def crowded(self) -> bool:
        """True while unsent answers hold so much memory that no more should be read for clients."""
        return self.ranges.crowded

    def end_offset(self, topic_id: bytes, partition: int) -> int:
        """Where the objects of a partition end; 0 when it has none."""
        state = self._image.partition(topic_id, partition)
        return state.end_offset if state is not None else 0

    def expect(self, places: Sequence[Place]) -> None:
        """Announces reads, so that small images near each other are read by one GET."""
        refs = [ref for place in places if (ref := self._image.find(*place)) is not None]
        self.coalesced.expect([ref for ref in refs if _is_small(ref) and self.footers.get(image_id(ref)) is None])

    # -- batches -----------------------------------------------------------------------------------------------

    def read(self, topic_id: bytes, partition: int, offset: int, upper: int, max_bytes: int) -> ObjectBatches | None:
        """Whole batches from the one that holds `offset` (or the next one), at most `max_bytes` but at least one.

        Only batches that end at or below `upper`. None when no object holds such a batch. Raises StoreError,
        CorruptionError.
        """
        wanted = offset
        while (ref := self._image.find(topic_id, partition, offset)) is not None and ref.base_offset < upper:
            try:
                footer = self.footer(ref, (topic_id, partition))
                span = Span.of((topic_id, partition), ref, footer, offset, upper)
                if span is not None:
                    return self._read_span(span, (topic_id, partition, wanted), max_bytes)
            except (NotFound, PreconditionFailed):
                if self._image.find(topic_id, partition, offset) == ref:
                    raise
                continue  # it was replaced meanwhile
            if ref.end_offset >= upper:
                return None
            offset = ref.end_offset  # in a gap at the object's end
        return None

    def cached(self, topic_id: bytes, partition: int, offset: int, upper: int, max_bytes: int) -> ObjectBatches | None:
        """As `read`, from memory only; None also when it would block."""
        ref = self._find_at_once(topic_id, partition, offset)
        footer = self.footers.get(image_id(ref)) if ref is not None else None
        if ref is None or footer is None:
            return None
        span = Span.of((topic_id, partition), ref, footer, offset, upper)
        if span is None:
            return None
        end = span.position(span.within(span.first, span.stop, max_bytes))
        pieces = self.ranges.get(span.image, span.position(span.first), end)
        if not pieces:
            return None
        place = (topic_id, partition, offset)
        return self._answer(span, pieces, end, place, self.read_ahead.find(place))

    def _find_at_once(self, topic_id: bytes, partition: int, offset: int) -> ObjectRef | None:
        # A record of ten thousand partitions is applied under this lock: an I/O thread must not wait for that.
        if not self._image.lock.acquire(blocking=False):
            return None
        try:
            return self._image.find(topic_id, partition, offset)
        finally:
            self._image.lock.release()

    def _read_span(self, span: Span, place: Place, max_bytes: int) -> ObjectBatches:
        begin = span.position(span.first)
        end = span.position(span.within(span.first, span.stop, max_bytes))
        pieces = self.ranges.get(span.image, begin, end)
        stream = self.read_ahead.find(place)
        if not pieces:
            stop = span.block_end(span.first, self.read_ahead.window(stream, max_bytes))
            pieces, _ = self.ranges.load(span.image, begin, span.position(stop), self._loader(span), until=end)
            self.read_ahead.loaded(self.ranges.wasted_bytes)
        return self._answer(span, pieces, end, place, stream)

    def _answer(self, span: Span, pieces: list[Piece], end: int, place: Place, stream: Stream | None) -> ObjectBatches:
        """The batches that the pieces hold, up to byte `end`; starts read-ahead for the reader."""
        begin = position = span.position(span.first)
        parts = []
        for piece in pieces:
            if position < end:
                parts.append(piece.view(position, end))
                position += len(parts[-1])
        stop = span.at(position)
        next_offset = span.end_offset(stop)
        ahead = position
        if stream is not None:  # else it may be a single look-up
            self._readers.moved(span.owner, place[2], next_offset)
            if self._background is not None:
                ahead = self._maybe_read_ahead(span, stop, stream)
        run_bytes = position - begin + (stream.run_bytes if stream is not None else 0)
        self.read_ahead.move((place[0], place[1], next_offset), Stream(run_bytes, span.image, ahead))
        return ObjectBatches(parts, span.base_offset(span.first), next_offset)

    def _loader(self, span: Span) -> Loader:
        """Reads bytes of an image from the folder or the store; checks each batch against its CRC and the index."""

        def load(begin: int, end: int) -> tuple[np.ndarray, list[Cut]]:
            ref = span.ref
            data = np.empty(end - begin, dtype=np.uint8)
            out = memoryview(data)  # type: ignore[arg-type]
            if self.folder is not None and self.folder.read_into(span.image, begin, out):
                try:
                    return data, span.check_and_cut(begin, data)
                except CorruptionError as error:
                    self.folder.reject(span.image, begin, end, str(error))
            try:
                self._store.get_into(ref.key, begin, out, if_match=ref.etag)
            except InvalidRange as error:
                raise CorruptionError(f"{error}; {ref.key} has {ref.size} bytes in the manifest") from error
            cuts = span.check_and_cut(begin, data)
            if self.folder is not None:
                self.folder.offer(span.image, begin, data)
            return data, cuts

        return load

    # -- read-ahead --------------------------------------------------------------------------------------------

    def _maybe_read_ahead(self, span: Span, next_index: int, stream: Stream) -> int:
        """Reads ahead when less than half of the window is cached; returns where that ends, in this image."""
        window = self.read_ahead.window(stream, 0)
        position = span.position(next_index)
        known = max(position, stream.ahead if stream.image == span.image else 0)
        ahead = self.ranges.covered(span.image, known, position + window)
        if (ahead - position) * 2 <= window and not self.crowded:
            get_bytes = min(window, GET_BYTES_MAX)
            ahead = self._plan(span, ahead, position + window, get_bytes)
            if ahead == span.position(len(span.footer)):
                self._plan_next(span, position + window - ahead, get_bytes)
        return ahead

    def _plan(self, span: Span, begin: int, end: int, get_bytes: int) -> int:
        """Plans GETs of this size for about [begin, end), without a small one for the rest; returns where they end."""
        index = span.at(begin)
        while (end - begin) * 2 >= get_bytes and index < len(span.footer):
            stop = span.block_end(index, get_bytes)
            for load in self.ranges.plan(span.image, begin, span.position(stop)):
                self._in_background(span, load)
            begin, index = span.position(stop), stop
        return begin

    def _plan_next(self, span: Span, window: int, get_bytes: int) -> None:
        """Reads ahead in the next object."""
        offset = span.ref.end_offset
        ref = self._find_at_once(*span.owner, offset)
        if ref is None:
            return
        footer = self.footers.get(image_id(ref))
        if footer is None:
            self._footer_in_background(span.owner, ref)
            return
        after = Span.of(span.owner, ref, footer, offset, None)
        if after is not None:
            begin = after.position(after.first)
            end = begin + window
            self._plan(after, self.ranges.covered(after.image, begin, end), end, get_bytes)

    def _in_background(self, span: Span, load: Load) -> None:
        """Runs a planned load in the background."""

        def run() -> None:
            try:
                if not self.crowded:
                    self.ranges.load_ahead(span.image, load, self._loader(span))
                    self.read_ahead.loaded(self.ranges.wasted_bytes)
            except (StoreError, CorruptionError, OSError) as error:
                logger.debug("reading ahead: %s", error)  # a reader that needs these bytes gets the error
            finally:
                self.ranges.cancel(span.image, load)

        assert self._background is not None
        try:
            self._background(span.owner, run)
        except RuntimeError:  # the pool is closed
            self.ranges.cancel(span.image, load)

    def _footer_in_background(self, owner: Owner, ref: ObjectRef) -> None:
        def run() -> None:
            try:
                self.footer(ref, owner)
            except (StoreError, CorruptionError, OSError) as error:
                logger.debug("reading ahead: %s", error)
            finally:
                self._expected.discard(image_id(ref))

        assert self._background is not None
        if image_id(ref) in self._expected:
            return
        self._expected.add(image_id(ref))
        with contextlib.suppress(RuntimeError):  # the pool is closed
            self._background(owner, run)

    # -- footers -----------------------------------------------------------------------------------------------

    def footer(self, ref: ObjectRef, owner: Owner) -> KlixFooter:
        """The index of one KLIX image of a partition. Raises StoreError, CorruptionError."""
        return self.footers.load(image_id(ref), lambda: self._load_footer(ref, owner))

    def _load_footer(self, ref: ObjectRef, owner: Owner) -> KlixFooter:
        if ref.kind == KFS:
            return self._load_segment(ref, owner)
        tail_bytes = ref.length if ref.length <= WHOLE_IMAGE_BYTES else TAIL_BYTES
        while True:
            start = ref.start + ref.length - tail_bytes
            tail = self.coalesced.take(ref) if tail_bytes == ref.length else None
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
            self._keep(ref, owner, footer, memoryview(tail)[: footer.data_length])
        return footer

    def _load_segment(self, ref: ObjectRef, owner: Owner) -> KlixFooter:
        segment, footer = load_ref(self._store, ref)
        _check_offsets(ref, footer)
        if ref.length <= WHOLE_SEGMENT_BYTES:
            self._keep(ref, owner, footer, memoryview(segment.body))
        return footer

    def _keep(self, ref: ObjectRef, owner: Owner, footer: KlixFooter, data: memoryview) -> None:
        """Caches the batches of an image that was read whole."""
        cuts = Span(owner, ref, footer, 0, len(footer)).check_and_cut(ref.start, data)
        self.ranges.put(image_id(ref), ref.start, data, cuts)


def cache_beside(image: ManifestImage, cache_bytes: int) -> int:
    """What the manifest's memory leaves of a reader's cache; at least half."""
    taken = max(0, image.memory_bytes - MANIFEST_BYTES_FREE)
    return max(cache_bytes // 2, cache_bytes - taken)


def _check_offsets(ref: ObjectRef, footer: KlixFooter) -> None:
    if footer.base_offset < ref.base_offset or footer.end_offset > ref.end_offset:
        raise CorruptionError(
            f"{ref.key}: offsets {footer.base_offset} to {footer.end_offset} at byte {ref.start}, "
            f"the manifest says {ref.base_offset} to {ref.end_offset}"
        )
