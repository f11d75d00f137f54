"""The index of an object, in pieces: that of a merged object of small batches may be larger than a task's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Protocol

import numpy as np

from kbroker._fast.records import footer as klix_entries
from kbroker.errors import CorruptionError
from kbroker.limits import MIB
from kbroker.pipeline.plan.planned_objects import PlannedObject
from kbroker.storage.formats.kfs_keys import SEGMENT_SUFFIX
from kbroker.storage.formats.klix import ENTRY_DTYPE, TRAILER_BYTES, KlixFooter, NeedMore

PIECE_BYTES = 2 * MIB  # 64 Ki entries

Read = Callable[[int, int], memoryview]  # a part of the object's image, by its start and length


class Submit(Protocol):
    """Runs a read on another thread."""

    def __call__(self, read: Read, start: int, length: int, /) -> Future[memoryview]: ...


class ObjectIndex:
    """Not thread-safe. Raises CorruptionError, and what `read` raises."""

    def __init__(self, ref: PlannedObject, read: Read, first_bytes: int) -> None:
        """Reads the last `first_bytes` of the image, and more if these are not the whole of a short index."""
        self._ref = ref
        self._read = read
        found = self._parsed(min(first_bytes, ref.length))
        if not isinstance(found, KlixFooter) and found.tail_bytes <= PIECE_BYTES:
            found = self._parsed(found.tail_bytes)
        self._whole = found if isinstance(found, KlixFooter) else None
        self._data_length = found.data_length if isinstance(found, KlixFooter) else ref.length - found.tail_bytes

    def pieces(self, submit: Submit) -> Iterator[np.ndarray]:
        """Yields checked entries, in order; reads one piece ahead."""
        if self._whole is not None:
            yield checked(self._ref, self._whole.entries)
            return
        end = self._ref.length - TRAILER_BYTES
        spans = [(start, min(PIECE_BYTES, end - start)) for start in range(self._data_length, end, PIECE_BYTES)]
        loading = submit(self._read, *spans[0])
        position, last_offset = 0, -1
        for number in range(len(spans)):
            raw = loading.result()
            if number + 1 < len(spans):
                loading = submit(self._read, *spans[number + 1])
            try:
                position, last_offset = klix_entries.verify_part(raw, position, last_offset)
            except klix_entries.FooterError as error:
                raise CorruptionError(f"{self._ref.key}: index at byte {spans[number][0]}: {error}") from None
            if position > self._data_length or (number + 1 == len(spans) and position != self._data_length):
                raise CorruptionError(
                    f"{self._ref.key}: the index ends at byte {position} of the batches, these at {self._data_length}"
                )
            yield checked(self._ref, np.frombuffer(raw, ENTRY_DTYPE))

    def _parsed(self, tail_bytes: int) -> KlixFooter | NeedMore:
        tail = self._read(self._ref.length - tail_bytes, tail_bytes)
        return KlixFooter.parse(tail, self._ref.length, self._ref.key)


def entries_of_all(ref: PlannedObject, data: memoryview) -> tuple[np.ndarray, int]:
    """The index of a completely read image, and the length of its batches.

    A KafScale segment has no index: it is built from the batches. Raises CorruptionError.
    """
    if ref.key.endswith(SEGMENT_SUFFIX):
        try:
            footer = KlixFooter(klix_entries.encode_batches(data), len(data))
        except klix_entries.FooterError as error:
            raise CorruptionError(f"{ref.key}: {error}") from None
    else:
        found = KlixFooter.parse(data, ref.length, ref.key)
        assert isinstance(found, KlixFooter)  # nothing is missing
        footer = found
    return checked(ref, footer.entries), footer.data_length


def checked(ref: PlannedObject, entries: np.ndarray) -> np.ndarray:
    """The entries, if their offsets are the object's. Raises CorruptionError."""
    base, end = int(entries["base_offset"][0]), int(entries["base_offset"][-1])
    end += int(entries["last_offset_delta"][-1]) + 1
    if base < ref.base_offset or end > ref.end_offset:
        raise CorruptionError(
            f"{ref.key}: offsets {base} to {end} at byte {ref.start}, the manifest says {ref.base_offset} to "
            f"{ref.end_offset}"
        )
    return entries
