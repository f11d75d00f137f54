"""Validation of produced batches: each rule by name, then equality with the plain twin on anything."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker import limits
from kbroker._fast.records import compression
from kbroker._fast.records.recode import recode
from kbroker._fast.records.record_batch import REASONS, ValidationOutcome, reason_text, validate
from kbroker._fast.records.records import build_batch, iter_records, parse_batch_header, seal
from tests.reference import record_twin as twin

NOW = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
OK, CORRUPT, TOO_LARGE, BAD_TIME, BAD_CODEC, INVALID = 0, 2, 10, 32, 76, 87


def batch_of(count: int = 3, key: bytes | None = b"key", codec: str = "none", **options: Any) -> bytes:
    return build_batch([(key, b"value %d" % i, NOW + i, [("h", b"x")]) for i in range(count)], codec=codec, **options)


def patched(batch: bytes, position: int, new: bytes, fix_crc: bool = True) -> bytes:
    out = bytearray(batch)
    out[position : position + len(new)] = new
    if fix_crc:
        seal(out)
    return bytes(out)


def with_body(body: bytes, count: int, attributes: int = 0, base_timestamp: int = NOW) -> bytes:
    return twin.pack_header(
        body, attributes=attributes, last_offset_delta=count - 1, base_timestamp=base_timestamp, record_count=count
    )


def assert_refused(batch: bytes, code: int, text: str, first_bad_record: int = -1, **rules: Any) -> None:
    outcome = validate(batch, now_ms=NOW, **rules)
    assert (outcome.error_code, outcome.first_bad_record) == (code, first_bad_record)
    assert text in outcome.message


@pytest.mark.parametrize("codec", CODECS)
def test_accepts_what_a_client_sends(codec: str) -> None:
    batch = batch_of(100, codec=codec, producer_id=7, producer_epoch=0, base_sequence=0)
    assert validate(batch, now_ms=NOW) == ValidationOutcome(OK, "", -1, NOW + 99)


# -- the batch as a whole -------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 16, 17, 60, 61, 80])
def test_no_complete_batch(length: int) -> None:
    assert_refused(batch_of()[:length], INVALID, "no complete record batch")


def test_batch_length_below_any_format() -> None:
    for length in (13, 0, -1, -(2**31)):
        assert_refused(patched(batch_of(), 8, length.to_bytes(4, "big", signed=True), False), CORRUPT, "too small")


def test_batch_length_below_the_header() -> None:
    assert_refused(patched(batch_of()[:60], 8, (48).to_bytes(4, "big"), False), CORRUPT, "too small")


def test_magic() -> None:
    assert_refused(patched(batch_of(), 16, b"\x03"), CORRUPT, "magic byte is unknown")
    assert_refused(patched(batch_of(), 16, b"\xff"), CORRUPT, "magic byte is unknown")
    assert_refused(patched(batch_of(), 16, b"\x01"), INVALID, "before v2")


def test_more_than_one_batch_or_trailing_bytes() -> None:
    assert_refused(batch_of() + batch_of(), INVALID, "more than one")
    assert_refused(batch_of() + b"\x00", INVALID, "more than one")


def test_base_offset() -> None:
    assert_refused(batch_of(base_offset=1), INVALID, "base offset")


def test_max_message_bytes_comes_before_the_crc() -> None:
    batch = patched(batch_of(), 70, b"\xff", fix_crc=False)
    assert_refused(batch, TOO_LARGE, "max.message.bytes", max_message_bytes=len(batch) - 1)
    assert_refused(batch, CORRUPT, "CRC", max_message_bytes=len(batch))


def test_every_flipped_bit_under_the_crc_is_seen() -> None:
    batch = batch_of(1)
    for position in range(17, len(batch)):
        for bit in range(8):
            flipped = patched(batch, position, bytes([batch[position] ^ 1 << bit]), fix_crc=False)
            assert validate(flipped).error_code == CORRUPT


@pytest.mark.parametrize(
    ("position", "value", "size"),
    [(57, 2, 4), (57, 4, 4), (57, 0, 4), (57, -1, 4), (23, 1, 4), (23, -1, 4), (23, 2**31 - 1, 4)],
)
def test_counts_that_do_not_agree(position: int, value: int, size: int) -> None:
    batch = patched(batch_of(3), position, value.to_bytes(size, "big", signed=True))
    assert_refused(batch, INVALID, "do not agree")


def test_record_count_minimum_does_not_overflow() -> None:
    batch = twin.pack_header(b"", last_offset_delta=2**31 - 1, record_count=-(2**31))
    assert_refused(batch, INVALID, "do not agree")


def test_control_batch_from_a_client() -> None:
    assert_refused(batch_of(control=True), INVALID, "control")


def test_producer_id_without_sequence() -> None:
    assert_refused(batch_of(producer_id=5, producer_epoch=0), INVALID, "base sequence")
    assert validate(batch_of(producer_id=-1, base_sequence=-1)).error_code == OK


def test_unknown_codecs() -> None:
    for codec in (5, 6, 7):
        assert_refused(patched(batch_of(), 22, bytes([codec])), BAD_CODEC, "codec")


def test_unused_attribute_bits_are_ignored() -> None:
    assert validate(patched(batch_of(), 21, b"\xff\xd0"), now_ms=NOW).error_code == OK


def test_zstd_below_produce_v7() -> None:
    assert validate(batch_of(codec="zstd"), produce_version=6).error_code == BAD_CODEC
    assert validate(batch_of(codec="zstd"), produce_version=7).error_code == OK
    assert validate(batch_of(codec="gzip"), produce_version=6).error_code == OK


# -- the records ----------------------------------------------------------------------------------------------

GOOD = twin.encode_record(twin.TwinRecord(0, 0, b"k", b"v", [(b"h", None)]))


def record_from(body: bytes, length: int | None = None) -> bytes:
    return twin.encode_varint(len(body) if length is None else length) + body


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (record_from(b"\0\0\0\x01\x01\0", length=7), "beyond the batch"),
        (record_from(b"", length=-1), "beyond the batch"),
        (record_from(b""), "beyond the record"),
        (record_from(b"\0\0\0\x01\x01\0\0"), "left over"),
        (record_from(b"\0\0\0\x03\x01\0"), "key length"),
        (record_from(b"\0\0\0\x01\x03\0"), "value length"),
        (record_from(b"\0\0\0\x04kk"), "beyond the record"),
        (record_from(b"\0\0\0\x06kk"), "beyond the record"),
        (record_from(b"\0\0\0\x01\x01\x01"), "header count"),
        (record_from(b"\0\0\0\x01\x01\x02"), "header count"),
        (record_from(b"\0\0\0\x01\x01\x02\x01\x01"), "header key length"),
        (record_from(b"\0\0\0\x01\x01\x02\x02a\x03"), "value length"),
        (record_from(b"\0\0\0\x01\x01\x02\x02a\x04b"), "beyond the record"),
        (record_from(b"\0" + b"\x80" * 10 + b"\0\x01\x01\0"), "beyond the record"),
        (b"\x80\x80\x80\x80\x80\x01", "beyond the record"),
    ],
)
@pytest.mark.parametrize("codec", CODECS)
def test_bad_records(record: bytes, text: str, codec: str) -> None:
    body = compression.compress(compression.CODECS[codec], record)
    assert_refused(with_body(body, 1, compression.CODECS[codec]), INVALID, text, first_bad_record=0)


def test_the_bad_record_is_named_by_its_place() -> None:
    bad = twin.encode_record(twin.TwinRecord(0, 1, b"k", b"v", []))[:-1] + b"\x01"
    assert_refused(with_body(GOOD + bad, 2), INVALID, "header count", first_bad_record=1)


@pytest.mark.parametrize("codec", CODECS)
def test_offset_deltas_out_of_order_are_refused_or_rewritten(codec: str) -> None:
    number = compression.CODECS[codec]
    deltas = (0, 2, 70000, -5)
    records = [twin.TwinRecord(i, delta, b"k", b"v" * i, [(b"h", None)]) for i, delta in enumerate(deltas)]
    body = compression.compress(number, b"".join(twin.encode_record(r) for r in records))
    batch = with_body(body, 4, number)
    if codec == "none":
        assert_refused(batch, INVALID, "offset delta", first_bad_record=1)
        return
    assert validate(batch, now_ms=NOW) == ValidationOutcome(OK, "", -1, NOW + 3, True)
    assert not validate(batch_of(4, codec=codec), now_ms=NOW).renumber
    rewritten = recode(batch, number, renumber=True)
    plain = [twin.encode_record(replace(r, offset_delta=i)) for i, r in enumerate(records)]
    assert compression.decompress(number, rewritten[61:], 10**6) == b"".join(plain)
    assert rewritten[:8] + rewritten[12:17] + rewritten[21:61] == batch[:8] + batch[12:17] + batch[21:61]
    assert validate(rewritten, now_ms=NOW) == ValidationOutcome(OK, "", -1, NOW + 3, False)


@pytest.mark.parametrize("codec", CODECS)
def test_more_or_fewer_records_than_counted(codec: str) -> None:
    number = compression.CODECS[codec]
    second = twin.encode_record(twin.TwinRecord(0, 1, None, None, []))
    packed = compression.compress(number, GOOD + second)
    assert_refused(with_body(packed, 1, number), INVALID, "more than its record count")
    assert_refused(with_body(packed, 3, number), INVALID, "fewer records")
    assert validate(with_body(packed, 2, number), now_ms=NOW).error_code == OK


@pytest.mark.parametrize("codec", CODECS)
def test_compacted_topics_need_keys(codec: str) -> None:
    batch = build_batch([(b"k", b"v", NOW, []), (None, b"v", NOW, []), (None, b"v", NOW, [])], codec=codec)
    assert_refused(batch, INVALID, "key", first_bad_record=1, compacted=True)
    assert validate(batch_of(codec=codec), now_ms=NOW, compacted=True).error_code == OK
    assert validate(batch_of(key=b"", codec=codec), now_ms=NOW, compacted=True).error_code == OK


# -- timestamps -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_timestamp_range(codec: str) -> None:
    batch = build_batch([(b"k", b"v", NOW - 10, []), (b"k", b"v", NOW + 10, [])], codec=codec)
    assert_refused(batch, BAD_TIME, "timestamp", first_bad_record=0, before_max_ms=9)
    assert_refused(batch, BAD_TIME, "timestamp", first_bad_record=1, after_max_ms=9)
    assert validate(batch, now_ms=NOW, before_max_ms=10, after_max_ms=10).error_code == OK
    assert validate(batch, now_ms=NOW, before_max_ms=0, after_max_ms=0, log_append_time=True).error_code == OK


def test_no_timestamp_is_always_in_range() -> None:
    batch = build_batch([(b"k", b"v", -1, [])])
    outcome = validate(batch, now_ms=NOW, before_max_ms=0, after_max_ms=0)
    assert outcome == ValidationOutcome(OK, "", -1, -1)


def test_a_timestamp_error_beats_a_missing_key() -> None:
    batch = build_batch([(None, b"v", NOW, []), (b"k", b"v", NOW + 10, [])])
    assert_refused(batch, BAD_TIME, "timestamp", first_bad_record=1, after_max_ms=9, compacted=True)


def test_extreme_clocks_and_limits_do_not_overflow() -> None:
    batch = build_batch([(b"k", b"v", 2**63 - 1, [])])
    assert validate(batch, now_ms=NOW).error_code == OK
    assert validate(batch, now_ms=NOW, after_max_ms=2**62).error_code == BAD_TIME
    batch = build_batch([(b"k", b"v", -(2**63), [])])
    assert validate(batch, now_ms=0).error_code == BAD_TIME  # 2^63 ms back is one more than the limit


def test_log_append_time_mark_from_a_client() -> None:
    batch = batch_of(timestamp_type=1)
    assert_refused(batch, BAD_TIME, "LogAppendTime", first_bad_record=0, log_append_time=True)
    assert validate(batch, now_ms=NOW).error_code == OK
    assert_refused(build_batch([(b"k", b"v", -1, [])], timestamp_type=1), BAD_TIME, "LogAppendTime", first_bad_record=0)


def test_record_timestamps_wrap_like_java() -> None:
    body = twin.encode_record(twin.TwinRecord(2**63 - 1, 0, b"k", b"v", []))
    # The sum is -2^63 + NOW - 1: exact arithmetic finds it out of any range below 2^63.
    assert_refused(with_body(body, 1), BAD_TIME, "timestamp", first_bad_record=0)
    assert validate(with_body(body, 1), now_ms=-1) == ValidationOutcome(OK, "", -1, -1, False, 2**63 - 1)


# -- stamping -------------------------------------------------------------------------------------------------


def stamped(batch: bytes, **rules: Any) -> bytes:
    out = bytearray(batch)
    assert validate(out, now_ms=NOW + 500, stamp=True, **rules).error_code == OK
    assert int.from_bytes(out[17:21], "big") == twin.crc32c(bytes(out[21:]))
    return bytes(out)


@pytest.mark.parametrize("codec", CODECS)
def test_right_header_is_left_alone(codec: str) -> None:
    batch = batch_of(codec=codec)
    assert stamped(batch) == batch


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("claimed", [0, -1, NOW + 10_000])
def test_wrong_max_timestamp_is_corrected(codec: str, claimed: int) -> None:
    batch = stamped(batch_of(max_timestamp=claimed, codec=codec))
    assert parse_batch_header(batch).max_timestamp == NOW + 2
    assert batch == batch_of(codec=codec)[:17] + batch[17:]


@pytest.mark.parametrize("codec", CODECS)
def test_log_append_time(codec: str) -> None:
    batch = stamped(batch_of(codec=codec), log_append_time=True)
    header = parse_batch_header(batch)
    assert (header.timestamp_type, header.max_timestamp) == (1, NOW + 500)
    assert [record.timestamp for record in iter_records(batch, check_crc=True)] == [NOW + 500] * 3


def test_a_clients_log_append_time_mark_is_removed() -> None:
    header = parse_batch_header(stamped(batch_of(timestamp_type=1, max_timestamp=5)))
    assert (header.timestamp_type, header.max_timestamp) == (0, NOW + 2)


# -- against the twin -----------------------------------------------------------------------------------------

RULES = st.fixed_dictionaries(
    {
        "before_max_ms": st.sampled_from([0, 5, 2**63 - 1]),
        "after_max_ms": st.sampled_from([0, 5, 2**63 - 1]),
        "compacted": st.booleans(),
        "log_append_time": st.booleans(),
        "max_message_bytes": st.sampled_from([100, 2**31]),
    }
)
NULLABLE = st.none() | st.binary(max_size=200)
RECORDS = st.lists(
    st.tuples(
        NULLABLE,
        NULLABLE,
        st.integers(NOW - 10, NOW + 10) | st.just(-1) | st.integers(-(2**40), 2**45),
        st.lists(st.tuples(st.text(max_size=10), NULLABLE), max_size=3),
    ),
    min_size=1,
    max_size=8,
)


def agrees(batch: bytes, rules: dict[str, Any]) -> None:
    expected = twin.validate(batch, now_ms=NOW, **rules)
    outcome = validate(batch, now_ms=NOW, **rules)
    assert (outcome.error_code, outcome.first_bad_record) == (expected.error_code, expected.first_bad_record)
    if expected.error_code == OK:
        assert outcome.true_max_timestamp == expected.true_max_timestamp
        assert outcome.disorder_ms == expected.disorder_ms


@given(RECORDS, RULES, st.sampled_from(CODECS), st.integers(0, 15))
def test_twin_agrees_on_valid_batches(records: list[Any], rules: dict[str, Any], codec: str, bits: int) -> None:
    batch = build_batch(records, codec=codec, timestamp_type=bits & 1, transactional=bool(bits & 2))
    agrees(batch, rules)


@settings(max_examples=300)
@given(RECORDS, RULES, st.data())
def test_twin_agrees_on_damaged_batches(records: list[Any], rules: dict[str, Any], data: st.DataObject) -> None:
    batch = bytearray(build_batch(records))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(batch) - 1))
        batch[position] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del batch[data.draw(st.integers(0, len(batch))) :]
    if data.draw(st.booleans()) and len(batch) >= 61:
        seal(batch)
    agrees(bytes(batch), rules)


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7, 50])
def test_pieces_of_any_size_give_the_same_verdict(piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "PIECE_BYTES", piece_bytes)
    rng = random.Random(piece_bytes)
    for _ in range(150):
        records = [
            (
                rng.choice([None, rng.randbytes(rng.randrange(40))]),
                rng.randbytes(rng.randrange(300)),
                NOW + i,
                [("h", None)] * (i % 3),
            )
            for i in range(rng.randrange(1, 6))
        ]
        body = bytearray(build_batch(records)[61:])
        if rng.random() < 0.7:
            body[rng.randrange(len(body))] = rng.randrange(256)
        for number in (1, 3, 4):
            batch = with_body(compression.compress(number, body), len(records), number)
            expected = twin.validate(batch, now_ms=NOW, compacted=True)
            outcome = validate(batch, now_ms=NOW, compacted=True)
            assert outcome.error_code == expected.error_code
            if expected.error_code != INVALID:
                assert outcome.true_max_timestamp == expected.true_max_timestamp


def test_every_reason_has_a_text() -> None:
    assert all(reason_text(i) == text for i, text in enumerate(REASONS))
    assert len(set(REASONS)) == len(REASONS)


def test_decompressed_size_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = build_batch([(b"k", bytes(3_000_000), NOW, [])], codec="zstd")
    monkeypatch.setattr(limits, "DECOMPRESSED_BATCH_BYTES_MAX", 3_100_000)
    assert validate(batch, now_ms=NOW).error_code == OK
    monkeypatch.setattr(limits, "DECOMPRESSED_BATCH_BYTES_MAX", 2_900_000)
    assert_refused(batch, INVALID, "more than this broker accepts")
