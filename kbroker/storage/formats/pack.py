"""Packs: many small KLIX images in one object, with a directory (layout: docs/formats/pack.md).

    images | directory entries, 64 bytes each | footer, 32 bytes

    directory entry                         footer
    0   16  topic id                        0   8  directory position u64
    16  4   partition i32                   8   8  directory length u64
    20  8   base offset i64                 16  4  entry count u32
    28  8   end offset i64, exclusive       20  4  CRC-32C of the directory and of footer bytes 0-19
    36  8   position u64                    24  4  version u32
    44  8   length u64                      28  4  magic "KBPK"
    52  4   CRC-32C of the image
    56  8   max timestamp i64

Everything is big-endian. Images lie without gaps from byte 0, sorted by topic id, partition and base offset; so the
first 28 bytes of the entries are in byte order and can be searched in place.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from kbroker._fast.base.crc32c import crc32c
from kbroker.errors import CorruptionError
from kbroker.storage.formats.klix import INDEX_BYTES_MAX, OBJECT_BYTES_MAX, TAIL_BYTES, NeedMore

MAGIC = 0x4B42504B
VERSION = 1

_ENTRY = struct.Struct(">16siqqQQIq")
_SORT_KEY = struct.Struct(">16siq")
_FOOTER = struct.Struct(">QQIIII")
_FOOTER_CHECKED = struct.Struct(">QQI")
ENTRY_BYTES = _ENTRY.size
FOOTER_BYTES = _FOOTER.size
assert (ENTRY_BYTES, FOOTER_BYTES) == (64, 32)

_DTYPE = np.dtype(
    [
        ("topic_id", "V16"),
        ("partition", ">i4"),
        ("base_offset", ">i8"),
        ("end_offset", ">i8"),
        ("position", ">u8"),
        ("length", ">u8"),
        ("crc32c", ">u4"),
        ("max_timestamp", ">i8"),
    ]
)
assert _DTYPE.itemsize == ENTRY_BYTES


class PackImage(NamedTuple):
    """Where one partition's KLIX image lies in a pack."""

    topic_id: bytes
    partition: int
    base_offset: int
    end_offset: int
    position: int
    length: int
    crc32c: int
    max_timestamp: int


def directory_length(image_count: int) -> int:
    """Bytes of the directory and the footer."""
    return image_count * ENTRY_BYTES + FOOTER_BYTES


def encode_directory(images: Sequence[PackImage]) -> bytes:
    """Directory and footer for images that lie in this order from byte 0. ValueError when they break a rule."""
    if not images:
        raise ValueError("a pack holds at least one image")
    directory = b"".join(_ENTRY.pack(*image) for image in images)
    position = images[-1].position + images[-1].length
    fault = _fault(directory, position)
    if fault:
        raise ValueError(fault)
    checked = _FOOTER_CHECKED.pack(position, len(directory), len(images))
    return directory + _FOOTER.pack(
        position, len(directory), len(images), crc32c(checked, crc32c(directory)), VERSION, MAGIC
    )


