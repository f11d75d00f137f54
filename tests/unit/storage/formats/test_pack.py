"""Packs: golden bytes, look-ups, tail reads, versions, damage."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest

from kbroker._fast.base.crc32c import crc32c
from kbroker.errors import CorruptionError
from kbroker.storage.formats import pack
from kbroker.storage.formats.klix import TAIL_BYTES, NeedMore
from kbroker.storage.formats.pack import PackDirectory, PackImage, directory_length, encode_directory

A, B = bytes(range(16)), bytes(15) + b"\xff"


def images_of(*spans: tuple[bytes, int, int, int], length: int = 1000) -> list[PackImage]:
    images, position = [], 0
    for topic_id, partition, base, end in spans:
        images.append(PackImage(topic_id, partition, base, end, position, length, position ^ 0xABCD, 1_700_000_000_000))
        position += length
    return images


IMAGES = images_of((B, 0, 5, 9), (A, 0, 0, 10), (A, 0, 10, 30), (A, 0, 40, 50), (A, 3, 0, 7))
SIZE = 5000 + directory_length(5)


def parsed(tail: bytes, size: int) -> PackDirectory:
    directory = PackDirectory.parse(tail, size)
    assert isinstance(directory, PackDirectory)
    return directory


def with_footer(
    directory: bytes, position: int, count: int | None = None, version: int = 1, magic: bytes = b"KBPK"
) -> bytes:
    start = struct.pack(">QQI", position, len(directory), len(directory) // 64 if count is None else count)
    return directory + start + struct.pack(">II", crc32c(directory + start), version) + magic


def test_golden_bytes() -> None:
    image = PackImage(A, 7, 256, 512, 0, 4096, 0xDEADBEEF, 1_700_000_000_000)
    entry = (
        "000102030405060708090a0b0c0d0e0f" "00000007" "0000000000000100" "0000000000000200" "0000000000000000"
        "0000000000001000" "deadbeef" "0000018bcfe56800"
    )  # fmt: skip
    checked = "0000000000001000000000000000004000000001"
    crc = crc32c(bytes.fromhex(entry + checked))
    assert encode_directory([image]).hex() == f"{entry}{checked}{crc:08x}000000014b42504b"


def test_round_trip() -> None:
    directory = parsed(encode_directory(IMAGES), SIZE)
    assert list(directory) == IMAGES
    assert [directory[i] for i in range(len(directory))] == IMAGES
    assert directory.nbytes == 5 * 64
    assert list(directory.entries["end_offset"]) == [9, 10, 30, 50, 7]
    with pytest.raises(IndexError):
        directory[5]


def test_images_are_found_by_partition_and_offset() -> None:
    directory = parsed(encode_directory(IMAGES), SIZE)
    assert directory.find(A, 0, 0) == directory.find(A, 0, 9) == IMAGES[1]
    assert directory.find(A, 0, 10) == directory.find(A, 0, 29) == IMAGES[2]
    assert directory.find(A, 0, 30) == directory.find(A, 0, 49) == IMAGES[3]
    assert directory.find(B, 0, 0) == directory.find(B, 0, 5) == IMAGES[0]
    assert directory.find(A, 3, 6) == IMAGES[4]
    for missing in ((A, 0, 50), (A, 3, 7), (B, 0, 9), (A, 1, 0), (A, -1, 0), (b"\xff" * 16, 0, 0), (bytes(16), 0, 0)):
        assert directory.find(*missing) is None
    assert directory.images(A, 0) == IMAGES[1:4]
    assert directory.images(A, 1) == []


def test_find_in_a_large_directory() -> None:
    rng = random.Random(1)
    topics = sorted(rng.randbytes(16) for _ in range(30))
    spans = []
    for topic in topics:
        for partition in sorted(rng.sample(range(1000), 20)):
            base = rng.randrange(1000)
            spans.append((topic, partition, base, base + rng.randrange(1, 500)))
    images = images_of(*spans)
    directory = parsed(encode_directory(images), 1000 * len(images) + directory_length(len(images)))
    for image in images:
        for offset in (image.base_offset, image.end_offset - 1):
            assert directory.find(image.topic_id, image.partition, offset) == image
        assert directory.find(image.topic_id, image.partition, image.end_offset) is None


def test_tail_reads() -> None:
    count = 2000
    images = images_of(*((A, i, 0, 1) for i in range(count)))
    directory = encode_directory(images)
    size = count * 1000 + len(directory)
    assert PackDirectory.parse(b"", size) == NeedMore(TAIL_BYTES)
    assert PackDirectory.parse(directory[-TAIL_BYTES:], size) == NeedMore(directory_length(count))
    assert len(parsed(b"\0" * 100 + directory, size)) == count
    assert PackDirectory.parse(b"", 100) == NeedMore(100)


def test_a_newer_version_is_refused_by_name() -> None:
    tail = with_footer(encode_directory(IMAGES)[:-32], 5000, version=7)
    with pytest.raises(CorruptionError, match="packs/1: pack version 7 is newer than this kbroker understands"):
        PackDirectory.parse(tail, SIZE, key="packs/1")


@pytest.mark.parametrize(
    ("tail", "size", "text"),
    [
        (with_footer(b"", 5000), 5032, "claims 0 images"),
        (with_footer(bytes(64), 0, magic=b"KLIX"), 96, "not a pack"),
        (with_footer(bytes(64), 0, version=0), 96, "version 0 was never written"),
        (with_footer(bytes(64), 0, count=2), 96, "claims 2 images"),
        (with_footer(bytes(64), 1), 96, "at 1, in 96"),
        (b"", 31, "too few"),
        (bytes(100), 99, "too few"),
    ],
)
def test_bad_footers_are_refused(tail: bytes, size: int, text: str) -> None:
    with pytest.raises(CorruptionError, match=text):
        PackDirectory.parse(tail, size)


def test_every_damaged_byte_is_seen() -> None:
    tail = encode_directory(IMAGES)
    for position in range(len(tail)):
        damaged = bytearray(tail)
        damaged[position] ^= 0x10
        with pytest.raises(CorruptionError):
            PackDirectory.parse(bytes(damaged), SIZE)


BREAKS: list[tuple[str, Callable[[list[PackImage]], object]]] = [
    ("not in order", lambda i: i.reverse() or i.__setitem__(slice(None), repositioned(i))),
    ("not in order", lambda i: i.__setitem__(2, i[1]._replace(position=2000))),
    ("overlaps", lambda i: i.__setitem__(2, i[2]._replace(base_offset=9))),
    ("starts at byte 1001", lambda i: i.__setitem__(1, i[1]._replace(position=1001))),
    ("a bad offset range", lambda i: i.__setitem__(1, i[1]._replace(end_offset=0))),
    ("a bad offset range", lambda i: i.__setitem__(1, i[1]._replace(base_offset=-1))),
    ("a negative partition", lambda i: i.__setitem__(1, i[1]._replace(partition=-1))),
    ("an empty image", lambda i: i.__setitem__(1, i[1]._replace(length=0))),
]


def repositioned(images: list[PackImage]) -> list[PackImage]:
    return [image._replace(position=1000 * i) for i, image in enumerate(images)]


@pytest.mark.parametrize(("text", "change"), BREAKS)
def test_writer_and_reader_refuse_the_same_directories(text: str, change: Callable[[list[PackImage]], object]) -> None:
    images = list(IMAGES)
    change(images)
    with pytest.raises(ValueError, match=text):
        encode_directory(images)
    raw = b"".join(pack._ENTRY.pack(*image) for image in images)
    with pytest.raises(CorruptionError, match=text):
        PackDirectory.parse(with_footer(raw, 5000), SIZE)


def test_an_empty_pack_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        encode_directory([])
