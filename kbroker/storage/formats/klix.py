"""KLIX objects: the record batches of one partition, then an index (layout: docs/formats/klix.md).

    batches | index entries, 32 bytes each | entry count u32 | magic u32 "KLIX"

Everything is big-endian. The index has no checksum of its own; it is checked for consistency here, and against the
batches, which have theirs, when they are read.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from kbroker._fast.records import footer as _footer
from kbroker.errors import CorruptionError

MAGIC = 0x4B4C4958
ENTRY_BYTES = 32
_TRAILER = struct.Struct(">II")
TRAILER_BYTES = _TRAILER.size
TAIL_BYTES = 64 * 1024  # first read of a reader: 2047 entries and the trailer
OBJECT_BYTES_MAX = 2**32 - 1  # byte positions are u32
BATCH_BYTES_MIN = 61  # a header without records
INDEX_BYTES_MAX = 256 << 20  # of one image, or of a pack's directory: more is not read into memory

ENTRY_DTYPE = np.dtype(
    [
        ("base_offset", ">i8"),
        ("position", ">u4"),
        ("length", ">u4"),
        ("last_offset_delta", ">i4"),
        ("max_timestamp", ">i8"),
        ("record_count", ">i4"),
    ]
)
assert ENTRY_DTYPE.itemsize == ENTRY_BYTES

# A writer's entry for a batch: native byte order; positions follow from the lengths.
BATCH_DTYPE = np.dtype(
    [
        ("base_offset", "=i8"),
        ("max_timestamp", "=i8"),
        ("size", "=u4"),
        ("last_offset_delta", "=i4"),
        ("record_count", "=i4"),
    ],
    align=True,  # the columns are read in place
)


class NeedMore(NamedTuple):
    """The tail is too short: read the last ``tail_bytes`` of the object and parse again."""

    tail_bytes: int


def footer_length(entry_count: int) -> int:
    """Bytes of the index entries and the trailer."""
    return entry_count * ENTRY_BYTES + TRAILER_BYTES


def encode_footer(entries: np.ndarray) -> bytes:
    """The footer for batches that are written one after another from byte 0.

    ``entries`` is a structured array with the fields of BATCH_DTYPE (others are ignored), in offset order.
    Raises ValueError (FooterError) when they break a rule of the format.
    """
    if len(entries) == 0:
        raise ValueError("a KLIX object holds at least one batch")
    return _with_trailer(
        _footer.encode(
            entries["base_offset"],
            entries["size"],
            entries["last_offset_delta"],
            entries["max_timestamp"],
            entries["record_count"],
        )
    )


def encode_object(batches: bytes) -> bytes:
    """A whole KLIX object around ``batches``, which must be complete record batches in offset order."""
    if not batches:
        raise ValueError("a KLIX object holds at least one batch")
    return b"".join((batches, _with_trailer(_footer.encode_batches(batches))))


def _with_trailer(entries: bytes) -> bytes:
    return entries + _TRAILER.pack(len(entries) // ENTRY_BYTES, MAGIC)


class KlixFooter:
    """The index of one KLIX object or image, checked. Immutable; owns (or keeps alive) the bytes it was parsed from."""

    __slots__ = ("_raw", "data_length", "entries")

    def __init__(self, raw: bytes, data_length: int) -> None:
        self._raw = raw
        self.data_length = data_length
        self.entries: np.ndarray = np.frombuffer(raw, dtype=ENTRY_DTYPE)

    @classmethod
    def parse(cls, tail: bytes | memoryview, object_size: int, key: str = "object") -> KlixFooter | NeedMore:
        """Reads the footer from the last bytes of an object of ``object_size`` bytes.

        Raises CorruptionError, which names ``key``, when it is not a KLIX object or its index is inconsistent.
        """
        if object_size < TRAILER_BYTES or len(tail) > object_size:
            raise CorruptionError(f"{key}: {object_size} bytes are too few for a KLIX object")
        if len(tail) < TRAILER_BYTES:
            return NeedMore(min(TAIL_BYTES, object_size))
        count, magic = _TRAILER.unpack_from(tail, len(tail) - TRAILER_BYTES)
        if magic != MAGIC:
            raise CorruptionError(f"{key}: not a KLIX object: the magic at byte {object_size - 4} is {magic:#010x}")
        length = footer_length(count)
        if count == 0 or length + count * BATCH_BYTES_MIN > object_size:
            raise CorruptionError(f"{key}: the KLIX footer claims {count} entries in {object_size} bytes")
        if length > INDEX_BYTES_MAX or object_size - length > OBJECT_BYTES_MAX:
            raise CorruptionError(f"{key}: an index of {count} entries in {object_size} bytes is more than is read")
        if length > len(tail):
            return NeedMore(length)
        raw = bytes(memoryview(tail)[len(tail) - length : len(tail) - TRAILER_BYTES])
        data_length = object_size - length
        try:
            _footer.verify(raw, data_length)
        except _footer.FooterError as error:
            raise CorruptionError(f"{key}: KLIX footer at byte {data_length}: {error}") from None
        return cls(raw, data_length)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def nbytes(self) -> int:
        """Bytes it holds in memory (for caches)."""
        return len(self._raw)

    @property
    def base_offset(self) -> int:
        return int(self.entries["base_offset"][0])

    @property
    def end_offset(self) -> int:
        """The offset after the last one."""
        last = self.entries[-1]
        return int(last["base_offset"]) + int(last["last_offset_delta"]) + 1

    @property
    def max_timestamp(self) -> int:
        return int(self.entries["max_timestamp"].max())

    @property
    def record_count(self) -> int:
        return int(self.entries["record_count"].sum(dtype=np.int64))

    def find_offset(self, offset: int) -> int | None:
        """Index of the batch that holds ``offset``, or of the next one if it lies in a gap; None above the last."""
        index = _footer.find_offset(self._raw, offset)
        return index if index < len(self.entries) else None

    def find_timestamp(self, timestamp: int, start: int = 0) -> int | None:
        """Index of the first batch from ``start`` on with a max timestamp of at least ``timestamp``, or None."""
        index = _footer.find_timestamp(self._raw, timestamp, start)
        return index if index < len(self.entries) else None

    def find_max_timestamp(self) -> int:
        """Index of the first batch that has the highest max timestamp."""
        return _footer.find_max_timestamp(self._raw)

    def batch_range(self, index: int) -> tuple[int, int]:
        """(position, length) of a batch in the object."""
        entry = self.entries[index]
        return int(entry["position"]), int(entry["length"])

    def read_range(self, index: int, max_bytes: int) -> tuple[int, int]:
        """(position, length) of whole batches from ``index`` on, at most ``max_bytes`` but at least one batch."""
        position, first = self.batch_range(index)
        ends = self.entries["position"][index + 1 :]
        fitting = int(np.searchsorted(ends, position + max_bytes, side="right"))
        if fitting == len(ends) and self.data_length - position <= max_bytes:
            return position, self.data_length - position
        return position, max(first, int(ends[fitting - 1]) - position if fitting else 0)
