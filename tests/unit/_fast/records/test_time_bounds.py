"""How early records are: what the check of produced batches finds, what headers say, and what follows for an object."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._fast.records.gather import BatchScan
from kbroker._fast.records.record_batch import validate
from kbroker._fast.records.records import build_batch, build_control_batch, min_timestamp, parse_batch_header
from kbroker._fast.records.time_bounds import time_bounds
from kbroker._fast.wal.index_dtype import INDEX_DTYPE
from tests.reference.time_bounds import true_bounds

NOW = 1_700_000_000_000
INT64_MAX = (1 << 63) - 1
UNKNOWN = -(1 << 63)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TIMES = st.integers(-INT64_MAX, INT64_MAX) | st.integers(NOW - 50, NOW + 50) | st.just(-1)


def batch_of(times: Sequence[int], **options) -> bytes:
    return build_batch([(b"k", b"v" * 10, time, None) for time in times], **options)


def scanned(batches: Sequence[bytes], disorder_ms: int) -> BatchScan:
    """A scan of batches that carry the base offsets 0, 1000, 2000, ..."""
    entries = np.zeros(len(batches), INDEX_DTYPE)
    data = []
    for place, batch in enumerate(batches):
        header = parse_batch_header(batch)
        entries[place]["base_offset"] = place * 1000
        entries[place]["size"] = len(batch)
        entries[place]["last_offset_delta"] = header.last_offset_delta
        entries[place]["max_timestamp"] = header.max_timestamp
        data.append((place * 1000).to_bytes(8, "big") + batch[8:])
    scan = BatchScan(entries, sum(map(len, data)), disorder_ms)
    scan.feed(b"".join(data))
    return scan


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("times", "disorder_ms"),
    [
        ([NOW], 0),
        ([NOW, NOW, NOW + 5], 0),
        ([NOW, NOW + 9, NOW - 1, NOW + 3], 1),
        ([NOW, NOW - 3, NOW - 7, NOW - 5], 7),
        ([-1], 0),
        ([-1, -1], 0),
        ([NOW, -1], NOW + 1),
        ([-1, NOW], 0),
        ([INT64_MAX, -INT64_MAX], INT64_MAX),
        ([0, -INT64_MAX], INT64_MAX),
    ],
)
def test_the_check_finds_how_far_records_are_below_the_base_timestamp(codec, times, disorder_ms) -> None:
    outcome = validate(batch_of(times, codec=codec))
    assert (outcome.error_code, outcome.disorder_ms) == (0, disorder_ms)


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_wholly_below_its_base_timestamp(codec) -> None:
    assert validate(batch_of([NOW, NOW + 5], base_timestamp=NOW + 100, codec=codec)).disorder_ms == 100


@pytest.mark.parametrize("codec", CODECS)
def test_with_log_append_time_no_record_is_below_another(codec) -> None:
    batch = bytearray(batch_of([NOW, NOW - 50], codec=codec))
    assert validate(batch, now_ms=NOW, log_append_time=True, stamp=True).disorder_ms == 0
    assert scanned([bytes(batch)], -2).min_timestamps.tolist() == [NOW]


def test_a_refused_batch_says_nothing() -> None:
    assert validate(batch_of([NOW, NOW - 50]), now_ms=NOW, before_max_ms=10).disorder_ms == 0


@given(st.lists(TIMES, min_size=1, max_size=6), st.sampled_from(CODECS))
def test_no_record_is_below_what_the_check_says(times, codec) -> None:
    batch = batch_of(times, codec=codec)
    outcome = validate(batch)
    assert outcome.error_code == 0
    base = parse_batch_header(batch).base_timestamp
    assert outcome.disorder_ms == min(base - min(times), INT64_MAX)
    assert min_timestamp(batch) == min(times)


@given(st.lists(st.lists(TIMES, min_size=1, max_size=4), min_size=1, max_size=5))
def test_no_record_is_below_what_headers_and_disorder_say(batches) -> None:
    stamped = [bytearray(batch_of(times)) for times in batches]
    judged = [validate(batch, stamp=True) for batch in stamped]
    scan = scanned([bytes(batch) for batch in stamped], max(outcome.disorder_ms for outcome in judged))
    assert all(bound <= min(times) for bound, times in zip(scan.min_timestamps.tolist(), batches, strict=True))


def test_without_a_known_disorder_only_a_header_that_says_it_all_is_believed() -> None:
    empty = batch_of([], last_offset_delta=4, max_timestamp=NOW)
    several, one, none = batch_of([NOW, NOW + 3]), batch_of([NOW + 7]), batch_of([-1])
    marker = build_control_batch(1, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW)
    scan = scanned([several, one, none, empty, marker], -1)
    assert scan.min_timestamps.tolist() == [UNKNOWN, NOW + 7, UNKNOWN, NOW, NOW]
    foreign = scanned([several, one, none, empty, marker], -2)  # nothing but what is read from the header anyway
    assert foreign.min_timestamps.tolist() == [UNKNOWN, UNKNOWN, UNKNOWN, NOW, UNKNOWN]
    assert scanned([several, none], 0).min_timestamps.tolist() == [NOW, -1]
    assert scanned([several, none], 5).min_timestamps.tolist() == [NOW - 5, -6]


def bounds_of(batches: Sequence[tuple[int, list[int]]]) -> tuple[int, int]:
    return time_bounds(
        np.array([newest for newest, _ in batches], np.int64),
        np.array([min(times, default=newest) for newest, times in batches], np.int64),
        np.array([len(times) for _, times in batches], np.int32),
    )


@given(st.lists(st.tuples(TIMES, st.lists(TIMES, max_size=3)), min_size=1, max_size=6))
def test_bounds_of_batches_are_those_of_the_definition(batches) -> None:
    smallest, late_ms = true_bounds(batches)
    assert bounds_of(batches) == (smallest, late_ms if late_ms <= INT64_MAX else -1)


def test_of_ordered_batches_nothing_is_late() -> None:
    assert bounds_of([(NOW, [NOW - 1, NOW]), (NOW, [NOW]), (NOW + 9, [NOW, NOW + 9])]) == (NOW - 1, 0)
    assert bounds_of([(NOW, [NOW]), (NOW - 4, [NOW - 6, NOW - 4]), (NOW + 2, [NOW - 1, NOW + 2])]) == (NOW - 6, 6)


def test_a_batch_without_records_is_not_early_and_makes_others_late() -> None:
    assert bounds_of([(NOW, []), (NOW - 3, [NOW - 3])]) == (NOW - 3, 3)
    assert bounds_of([(NOW, []), (NOW - 3, [])]) == (NOW, 0)


def test_bounds_need_batches() -> None:
    with pytest.raises(ValueError, match="no batches"):
        bounds_of([])
