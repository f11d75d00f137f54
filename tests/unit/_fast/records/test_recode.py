"""Re-encoding of batches: every pair of codecs, levels, sizes, against the plain twin's records."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker import limits
from kbroker._fast.records import compression
from kbroker._fast.records import recode as recode_module
from kbroker._fast.records.recode import recode
from kbroker._fast.records.record_batch import validate
from kbroker._fast.records.records import build_batch, iter_records, parse_batch_header
from tests.reference import record_twin as twin

NOW = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
IDENTITY = {"producer_id": 9, "producer_epoch": 3, "base_sequence": 77, "transactional": True}


def some_batch(codec: str, records: int = 100, size: int = 50) -> bytes:
    return build_batch(
        [(b"k%d" % i, b"value %d " % i * (size // 8), NOW + i % 7, [("h", None)] * (i % 3)) for i in range(records)],
        codec=codec,
        **IDENTITY,
    )


@pytest.mark.parametrize("source", CODECS)
@pytest.mark.parametrize("target", CODECS)
def test_every_pair_of_codecs(source: str, target: str) -> None:
    batch, number = some_batch(source, 1000), compression.CODECS[target]
    result = recode(batch, number)
    before, after = parse_batch_header(batch), parse_batch_header(result)
    assert after == before._replace(size=len(result), crc=after.crc, attributes=before.attributes & ~7 | number)
    assert after.crc == twin.crc32c(result[21:])
    assert twin.decompress(number, result[61:]) == twin.decompress(compression.CODECS[source], batch[61:])
    assert list(iter_records(result)) == list(iter_records(batch))
    assert validate(result, now_ms=NOW).error_code == 0


def test_the_same_golden_batch_as_a_producer_writes() -> None:
    golden = bytes.fromhex(
        "00000000000000000000003a0000000002e99b8dd80000000000000000018bcfe568000000018bcfe56800ffffffffffff"
        "ffffffffffffffff0000000110000000026b027600"
    )
    packed = recode(golden, 1)
    assert packed[:8] + packed[12:17] + packed[23:61] == golden[:8] + golden[12:17] + golden[23:61]
    assert recode(packed, 0) == golden
    # Java's framing: xerial blocks, LZ4 frames of 64 KiB independent blocks, zstd frames without content size.
    assert recode(golden, 2)[61:81] == bytes.fromhex("82534e4150505900" + "00000001" * 2 + "0000000b")
    assert recode(golden, 3)[61:67] == bytes.fromhex("04224d186040")
    assert recode(golden, 4)[61:66] == bytes.fromhex("28b52ffd00")


@pytest.mark.parametrize(("codec", "low", "high"), [("gzip", 1, 9), ("lz4", 1, 17), ("zstd", -50, 19)])
def test_levels(codec: str, low: int, high: int) -> None:
    batch, number = some_batch("none", 2000, 400), compression.CODECS[codec]
    fast, small = recode(batch, number, level=low), recode(batch, number, level=high)
    assert len(small) < len(fast) < len(batch)
    assert list(iter_records(fast)) == list(iter_records(small)) == list(iter_records(batch))


@pytest.mark.parametrize("source", CODECS)
@pytest.mark.parametrize("target", CODECS)
def test_the_result_may_not_be_larger_than_the_topic_allows(source: str, target: str) -> None:
    batch, number = some_batch(source, 50), compression.CODECS[target]
    result = recode(batch, number)
    assert recode(batch, number, size_max=len(result)) == result
    assert recode(batch, number, size_max=len(result) - 1) == 10


def test_a_bomb_stops_at_the_size_limit() -> None:
    record = twin.encode_record(twin.TwinRecord(0, 0, None, bytes(30_000_000), []))
    batch = twin.pack_header(compression.compress(1, record), attributes=1)
    del record
    tracemalloc.start()
    try:
        assert recode(batch, 0, size_max=1_000_000) == 10
        assert isinstance(recode(batch, 4, size_max=1_000_000), bytes)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_renumbered_records_become_python_objects_in_pieces_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, they would be copied with the GIL held."""
    sizes = []
    compressor_of = compression.compressor

    class Encoder:
        def __init__(self, *arguments: object) -> None:
            self.encoder = compressor_of(*arguments)
            self.flush = self.encoder.flush

        def compress(self, piece: bytes) -> bytes:
            sizes.append(len(piece))
            return self.encoder.compress(piece)

    monkeypatch.setattr(recode_module, "compressor", Encoder)
    rows = [(None, bytes(1000), NOW, [])] * 3000
    batch = build_batch(rows, codec="zstd", offset_deltas=[7] * 3000, last_offset_delta=2999)
    records = list(iter_records(recode(batch, 1, renumber=True)))
    assert [record.offset for record in records] == list(range(3000))
    assert sum(sizes) > 3_000_000
    assert max(sizes) <= compression.PIECE_BYTES


def test_renumbering_has_its_own_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = some_batch("gzip", 1000)
    assert isinstance(recode(batch, 1, renumber=True), bytes)
    monkeypatch.setattr(limits, "RENUMBERED_BATCH_BYTES_MAX", 1000)
    assert recode(batch, 1, renumber=True) == 87


records = st.lists(
    st.tuples(
        st.integers(-(2**40), 2**40),
        st.one_of(st.integers(-3, 300), st.integers(-(2**31), 2**31 - 1)),
        st.none() | st.binary(max_size=300),
        st.none() | st.binary(max_size=300),
        st.lists(st.tuples(st.binary(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
    ),
    min_size=1,
    max_size=300,
)


@settings(max_examples=60, deadline=None)
@given(records, st.integers(1, 4), st.integers(0, 4))
def test_renumbered_records_are_the_twins(rows: list[tuple], source: int, target: int) -> None:
    given_records = [twin.TwinRecord(*row) for row in rows]
    body = compression.compress(source, b"".join(twin.encode_record(r) for r in given_records))
    batch = twin.pack_header(
        body, attributes=source, last_offset_delta=len(rows) - 1, record_count=len(rows), base_timestamp=NOW
    )
    outcome = validate(batch, now_ms=NOW)
    assert outcome.error_code == 0
    assert outcome.renumber == any(r.offset_delta != i for i, r in enumerate(given_records))
    result = recode(batch, target, renumber=True)
    for i, record in enumerate(given_records):
        record.offset_delta = i
    assert compression.decompress(target, result[61:], 10**7) == b"".join(twin.encode_record(r) for r in given_records)
    assert not validate(result, now_ms=NOW).renumber
