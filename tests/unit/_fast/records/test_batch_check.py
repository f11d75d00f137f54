"""Batches read back from storage: header, CRC, offsets and index, each fault found at its place."""

from __future__ import annotations

import pytest

from kbroker._fast.records.batch_check import BatchError, check_batches
from kbroker._fast.records.footer import encode_batches
from kbroker._fast.records.records import build_batch, iter_batches, seal

NOW = 1_700_000_000_000


def batches(*bases: int, step: int = 3) -> bytes:
    return b"".join(build_batch([(b"k", b"value", NOW, [])] * step, base_offset=base) for base in bases)


def test_counts_good_batches() -> None:
    assert check_batches(batches(10, 13, 20), 10) == 3
    assert check_batches(batches(10, 13, 20), 7) == 3
    assert check_batches(b"", 0) == 0


def test_every_flipped_byte_is_found() -> None:
    good = batches(10, 13)
    half = len(good) // 2
    index = encode_batches(good)
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 0x10
        if position % half in range(12, 16):  # the leader epoch: neither the CRC nor the index covers it
            assert check_batches(bad, 10, index) == 2
            continue
        with pytest.raises(BatchError) as caught:
            check_batches(bad, 10, index)
        assert caught.value.position == position // half * half


def test_offsets_must_grow() -> None:
    with pytest.raises(BatchError, match="batch 0 at byte 0: the base offset is below"):
        check_batches(batches(10), 11)
    with pytest.raises(BatchError, match="base offset is below") as caught:
        check_batches(batches(10, 12), 10)
    assert caught.value.index == 1
    assert caught.value.position == len(batches(10))


def test_a_cut_batch_is_found() -> None:
    data = batches(10, 13)
    with pytest.raises(BatchError, match=r"batch 1 .* no complete record batch"):
        check_batches(data[:-1], 10)


def test_index_must_agree() -> None:
    data = batches(10, 13)
    index = encode_batches(data)
    assert check_batches(data, 10, index) == 2
    with pytest.raises(BatchError, match="no entry for this batch"):
        check_batches(data, 10, index[:32])
    with pytest.raises(BatchError, match="2 entries for 1 batches"):
        check_batches(batches(10), 10, index)
    for field in (0, 12, 16, 20, 28):  # base offset, length, last offset delta, max timestamp, record count
        wrong = bytearray(index)
        wrong[32 + field] ^= 1
        with pytest.raises(BatchError, match=r"batch 1 .* index entry does not match"):
            check_batches(data, 10, wrong)


def test_a_negative_count_is_found_although_the_crc_is_right() -> None:
    bad = bytearray(batches(10))
    bad[57] = 0x80
    seal(bad)
    assert [header.size for header, _ in iter_batches(batches(10))] == [len(bad)]
    with pytest.raises(BatchError, match="negative record count"):
        check_batches(bad, 10)