class PackDirectory:
    """The directory of one pack, checked. Immutable; owns its bytes."""

    __slots__ = ("_raw", "entries")

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self.entries: np.ndarray = np.frombuffer(raw, dtype=_DTYPE)

    @classmethod
    def parse(cls, tail: bytes, object_size: int, key: str = "pack") -> PackDirectory | NeedMore:
        """Reads the directory from the last bytes of a pack of ``object_size`` bytes.

        Raises CorruptionError, which names ``key``, when it is not a pack, is of a newer version, or is damaged.
        """
        if object_size < FOOTER_BYTES or len(tail) > object_size:
            raise CorruptionError(f"{key}: {object_size} bytes are too few for a pack")
        if len(tail) < FOOTER_BYTES:
            return NeedMore(min(TAIL_BYTES, object_size))
        position, length, count, crc, version, magic = _FOOTER.unpack_from(tail, len(tail) - FOOTER_BYTES)
        if magic != MAGIC:
            raise CorruptionError(f"{key}: not a pack: the magic at byte {object_size - 4} is {magic:#010x}")
        if version > VERSION:
            raise CorruptionError(f"{key}: pack version {version} is newer than this kbroker understands")
        if version != VERSION:
            raise CorruptionError(f"{key}: pack version {version} was never written")
        if count == 0 or length != count * ENTRY_BYTES or position + length + FOOTER_BYTES != object_size:
            raise CorruptionError(
                f"{key}: the pack footer claims {count} images and a directory of {length} bytes at {position}, "
                f"in {object_size} bytes"
            )
        if length > INDEX_BYTES_MAX or object_size > OBJECT_BYTES_MAX:
            raise CorruptionError(f"{key}: {count} images in {object_size} bytes are more than a pack has")
        if length + FOOTER_BYTES > len(tail):
            return NeedMore(length + FOOTER_BYTES)
        raw = bytes(memoryview(tail)[len(tail) - FOOTER_BYTES - length : len(tail) - FOOTER_BYTES])
        if crc32c(_FOOTER_CHECKED.pack(position, length, count), crc32c(raw)) != crc:
            raise CorruptionError(f"{key}: the CRC of the pack directory at byte {position} does not match")
        fault = _fault(raw, position)
        if fault:
            raise CorruptionError(f"{key}: pack directory at byte {position}: {fault}")
        return cls(raw)

    def __len__(self) -> int:
        return len(self._raw) // ENTRY_BYTES

    def __getitem__(self, index: int) -> PackImage:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return PackImage(*_ENTRY.unpack_from(self._raw, index * ENTRY_BYTES))

    def __iter__(self) -> Iterator[PackImage]:
        return map(PackImage._make, _ENTRY.iter_unpack(self._raw))

    @property
    def nbytes(self) -> int:
        """Bytes it holds in memory (for caches)."""
        return len(self._raw)

    def find(self, topic_id: bytes, partition: int, offset: int) -> PackImage | None:
        """The partition's image that holds ``offset``, else the next one above it, else None."""
        if partition < 0:
            return None
        index = self._first_above(_SORT_KEY.pack(topic_id, partition, max(offset, 0)))
        for candidate in (index - 1, index):
            if not 0 <= candidate < len(self):
                continue
            image = self[candidate]
            if (image.topic_id, image.partition) == (topic_id, partition) and image.end_offset > offset:
                return image
        return None

    def images(self, topic_id: bytes, partition: int) -> list[PackImage]:
        """All images of a partition, in offset order."""
        found = []
        offset = 0
        while (image := self.find(topic_id, partition, offset)) is not None:
            found.append(image)
            offset = image.end_offset
        return found

    def _first_above(self, sort_key: bytes) -> int:
        """Index of the first entry with a greater sort key."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            start = middle * ENTRY_BYTES
            if self._raw[start : start + _SORT_KEY.size] <= sort_key:
                low = middle + 1
            else:
                high = middle
        return low


def _fault(directory: bytes, images_end: int) -> str | None:
    """What is wrong with the entries, in words, or None."""
    entries = np.frombuffer(directory, dtype=_DTYPE)
    base, end = entries["base_offset"], entries["end_offset"]
    for name, bad in (
        ("a negative partition", entries["partition"] < 0),
        ("a bad offset range", (base < 0) | (end <= base)),
        ("an empty image", entries["length"] == 0),
    ):
        if bad.any():
            return f"entry {int(bad.argmax())} has {name}"
    position = 0
    previous_key, previous_partition, previous_end = b"", b"", 0
    for index, image in enumerate(_ENTRY.iter_unpack(directory)):
        topic_id, partition, base_offset, end_offset, image_position, length, _, _ = image
        key = _SORT_KEY.pack(topic_id, partition, base_offset)
        if key <= previous_key:
            return f"entry {index} is not in order"
        if key[:20] == previous_partition and base_offset < previous_end:
            return f"entry {index} overlaps the offsets of the one before"
        if image_position != position:
            return f"entry {index} starts at byte {image_position}, the one before ends at {position}"
        previous_key, previous_partition, previous_end = key, key[:20], end_offset
        position += length
    return (
        None if position == images_end else f"the images end at byte {position}, the directory starts at {images_end}"
    )
