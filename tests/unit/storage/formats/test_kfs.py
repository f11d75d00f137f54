"""KafScale's segments and indexes: golden bytes, what is written, what is read of others' writing, refusals."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.records import build_batch, iter_batches
from kbroker._fast.wal.index_dtype import INDEX_DTYPE
from kbroker.errors import CorruptionError
from kbroker.storage.flush.kfs_flush import build_pair
from kbroker.storage.formats.kfs import FOOTER_BYTES, HEADER_BYTES, encode_segment, parse_segment
from kbroker.storage.formats.kfs_index import encode_index, parse_index, rebuild_index
from kbroker.storage.formats.kfs_keys import (
    INDEX_SUFFIX,
    KfsKey,
    index_key_of,
    kfs_key,
    pair_keys,
    parse_kfs_key,
    partition_prefix,
)
from kbroker.storage.read.kfs_read import klix_footer
from kbroker.storage.stores.object_store import BytesBody

# One record, key k, value v, timestamp 1700000000000, offset 0, leader epoch 0.
ONE = bytes.fromhex(
    "00000000000000000000003a0000000002e99b8dd80000000000000000018bcfe568000000018bcfe56800ffffffffffffffff"
    "ffffffffffff0000000110000000026b027600"
)


def batches(*counts: int, base: int = 0) -> bytes:
    pieces = []
    for count in counts:
        pieces.append(build_batch([(None, b"v" * 10, 5, None)] * count, base_offset=base))
        base += count
    return b"".join(pieces)


def test_golden_bytes() -> None:
    data = encode_segment(ONE, 1_700_000_000_001)
    assert data[:32].hex() == "4b41465300010000" + "0000000000000000" + "00000001" + "0000018bcfe56801" + "00000000"
    assert data[32:-16] == ONE
    assert data[-16:].hex() == f"{crc32c(ONE):08x}" + "0000000000000000" + "454e4421"
    assert (
        rebuild_index(parse_segment(data)).hex() == "49445800000100000001000000640000" + "0000000000000000" + "00000020"
    )


@pytest.mark.parametrize(
    ("counts", "indexed"),
    [
        ((1,), [0]),
        ((1,) * 250, [0, 100, 200]),
        ((40,) * 6, [0, 120]),  # the batch that begins when 100 have passed
        ((100, 100, 1), [0, 100, 200]),
        ((99, 1, 1), [0, 100]),
        ((1000, 1, 1), [0, 1000]),
    ],
)
def test_index_entries(counts: tuple[int, ...], indexed: list[int]) -> None:
    data = encode_segment(batches(*counts, base=7), 0)
    index = parse_index(rebuild_index(parse_segment(data)), 7, len(data))
    assert [offset - 7 for offset in index.offsets] == indexed
    for offset, position in zip(index.offsets, index.positions, strict=True):
        assert struct.unpack_from(">q", data, position)[0] == offset
    for offset in (0, 7, 8, 106, 107, 108, 5000):
        position, length = index.span(offset, len(data))
        assert index.find(offset) == position
        first = struct.unpack_from(">q", data, position)[0]
        assert first <= max(offset, 7)
        following = [o for o in index.offsets if o > first]
        assert not following or offset < following[0]
        assert position + length == (index.positions[index.offsets.index(following[0])] if following else len(data))


@pytest.mark.parametrize(
    ("sizes", "indexed"),
    [
        ([500_000, 900_000, 900_000, 10, 10], [0, 1, 2, 3]),  # each large one alone, and what follows it
        ([500_000, 5_000, 60_000], [0, 2]),
        ([500_000, 24_288, 1], [0, 2]),  # 512 KiB, and one more
    ],
)
def test_no_span_of_batches_fills_an_answer(sizes: list[int], indexed: list[int]) -> None:
    """KafScale answers with the bytes after an entry, as many as were requested: no later batch can be reached."""
    at = HEADER_BYTES + np.cumsum([0, *sizes])
    rows = [(int(at[n]), size, n, 1) for n, size in enumerate(sizes)]
    assert parse_index(encode_index(rows), 0, int(at[-1])).offsets == tuple(indexed)


@pytest.mark.parametrize("magic", ["49445800", "4944580a", "00494458"])
@pytest.mark.parametrize("crc", [crc32c, zlib.crc32])
def test_segments_of_other_writers_are_read(magic: str, crc: object) -> None:
    good = encode_segment(batches(3, 4), 9)
    body = good[HEADER_BYTES:-FOOTER_BYTES]
    data = good[:-FOOTER_BYTES] + struct.pack(">I", crc(body)) + good[-12:]  # type: ignore[operator]
    segment = parse_segment(data)
    assert bytes(segment.body) == body
    assert (segment.header.base_offset, segment.header.record_count, segment.header.created_ms) == (0, 7, 9)
    assert segment.end_offset == 7
    index = bytes.fromhex(magic) + rebuild_index(segment)[4:]
    assert parse_index(index, 0, len(data)).offsets == (0,)


def test_every_damaged_byte_is_found() -> None:
    good = encode_segment(batches(3, 4, base=50), 0)
    ignored = {*range(6, 8), *range(16, 32)}  # flags, count, time, reserved
    for at in set(range(len(good))) - ignored:
        bad = bytearray(good)
        bad[at] ^= 0x41
        with pytest.raises(CorruptionError, match=r"^a key"):
            parse_segment(bytes(bad), "a key")
    for length in range(len(good)):
        with pytest.raises(CorruptionError, match=r"^a key"):
            parse_segment(good[:length], "a key")


def test_impossible_segments_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one batch"):
        encode_segment(b"", 0)
    with pytest.raises(ValueError, match="offset 0 where 3"):
        encode_segment(batches(3) + batches(1), 0)
    newer = bytearray(encode_segment(ONE, 0))
    newer[5] = 2
    with pytest.raises(CorruptionError, match="version 2; version 1 is understood"):
        parse_segment(bytes(newer))


def test_impossible_indexes_are_refused() -> None:
    data = encode_segment(batches(*(60,) * 4), 0)
    good = rebuild_index(parse_segment(data))
    assert len(parse_index(good, 0, len(data)).offsets) == 2
    cases = {
        "too few": good[:15],
        "magic at byte 0": b"x" + good[1:],
        "version 2": good[:5] + b"\2" + good[6:],
        "2 entries in": good[:-1],
        "0 entries in": good[:6] + bytes(4) + good[10:16],
        "does not ascend": good[:-12] + good[16:28],
        "begins with": good[:27] + b"\x21" + good[28:],
        "entry at byte": good[:-4] + struct.pack(">i", len(data)),
    }
    for problem, bad in cases.items():
        with pytest.raises(CorruptionError, match=problem):
            parse_index(bad, 0, len(data))
    with pytest.raises(CorruptionError, match="begins with"):
        parse_index(good, 1, len(data))
    with pytest.raises(ValueError, match="at least one entry"):
        encode_index([])


def test_keys() -> None:
    key = kfs_key("default", "orders", 3, 42)
    assert key == "default/orders/3/segment-00000000000000000042.kfs"
    assert key.startswith(partition_prefix("default", "orders", 3))
    assert parse_kfs_key(key) == KfsKey("default", "orders", 3, 42, False)
    index = kfs_key("a/b", "o.x", 0, (1 << 63) - 1, INDEX_SUFFIX)
    assert parse_kfs_key(index) == KfsKey("a/b", "o.x", 0, (1 << 63) - 1, True)
    for other in (
        "orders/3/segment-00000000000000000042.kfs",
        key[:-1],
        key.replace("/3/", "/03/"),
        key.replace("42", "x"),
        "n/../3/segment-00000000000000000042.kfs",
        "n/t/0/segment-99999999999999999999.kfs",
    ):
        assert parse_kfs_key(other) is None
    for arguments in (
        ("", "t", 0, 0),
        ("n", "t/u", 0, 0),
        ("n", "..", 0, 0),
        ("n", "t", -1, 0),
        ("n", "t", 0, 1 << 63),
    ):
        with pytest.raises(ValueError, match=r"not a|out of range"):
            kfs_key(*arguments)


def test_a_flush_builds_the_same_pair_as_the_encoder() -> None:
    body = batches(60, 60, 3, 200, base=1 << 40)
    rows = []
    position = 0
    for header, piece in iter_batches(body):
        rows.append((header.base_offset, position, header.max_timestamp, len(piece), header.last_offset_delta))
        position += len(piece)
    entries = np.array(rows, INDEX_DTYPE)
    counts = np.array([60, 60, 3, 200], np.int32)
    pair = build_pair(entries, counts, BytesBody(body), crc32c(body), 77)
    out = bytearray(pair.body.length)
    assert pair.body.read_into(0, memoryview(out)) == len(out)
    assert bytes(out) == encode_segment(body, 77)
    assert pair.crc32c == crc32c(bytes(out))
    segment = parse_segment(bytes(out))
    assert pair.index == rebuild_index(segment)
    assert bytes(out[pair.start : pair.start + pair.length]) == body
    footer = klix_footer(segment)
    assert len(footer) == 4
    assert [footer.batch_range(n) for n in range(4)] == [(row[1], row[3]) for row in rows]
    segment_key, index_key = pair_keys("orders", 3, 42)
    assert segment_key == "orders/3/segment-00000000000000000042.kfs"
    assert index_key == index_key_of(segment_key) == "orders/3/segment-00000000000000000042.index"
