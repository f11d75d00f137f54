"""Reads the inputs of merges, bypassing the caches: they are read once and would only evict what clients read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from kbroker.limits import KIB, MIB
from kbroker.storage.formats.klix import TAIL_BYTES, KlixFooter
from kbroker.storage.manifest.partition_state import ObjectRef
from kbroker.storage.rewrite.merge_image import LoadedImage, load_image
from kbroker.storage.stores.object_store import ObjectStore

GAP_BYTES = 64 * KIB  # unwanted bytes that are read to save a request
RUN_BYTES = 8 * MIB  # of one request

ImageId = tuple[str, int]  # key, first byte


class MergeSource:
    """Reads ranges that carry the expected ETag. `acquire(bytes)` waits until so many may be read."""

    def __init__(self, store: ObjectStore, acquire: Callable[[int], None]) -> None:
        self._store = store
        self._acquire = acquire
        self.bytes_read = 0

    def read(self, ref: ObjectRef, start: int, length: int) -> memoryview:
        """Bytes of an object. Raises StoreError: NotFound or PreconditionFailed when it has been replaced."""
        self._acquire(length)
        out = memoryview(bytearray(length))
        self._store.get_into(ref.key, start, out, if_match=ref.etag)
        self.bytes_read += length
        return out

    def whole_images(self, refs: Iterable[ObjectRef]) -> dict[ImageId, LoadedImage]:
        """All bytes of images, each checked; adjacent ones in a pack are read by one request."""
        images: dict[ImageId, LoadedImage] = {}
        for run in _runs(refs):
            start = run[0].start
            data = self.read(run[0], start, run[-1].start + run[-1].length - start)
            gaps = len(data) > sum(ref.length for ref in run)
            for ref in run:
                image = data[ref.start - start :][: ref.length]
                # With gaps a copy: a view would keep the gaps in memory, which may be a hundred times as large.
                images[ref.key, ref.start] = load_image(ref, memoryview(bytes(image)) if gaps else image)
        return images

    def index(self, ref: ObjectRef) -> LoadedImage:
        """An image's index only."""
        tail_bytes = min(TAIL_BYTES, ref.length)
        while True:
            tail = self.read(ref, ref.start + ref.length - tail_bytes, tail_bytes)
            parsed = KlixFooter.parse(bytes(tail), ref.length, ref.key)
            if isinstance(parsed, KlixFooter):
                return load_image(ref, tail)._replace(image=None)
            tail_bytes = parsed.tail_bytes


def _runs(refs: Iterable[ObjectRef]) -> Iterator[list[ObjectRef]]:
    """Images in groups, one per request."""
    run: list[ObjectRef] = []
    for ref in sorted(refs, key=lambda ref: (ref.key, ref.start)):
        if run:
            last = run[-1]
            gap = ref.start - (last.start + last.length)
            if ref.key != last.key or gap > GAP_BYTES or ref.start + ref.length - run[0].start > RUN_BYTES:
                yield run
                run = []
        run.append(ref)
    if run:
        yield run
