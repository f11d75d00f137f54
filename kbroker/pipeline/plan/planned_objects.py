"""The objects that a task reads, packed on the driver and unpacked in the worker: a plan may have ten million of them.

Columns of integers are delta-encoded from row to row, with as few bytes per delta as the column's largest needs, the
lowest byte of all rows first, and compressed. Values that repeat or grow evenly take almost no space.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import zstandard

from kbroker.storage.manifest.files import KEY_COLUMNS
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.key_table import PREFIX_OTHER
from kbroker.storage.manifest.keys import FORM_OTHER, PackedETag, PackedKey, unpack_etag, unpack_object_key
from kbroker.storage.manifest.partition_state import TIMES_UNKNOWN, ObjectRef, RefRow

_FILE_COLUMNS = (*(name for name, _ in KEY_COLUMNS), "etag_first", "etag_second", "etag_form")
_UINT64 = (1 << 64) - 1


class PlannedObject(NamedTuple):
    """What a task needs to know of an object: fields of ObjectRef."""

    key: str
    etag: str
    base_offset: int
    end_offset: int
    start: int
    length: int
    record_count: int
    min_timestamp: int = TIMES_UNKNOWN
    late_ms: int = -1

    @classmethod
    def of(cls, ref: ObjectRef) -> PlannedObject:
        """The same object."""
        return cls(*(getattr(ref, name) for name in cls._fields))


def objects_between(
    manifest: ManifestImage, topic_id: bytes, partition: int, offsets: tuple[int, int], timestamps: tuple[int, int]
) -> Iterator[PlannedObject]:
    """The objects that can have rows at offsets [first, stop) and within time bounds, in order, looked up lazily."""
    (first, stop), (lowest, highest) = offsets, timestamps
    for ref in manifest.objects_from(topic_id, partition, first):
        if ref.base_offset >= stop:
            return
        if ref.record_count > 0 and ref.max_timestamp >= lowest and ref.min_timestamp <= highest:
            yield PlannedObject.of(ref)


@dataclass(slots=True)
class PackedObjects:
    """Objects of one split, by number. Not thread-safe: unpacked at the first access, and kept."""

    objects: int
    files: int
    widths: tuple[int, ...]  # bytes per delta, by column
    data: bytes
    root: str
    prefixes: dict[int, str]
    other_keys: dict[int, str]  # by the number of the file
    other_etags: dict[int, str]
    _unpacked: list[PlannedObject] | None = field(default=None, repr=False, compare=False)

    def between(self, low: int, high: int) -> list[PlannedObject]:
        """The objects numbered [low, high)."""
        if self._unpacked is None:
            self._unpacked = self._unpack()
        return self._unpacked[low:high]

    def _unpack(self) -> list[PlannedObject]:
        counts = [self.files] * len(_FILE_COLUMNS) + [self.objects] * (len(self.widths) - len(_FILE_COLUMNS))
        columns = _decoded(zstandard.ZstdDecompressor().decompress(self.data), self.widths, counts)
        files = [column.tolist() for column in columns[: len(_FILE_COLUMNS)]]
        names = [self._name(number, *values) for number, values in enumerate(zip(*files, strict=True))]
        file, gaps, offsets, starts, lengths, missing, *times = columns[len(_FILE_COLUMNS) :]
        ends = np.cumsum(gaps + offsets)
        found = [column.tolist() for column in (ends - offsets, ends, starts, lengths, offsets - missing, *times)]
        return [
            PlannedObject(*names[number], *values)
            for number, values in zip(file.tolist(), zip(*found, strict=True), strict=True)
        ]

    def _name(
        self, number: int, prefix: int, first: int, second: int, generation: int, rewrite: int,
        etag_first: int, etag_second: int, etag_form: int,
    ) -> tuple[str, str]:  # fmt: skip
        """Key and ETag of a file."""
        if prefix == PREFIX_OTHER:
            key = self.other_keys[number]
        else:
            key = unpack_object_key(self.prefixes[prefix], PackedKey(first, second, generation, rewrite & _UINT64))
        etag = self.other_etags.get(number)
        if etag is None:
            etag = unpack_etag(PackedETag(etag_first & _UINT64, etag_second & _UINT64, etag_form))
        return self.root + key, etag


def pack(image: ManifestImage, rows: np.ndarray, times: Sequence[np.ndarray] = ()) -> PackedObjects:
    """Packs references, rows in RefRow's order. `times`: their smallest timestamps and lateness, if needed."""
    table = image.files
    base, end, start, length, records, file = (
        rows[:, RefRow._fields.index(name)]
        for name in ("base_offset", "end_offset", "start", "length", "record_count", "file")
    )
    places, numbers = np.unique(file, return_inverse=True)
    files = {
        name: np.frombuffer(table.columns[name], table.columns[name].typecode)[places].astype(np.int64)
        for name in _FILE_COLUMNS
    }
    gaps = base - np.concatenate([[0], end[:-1]])
    columns = [*files.values(), numbers, gaps, end - base, start, length, end - base - records, *times]
    widths, data = _encoded(columns)
    prefix = files["prefix"]
    others = np.flatnonzero(prefix == PREFIX_OTHER).tolist()
    other_etags = np.flatnonzero(files["etag_form"] == FORM_OTHER).tolist()
    return PackedObjects(
        len(rows),
        len(places),
        widths,
        data,
        image.root,
        {number: table.keys.prefixes[number] for number in np.unique(prefix).tolist() if number != PREFIX_OTHER},
        {number: table.keys.key(int(places[number])) for number in others},
        {number: table.etag(int(places[number])) for number in other_etags},
    )


def _encoded(columns: Sequence[np.ndarray]) -> tuple[tuple[int, ...], bytes]:
    widths, parts = [], []
    for column in columns:
        values = column.astype(np.int64, copy=False)
        steps = values - np.concatenate([[0], values[:-1]])
        folded = ((steps << 1) ^ (steps >> 63)).astype("<i8", copy=False)  # zigzag: small for small negative steps too
        width = (int(folded.view("<u8").max()).bit_length() + 7) // 8
        widths.append(width)
        parts.append(folded.view(np.uint8).reshape(-1, 8)[:, :width].T.tobytes())
    compressed = zstandard.ZstdCompressor(level=1).compress(b"".join(parts))
    return tuple(widths), bytes(
        memoryview(compressed)
    )  # a copy: what `compress` returns keeps more memory than it needs


def _decoded(data: bytes, widths: Sequence[int], counts: Sequence[int]) -> list[np.ndarray]:
    columns, position = [], 0
    for width, count in zip(widths, counts, strict=True):
        planes = np.frombuffer(data, np.uint8, width * count, position).reshape(width, count)
        position += width * count
        folded = np.zeros((count, 8), np.uint8)
        folded[:, :width] = planes.T
        steps = folded.reshape(-1).view("<u8")
        columns.append(np.cumsum((steps >> 1).astype(np.int64) ^ -(steps & 1).astype(np.int64)))
    return columns
