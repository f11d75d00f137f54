"""KLIX index entries: encode, verify and search against the plain twin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._fast.records import footer
from kbroker._fast.records.footer import FooterError
from kbroker._fast.records.records import build_batch
from tests.reference import klix_twin as twin


def columns(entries: list[twin.TwinEntry]) -> tuple[np.ndarray, ...]:
    return (
        np.array([e.base_offset for e in entries], dtype=np.int64),
        np.array([e.length for e in entries], dtype=np.uint32),
        np.array([e.last_offset_delta for e in entries], dtype=np.int32),
        np.array([e.max_timestamp for e in entries], dtype=np.int64),
        np.array([e.record_count for e in entries], dtype=np.int32),
    )


@st.composite
def valid_entries(draw: st.DrawFn, min_size: int = 0) -> list[twin.TwinEntry]:
    entries, position, offset = [], 0, draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(min_size, 20))):
        offset += draw(st.sampled_from([0, 0, 0, 1, 100]))
        delta = draw(st.integers(0, 1000))
        entry = twin.TwinEntry(
            offset,
            position,
            draw(st.integers(61, 10**6)),
            delta,
            draw(st.integers(-1, 50)),
            draw(st.integers(0, delta + 1)),
        )
        entries.append(entry)
        position, offset = position + entry.length, entry.last_offset + 1
    return entries


def raw(entries: list[twin.TwinEntry]) -> bytes:
    return twin.encode_footer(entries)[:-8]


@given(valid_entries())
def test_encode_equals_the_twin(entries: list[twin.TwinEntry]) -> None:
    assert footer.encode(*columns(entries)) == raw(entries)


@given(valid_entries(), st.data())
def test_verify_agrees_with_the_twin(entries: list[twin.TwinEntry], data: st.DataObject) -> None:
    length = sum(e.length for e in entries)
    footer.verify(raw(entries), length)
    damaged = bytearray(raw(entries))
    for _ in range(data.draw(st.integers(1, 3)) if damaged else 0):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    length += data.draw(st.sampled_from([0, 0, 1, -1]))
    parsed = [twin.TwinEntry(*fields) for fields in twin.ENTRY.iter_unpack(damaged)]
    if twin.is_valid(parsed, length):
        footer.verify(damaged, length)
    else:
        with pytest.raises(FooterError):
            footer.verify(damaged, length)


@given(valid_entries(min_size=1), st.data())
def test_an_index_is_verified_in_parts(entries: list[twin.TwinEntry], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(entries)))
    between = footer.verify_part(raw(entries[:cut]), 0, -1)
    assert footer.verify_part(raw(entries[cut:]), *between) == footer.verify_part(raw(entries), 0, -1)
    if 0 < cut < len(entries):
        with pytest.raises(FooterError):
            footer.verify_part(raw(entries[cut:]), 0, -1)


@given(valid_entries(), st.integers(-5, 2**40 + 25_000), st.integers(-3, 53), st.integers(0, 25))
def test_searches_agree_with_the_twin(entries: list[twin.TwinEntry], offset: int, timestamp: int, start: int) -> None:
    if entries:
        offset = max(entries[0].base_offset - 3, 0) + offset % (entries[-1].last_offset - entries[0].base_offset + 6)
    expected = twin.find_offset(entries, offset)
    assert footer.find_offset(raw(entries), offset) == (len(entries) if expected is None else expected)
    expected = twin.find_timestamp(entries, timestamp, start)
    assert footer.find_timestamp(raw(entries), timestamp, start) == (len(entries) if expected is None else expected)
    stamps = [e.max_timestamp for e in entries]
    assert footer.find_max_timestamp(raw(entries)) == (stamps.index(max(stamps)) if stamps else -1)


@given(st.binary(max_size=200), st.integers(-(2**63), 2**63 - 1))
def test_searches_stay_inside_any_bytes(data: bytes, wanted: int) -> None:
    if len(data) % 32:
        with pytest.raises(FooterError, match="whole number"):
            footer.find_offset(data, wanted)
        data = data[: len(data) // 32 * 32]
    assert 0 <= footer.find_offset(data, wanted) <= len(data) // 32
    assert 0 <= footer.find_timestamp(data, wanted) <= len(data) // 32


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"length": 60}, "batch header"),
        ({"position": 101}, "gap"),
        ({"base_offset": 9}, "not above"),
        ({"last_offset_delta": -1}, "delta"),
        ({"base_offset": 2**63 - 5}, "delta"),
        ({"record_count": -1}, "record count"),
        ({"record_count": 7}, "record count"),
        ({"length": 2**32 - 100}, "32-bit"),
    ],
)
def test_verify_names_entry_and_fault(change: dict[str, int], text: str) -> None:
    first = twin.TwinEntry(0, 0, 100, 9, 5, 10)
    second = twin.TwinEntry(10, 100, 100, 5, 5, 6)._replace(**change)
    with pytest.raises(FooterError, match=text) as caught:
        footer.verify(raw([first, second]), 200)
    assert caught.value.entry == 1


def test_verify_checks_the_end_of_the_data() -> None:
    entry = twin.TwinEntry(0, 0, 100, 0, 5, 1)
    with pytest.raises(FooterError, match="end at byte 100, the data at 99"):
        footer.verify(raw([entry]), 99)


def test_encode_refuses_what_verify_would() -> None:
    entries = [twin.TwinEntry(10, 0, 100, 0, 5, 1), twin.TwinEntry(10, 100, 100, 0, 5, 1)]
    with pytest.raises(FooterError, match="index entry 1"):
        footer.encode(*columns(entries))
    with pytest.raises(ValueError, match="different length"):
        footer.encode(*columns(entries)[:4], np.zeros(1, dtype=np.int32))


def test_encode_takes_the_columns_of_a_structured_array() -> None:
    table = np.zeros(2, dtype=[("o", "i8"), ("x", "i8"), ("n", "u4"), ("d", "i4"), ("t", "i8"), ("c", "i4")])
    table["o"], table["n"], table["c"] = [3, 9], 61, 1
    packed = footer.encode(table["o"], table["n"], table["d"], table["t"], table["c"])
    assert packed == raw([twin.TwinEntry(3, 0, 61, 0, 0, 1), twin.TwinEntry(9, 61, 61, 0, 0, 1)])


def test_encode_batches() -> None:
    batches = b"".join(build_batch([(None, b"x" * n, 1000 - n, [])] * (n + 1), base_offset=n * 10) for n in range(5))
    assert footer.encode_batches(batches) == raw(twin.entries_of(batches))
    with pytest.raises(FooterError, match="no complete record batch"):
        footer.encode_batches(batches[:-1])
    with pytest.raises(FooterError, match="not above"):
        footer.encode_batches(batches + batches)
