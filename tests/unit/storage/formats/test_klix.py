"""KLIX objects: golden bytes, the 64 KiB tail rule, look-ups, damage."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._fast.records.records import build_batch, iter_batches
from kbroker.errors import CorruptionError
from kbroker.storage.formats import klix
from kbroker.storage.formats.klix import BATCH_DTYPE, KlixFooter, NeedMore, encode_footer, encode_object, footer_length
from tests.reference import klix_twin as twin

NOW = 1_700_000_000_000


def batches_of(count: int, base_offset: int = 100, step: int = 3) -> bytes:
    return b"".join(
        build_batch([(b"k", b"v" * i, NOW + 10 * i, [])] * step, base_offset=base_offset + step * i)
        for i in range(count)
    )


def parsed(image: bytes, tail_bytes: int = klix.TAIL_BYTES) -> KlixFooter:
    footer = KlixFooter.parse(image[-tail_bytes:], len(image))
    assert isinstance(footer, KlixFooter)
    return footer


def large(count: int) -> tuple[bytes, int]:
    """Footer and object size of an object of ``count`` smallest batches."""
    entries = np.zeros(count, dtype=BATCH_DTYPE)
    entries["base_offset"], entries["size"], entries["record_count"] = np.arange(count), 61, 1
    footer = encode_footer(entries)
    return footer, 61 * count + len(footer)


def test_golden_bytes() -> None:
    one = bytes.fromhex(
        "00000000000000000000003a0000000002e99b8dd80000000000000000018bcfe568000000018bcfe56800ffffffffffffff"
        "ffffffffffffff0000000110000000026b027600"
    )
    assert encode_object(one).hex() == one.hex() + (
        "0000000000000000" "00000000" "00000046" "00000000" "0000018bcfe56800" "00000001" "00000001" "4b4c4958"
    )  # fmt: skip


def test_footer_equals_the_twin_and_the_object_writer() -> None:
    data = batches_of(20)
    rows = [
        (h.base_offset, h.max_timestamp, h.size, h.last_offset_delta, h.record_count) for h, _ in iter_batches(data)
    ]
    footer = encode_footer(np.array(rows, dtype=BATCH_DTYPE))
    assert footer == twin.encode_footer(twin.entries_of(data))
    assert encode_object(data) == data + footer
    assert len(footer) == footer_length(20) == 20 * 32 + 8


def test_the_footer_sums_up_its_batches() -> None:
    data = batches_of(20)
    footer = parsed(encode_object(data))
    assert (len(footer), footer.base_offset, footer.end_offset) == (20, 100, 160)
    assert (footer.max_timestamp, footer.record_count, footer.data_length) == (NOW + 190, 60, len(data))
    assert footer.nbytes == 640


def test_batches_are_found_by_offset_and_timestamp() -> None:
    footer = parsed(encode_object(batches_of(20)))
    assert [footer.find_offset(o) for o in (0, 100, 102, 103, 159)] == [0, 0, 0, 1, 19]
    assert footer.find_offset(160) is None
    assert [footer.find_timestamp(NOW + t) for t in (-1, 0, 1, 190)] == [0, 0, 1, 19]
    assert footer.find_timestamp(NOW + 191) is None
    assert footer.find_timestamp(0, start=7) == 7
    assert footer.find_max_timestamp() == 19


def test_batch_and_read_ranges() -> None:
    data = batches_of(20)
    footer = parsed(encode_object(data))
    sizes = [header.size for header, _ in iter_batches(data)]
    position = 0
    for index, size in enumerate(sizes):
        assert footer.batch_range(index) == (position, size)
        position += size
    assert footer.read_range(0, 0) == (0, sizes[0])
    assert footer.read_range(3, sum(sizes[3:6])) == (sum(sizes[:3]), sum(sizes[3:6]))
    assert footer.read_range(3, sum(sizes[3:6]) - 1) == (sum(sizes[:3]), sum(sizes[3:5]))
    assert footer.read_range(18, 10**9) == (sum(sizes[:18]), sum(sizes[18:]))
    assert footer.read_range(19, 1) == (sum(sizes[:19]), sizes[19])


def test_one_tail_read_holds_2047_entries() -> None:
    footer, size = large(2047)
    assert len(footer) <= klix.TAIL_BYTES
    tail = (b"\0" * klix.TAIL_BYTES + footer)[-klix.TAIL_BYTES :]
    assert isinstance(KlixFooter.parse(tail, size), KlixFooter)


def test_more_entries_need_a_second_read() -> None:
    footer, size = large(2048)
    assert KlixFooter.parse(footer[-klix.TAIL_BYTES :], size) == NeedMore(footer_length(2048))
    whole = KlixFooter.parse(footer, size)
    assert isinstance(whole, KlixFooter)
    assert len(whole) == 2048


def test_a_tail_shorter_than_the_trailer() -> None:
    assert KlixFooter.parse(b"", 1000) == NeedMore(1000)
    assert KlixFooter.parse(b"KLIX", 10**6) == NeedMore(klix.TAIL_BYTES)


def test_damage_is_named() -> None:
    image = encode_object(batches_of(3))
    for tail, size, text in (
        (image[:-1] + b"Y", len(image), "magic at byte"),
        (image[:-8] + struct.pack(">II", 2**32 - 1, klix.MAGIC), len(image), "claims 4294967295 entries"),
        (image[:-8] + struct.pack(">II", 0, klix.MAGIC), len(image), "claims 0 entries"),
        (image[:-8] + struct.pack(">II", 2, klix.MAGIC), len(image), "index entry 0"),
        (image, len(image) + 1, "entries end at byte"),
        (image, len(image) - 1, "too few"),
        (b"", 7, "too few"),
    ):
        with pytest.raises(CorruptionError, match=text) as caught:
            KlixFooter.parse(tail, size, key="topic/0/1.obj")
        assert str(caught.value).startswith("topic/0/1.obj: ")


def test_empty_objects_are_not_written() -> None:
    with pytest.raises(ValueError, match="at least one"):
        encode_object(b"")
    with pytest.raises(ValueError, match="at least one"):
        encode_footer(np.zeros(0, dtype=BATCH_DTYPE))


def test_entries_are_a_view_of_the_stored_bytes() -> None:
    footer = parsed(encode_object(batches_of(3)))
    assert footer.entries.dtype == klix.ENTRY_DTYPE
    assert not footer.entries.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        footer.entries["position"][0] = 1


@given(st.integers(1, 8), st.integers(0, 2**40), st.integers(0, 30))
def test_found_batch_holds_the_offset(count: int, base_offset: int, ahead: int) -> None:
    data = batches_of(count, base_offset)
    footer = parsed(encode_object(data))
    offset = base_offset + ahead
    index = footer.find_offset(offset)
    if index is None:
        assert offset >= footer.end_offset
    else:
        position, length = footer.batch_range(index)
        header, _ = next(iter_batches(data[position : position + length]))
        assert header.base_offset <= offset <= header.last_offset
