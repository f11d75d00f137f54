"""Look-up of stored batches by timestamp: the index of an object has the max timestamp of each batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np

from kbroker.storage.formats.klix import KlixFooter
from kbroker.storage.manifest.image import ManifestImage, Replaced
from kbroker.storage.manifest.partition_state import ObjectRef
from kbroker.storage.read.object_span import ObjectBatches, Owner
from kbroker.storage.stores.object_store import NotFound, PreconditionFailed

ReadFooter = Callable[[ObjectRef, Owner], KlixFooter]
ReadBatches = Callable[[bytes, int, int, int, int], ObjectBatches | None]  # as ObjectReader.read


class TimestampLookup:
    """Thread-safe. Blocks on the store. Raises StoreError, CorruptionError."""

    def __init__(self, image: ManifestImage, footer: ReadFooter, read: ReadBatches) -> None:
        self._image = image
        self._footer = footer
        self._read = read

    def batch_at(
        self, topic_id: bytes, partition: int, timestamp: int, min_offset: int
    ) -> tuple[memoryview, int] | None:
        """The first batch that reaches `min_offset` with a max timestamp >= `timestamp`, and its next offset."""
        while True:
            with contextlib.suppress(Replaced):
                return self._batch_at(topic_id, partition, timestamp, min_offset)

    def _batch_at(
        self, topic_id: bytes, partition: int, timestamp: int, min_offset: int
    ) -> tuple[memoryview, int] | None:
        for ref in self._image.objects_reaching(topic_id, partition, min_offset, timestamp):
            footer = self._present_footer(topic_id, partition, ref)
            first = footer.find_offset(min_offset)
            index = footer.find_timestamp(timestamp, first) if first is not None else None
            if index is not None:
                return self._one_batch(topic_id, partition, ref, footer, index)
        return None

    def newest_batch(self, topic_id: bytes, partition: int, min_offset: int) -> tuple[memoryview, int] | None:
        """The earliest batch at or above `min_offset` with the highest timestamp of all, and its next offset.

        Batches that compaction has emptied do not count: their timestamp is that of a removed record.
        """
        while True:
            with contextlib.suppress(Replaced):
                return self._newest_batch(topic_id, partition, min_offset)

    def _newest_batch(self, topic_id: bytes, partition: int, min_offset: int) -> tuple[memoryview, int] | None:
        best: tuple[int, ObjectRef, int] | None = None  # timestamp, object, place in its index
        # The manifest's timestamp is an upper bound: some batches may be empty or below `min_offset`.
        for ref in self._image.objects_newest_first(topic_id, partition, min_offset):
            if best is not None and (ref.max_timestamp, -ref.base_offset) < (best[0], -best[1].base_offset):
                break  # so are all that follow
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
        """The footer of an object that the manifest named. Raises Replaced when it names another one now."""
        try:
            return self._footer(ref, (topic_id, partition))
        except (NotFound, PreconditionFailed):
            if self._image.find(topic_id, partition, ref.base_offset) == ref:
                raise
            raise Replaced from None

    def _one_batch(
        self, topic_id: bytes, partition: int, ref: ObjectRef, footer: KlixFooter, index: int
    ) -> tuple[memoryview, int] | None:
        """A batch in the index. Raises Replaced when compaction has removed it meanwhile."""
        entry = footer.entries[index]
        base_offset = int(entry["base_offset"])
        found = self._read(topic_id, partition, base_offset, base_offset + int(entry["last_offset_delta"]) + 1, 1)
        if found is None and self._image.find(topic_id, partition, ref.base_offset) != ref:
            raise Replaced
        return (found.parts[0], found.next_offset) if found else None


def _highest_timestamp(footer: KlixFooter, min_offset: int) -> tuple[int, int] | None:
    """The highest timestamp of batches with records from `min_offset` on, and the first such batch."""
    first = footer.find_offset(min_offset)
    if first is None:
        return None
    places = first + np.flatnonzero(footer.entries["record_count"][first:] > 0)
    if not len(places):
        return None
    place = int(places[footer.entries["max_timestamp"][places].argmax()])
    return int(footer.entries["max_timestamp"][place]), place
