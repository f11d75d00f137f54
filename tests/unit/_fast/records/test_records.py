"""Building and reading record batches: golden vectors, round trips, hostile input, other implementations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from kbroker._fast.records import records
from kbroker._fast.records.record_batch import CorruptRecordsError, validate
from kbroker._fast.records.records import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    Marker,
    Record,
    build_batch,
    build_control_batch,
    first_record_at_or_after,
    iter_batches,
    iter_records,
    max_timestamp_record,
    parse_batch_header,
    parse_marker,
    seal,
)
from tests.reference import record_twin as twin

NOW = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

ONE_RECORD = (
    "00000000000000000000003a0000000002e99b8dd80000000000000000018bcfe568000000018bcfe56800ffffffffffffffff"
    "ffffffffffff0000000110000000026b027600"
)
COMMIT_MARKER = (
    "0000000000000005000000420000000302809c88c40030000000000000018bcfe568000000018bcfe5680000000000000003e8"
    "0002ffffffff000000012000000008000000010c00000000000700"
)
EMPTY_BATCH = (
    "000000000000000a0000003100000000022ae597ed000000000004ffffffffffffffff0000018bcfe5680000000000000003e8"
    "00020000000000000000"
)

NULLABLE = st.none() | st.binary(max_size=200)
RECORD_TUPLES = st.lists(
    st.tuples(
        NULLABLE,
        NULLABLE,
        st.integers(-(2**62), 2**62),
        st.lists(st.tuples(st.text(max_size=10), NULLABLE), max_size=3),
    ),
    min_size=1,
    max_size=10,
)


def marker(control_type: int = CONTROL_COMMIT, **options: Any) -> bytes:
    values = {"producer_id": 1000, "producer_epoch": 2, "coordinator_epoch": 7, "timestamp_ms": NOW}
    return build_control_batch(control_type, **{**values, **options})


# -- golden vectors -------------------------------------------------------------------------------------------


def test_one_record() -> None:
    assert build_batch([(b"k", b"v", NOW, [])], leader_epoch=0).hex() == ONE_RECORD
    assert list(iter_records(bytes.fromhex(ONE_RECORD), check_crc=True)) == [Record(0, NOW, 0, b"k", b"v", [])]


def test_commit_marker() -> None:
    assert marker(base_offset=5, leader_epoch=3).hex() == COMMIT_MARKER
    assert parse_marker(bytes.fromhex(COMMIT_MARKER)) == Marker(CONTROL_COMMIT, 0, 7)


def test_empty_batch_left_by_compaction() -> None:
    batch = build_batch(
        [], base_offset=10, leader_epoch=0, producer_id=1000, producer_epoch=2, base_sequence=0,
        last_offset_delta=4, max_timestamp=NOW,
    )  # fmt: skip
    assert batch.hex() == EMPTY_BATCH
    header = parse_batch_header(batch)
    assert (header.base_offset, header.last_offset, header.next_offset, header.record_count) == (10, 14, 15, 0)
    assert list(iter_records(batch)) == []
    assert max_timestamp_record(batch) is first_record_at_or_after(batch, 0) is None


def test_last_sequence_wraps() -> None:
    batch = build_batch([(None, b"", NOW, [])] * 5, producer_id=1, producer_epoch=0, base_sequence=2147483645)
    assert parse_batch_header(batch).last_sequence == 1
    assert parse_batch_header(build_batch([(None, b"", NOW, [])])).last_sequence == -1


# -- round trips ----------------------------------------------------------------------------------------------


@given(RECORD_TUPLES, st.integers(0, 2**40), st.integers(-1, 2**31 - 1))
def test_equals_the_twin_byte_for_byte(content: list[Any], base_offset: int, epoch: int) -> None:
    built = build_batch(content, base_offset=base_offset, leader_epoch=epoch, transactional=True)
    assert built == twin.build_batch(content, base_offset=base_offset, leader_epoch=epoch, attributes=0x10)


@given(RECORD_TUPLES, st.sampled_from(CODECS), st.integers(0, 2**40))
def test_iterator_undoes_builder(content: list[Any], codec: str, base_offset: int) -> None:
    batch = build_batch(content, base_offset=base_offset, codec=codec)
    read = list(iter_records(batch, check_crc=True))
    assert [(r.key, r.value, r.timestamp, r.headers) for r in read] == content
    assert [r.offset for r in read] == list(range(base_offset, base_offset + len(content)))


@pytest.mark.parametrize("codec", CODECS)
def test_kafka_python_reads_what_is_built(codec: str) -> None:
    content: list[Any] = [(b"k%d" % i, b"v" * i, NOW + i, [("h", b"x"), ("n", None)]) for i in range(50)]
    batch = DefaultRecordBatch(build_batch(content, codec=codec, base_offset=100))
    assert batch.validate_crc()
    assert [(r.key, r.value, r.timestamp, list(r.headers)) for r in batch] == content


@pytest.mark.parametrize("codec", range(5))
def test_reads_and_accepts_what_kafka_python_builds(codec: int) -> None:
    builder = DefaultRecordBatchBuilder(2, codec, False, 5, 1, 0, 1_000_000)
    for i in range(50):
        builder.append(i, NOW + i, b"k%d" % i, b"v" * i, [("h", b"x")])
    batch = bytes(builder.build())
    assert validate(batch, now_ms=NOW).error_code == 0
    assert [(r.offset, r.key, r.value) for r in iter_records(batch)] == [(i, b"k%d" % i, b"v" * i) for i in range(50)]


@pytest.mark.parametrize("codec", CODECS)
def test_large_records(codec: str) -> None:
    content: list[Any] = [(b"k", bytes(range(256)) * 4000, NOW + i, []) for i in range(3)]
    batch = build_batch(content, codec=codec)
    assert validate(batch, now_ms=NOW).error_code == 0
    assert [r.value for r in iter_records(batch)] == [c[1] for c in content]


def test_buffers_other_than_bytes() -> None:
    batch = build_batch([(bytearray(b"k"), memoryview(b"vvv")[1:], NOW, [("h", bytearray(b"x"))])])
    assert next(iter(iter_records(memoryview(batch))))[3:] == (b"k", b"vv", [("h", b"x")])
    with pytest.raises(TypeError):
        build_batch([("text", b"", NOW, [])])  # type: ignore[list-item]


def test_what_compaction_keeps() -> None:
    batch = build_batch(
        [(b"a", b"1", NOW, []), (b"b", None, NOW + 5, [])], base_offset=100, offset_deltas=[2, 7],
        last_offset_delta=9, base_timestamp=NOW + 77, max_timestamp=NOW + 9, delete_horizon=True, codec="lz4",
    )  # fmt: skip
    header = parse_batch_header(batch)
    assert (header.base_timestamp, header.max_timestamp, header.next_offset) == (NOW + 77, NOW + 9, 110)
    assert header.has_delete_horizon
    assert [(r.offset, r.timestamp, r.key) for r in iter_records(batch)] == [(102, NOW, b"a"), (107, NOW + 5, b"b")]


def test_no_records_need_a_last_offset_delta() -> None:
    with pytest.raises(ValueError, match="last_offset_delta"):
        build_batch([])


def test_header_flags() -> None:
    header = parse_batch_header(build_batch([(b"k", b"", NOW, [])], codec="zstd", timestamp_type=1, transactional=True))
    assert (header.codec, header.timestamp_type, header.is_transactional, header.is_control) == (4, 1, True, False)
    header = parse_batch_header(marker())
    assert (header.codec, header.timestamp_type, header.is_transactional, header.is_control) == (0, 0, True, True)


# -- several batches ------------------------------------------------------------------------------------------


def test_iter_batches() -> None:
    parts = [build_batch([(None, b"x" * n, NOW, [])], base_offset=n) for n in range(5)]
    found = list(iter_batches(b"".join(parts), check_crc=True))
    assert [bytes(view) for _, view in found] == parts
    assert [header.base_offset for header, _ in found] == list(range(5))
    assert list(iter_batches(b"")) == []


def test_iter_batches_names_the_position() -> None:
    batch = build_batch([(None, b"x", NOW, [])])
    with pytest.raises(CorruptRecordsError) as caught:
        list(iter_batches(batch + batch[:-1]))
    assert caught.value.position == len(batch)
    bad = bytearray(batch + batch)
    bad[-1] ^= 1
    assert len(list(iter_batches(bad))) == 2
    with pytest.raises(CorruptRecordsError, match="CRC") as caught:
        list(iter_batches(bad, check_crc=True))
    assert caught.value.position == len(batch)


# -- ListOffsets ----------------------------------------------------------------------------------------------

STAMPS = [NOW + 5, NOW, NOW + 9, NOW + 9, NOW + 2]


@pytest.mark.parametrize("codec", CODECS)
def test_first_record_at_or_after(codec: str) -> None:
    batch = build_batch([(None, b"x", t, []) for t in STAMPS], base_offset=100, codec=codec)
    assert first_record_at_or_after(batch, 0) == (100, NOW + 5)
    assert first_record_at_or_after(batch, NOW + 6) == (102, NOW + 9)
    assert first_record_at_or_after(batch, NOW + 1, 103) == (103, NOW + 9)
    assert first_record_at_or_after(batch, NOW + 1, 104) == (104, NOW + 2)
    assert first_record_at_or_after(batch, NOW + 10) is None
    assert first_record_at_or_after(batch, 0, 105) is None
    assert max_timestamp_record(batch) == (102, NOW + 9)


def test_log_append_time_counts_for_every_record() -> None:
    batch = build_batch([(None, b"x", t, []) for t in STAMPS], timestamp_type=1, max_timestamp=NOW + 50)
    assert first_record_at_or_after(batch, NOW + 40, 3) == (3, NOW + 50)
    assert max_timestamp_record(batch) == (0, NOW + 50)


# -- markers --------------------------------------------------------------------------------------------------


def test_abort_marker_is_78_bytes() -> None:
    assert len(marker(CONTROL_ABORT)) == 78
    assert parse_marker(marker(CONTROL_ABORT)) == Marker(CONTROL_ABORT, 0, 7)
    with pytest.raises(ValueError, match="control type 2"):
        marker(2)


def control(key: bytes, value: bytes) -> bytes:
    return build_batch([(key, value, NOW, [])], control=True, transactional=True)


def test_higher_marker_versions_are_read_by_their_prefix() -> None:
    batch = control(b"\0\x05\0\x01more", b"\0\x03\0\0\0\x09more")
    assert parse_marker(batch) == Marker(CONTROL_COMMIT, 3, 9)


def test_other_control_types_are_skipped() -> None:
    assert parse_marker(control(b"\0\0\0\x02", b"")) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"\0\0\0", b"\0" * 6), (b"\xff\xff\0\0", b"\0" * 6), (b"\0" * 4, b"\0" * 5), (b"\0" * 4, b"\xff\xff\0\0\0\0")],
)
def test_bad_markers(key: bytes, value: bytes) -> None:
    with pytest.raises(CorruptRecordsError):
        parse_marker(control(key, value))


def test_data_batches_are_no_markers() -> None:
    with pytest.raises(CorruptRecordsError, match="not a control"):
        parse_marker(build_batch([(b"\0\0\0\0", b"\0" * 6, NOW, [])]))


# -- hostile input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"\0" * 61, bytes.fromhex(ONE_RECORD)[:-1], bytes.fromhex(ONE_RECORD) + b"x"])
def test_not_exactly_one_batch(data: bytes) -> None:
    with pytest.raises(CorruptRecordsError):
        list(iter_records(data))


def test_offset_delta_outside_the_batch() -> None:
    body = twin.encode_record(twin.TwinRecord(0, 1, b"k", b"v", []))
    with pytest.raises(CorruptRecordsError, match="offset delta") as caught:
        list(iter_records(twin.pack_header(body, last_offset_delta=0)))
    assert caught.value.position == 61 + len(body)


@given(RECORD_TUPLES, st.sampled_from(CODECS), st.data())
def test_damaged_batches_end_in_the_named_error(content: list[Any], codec: str, data: st.DataObject) -> None:
    batch = bytearray(build_batch(content, codec=codec))
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(16, len(batch) - 1))] = data.draw(st.integers(0, 255))
    for read in (lambda: list(iter_records(batch)), lambda: first_record_at_or_after(batch, 2**63 - 1)):
        try:
            read()
        except CorruptRecordsError:
            pass


def test_header_keys_that_are_not_utf8_are_replaced() -> None:
    body = twin.encode_record(twin.TwinRecord(0, 0, b"k", b"v", [(b"\xff", b"x")]))
    assert next(iter_records(twin.pack_header(body))).headers == [("�", b"x")]


def test_seal() -> None:
    batch = bytearray(build_batch([(b"k", b"v", NOW, [])]))
    batch[-1:] = b"\0"
    batch[43:51] = (5).to_bytes(8, "big")
    seal(batch)
    assert bytes(batch) == twin.reseal(bytes(batch))
    assert list(iter_records(batch, check_crc=True))
    with pytest.raises(ValueError, match="shorter"):
        seal(bytearray(60))


def test_iterators_keep_their_buffer_alive() -> None:
    iterator = iter_records(bytearray(build_batch([(None, b"abc", NOW, [])] * 3)))
    next(iterator)
    assert [r.value for r in iterator] == [b"abc", b"abc"]


def test_a_borrowed_buffer_cannot_be_resized() -> None:
    buffer = bytearray(build_batch([(None, b"abc", NOW, [])] * 3))
    iterator = records.iter_records(buffer)
    next(iterator)
    with pytest.raises(BufferError):
        buffer.extend(b"more")
    del iterator
    buffer.extend(b"more")
