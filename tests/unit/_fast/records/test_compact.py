"""Single rules of the two passes; tests/fuzz/test_fuzz_compaction.py compares whole histories with the twin."""

import struct

import pytest

from kbroker._fast.records.compact_filter import BatchFilter
from kbroker._fast.records.compact_scan import KeyScan
from kbroker._fast.records.key_map import SLOT_BYTES, KeyMap
from kbroker._fast.records.record_batch import CorruptRecordsError
from kbroker._fast.records.records import (
    build_batch,
    build_control_batch,
    iter_batches,
    iter_records,
    min_timestamp,
    parse_batch_header,
)
from kbroker._fast.records.section_codec import PlainSections
from kbroker.storage.manifest.partition_state import TIMES_UNKNOWN

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
GOLDEN_EMPTY = bytes.fromhex(
    "000000000000000a0000003100000000022ae597ed000000000004ffffffffffffffff0000018bcfe56800"
    "00000000000003e800020000000000000000"
)


def compact(
    *batches, map_end=None, now_ms=NOW_MS, aborted=(), producers=None, start=0, keys=1000, sections=None, second=None
):
    """Both passes over batches, `second` in the second one; their headers and the bytes."""
    data = b"".join(batches)
    end = map_end if map_end is not None else [h.next_offset for h, _ in iter_batches(data)][-1]
    key_map = KeyMap((keys + 2) * SLOT_BYTES * 10 // 9)
    scan = KeyScan(key_map, start, end, aborted, sections)
    scan.feed(data)
    batch_filter = BatchFilter(key_map, scan.next_offset, now_ms, DAY_MS, aborted, producers, sections)
    batch_filter.feed(data if second is None else second)
    out, entries = batch_filter.take()
    found = list(iter_batches(out, check_crc=True))
    for row, (header, made) in zip(struct.iter_unpack("=qqqIiii", entries), found, strict=True):
        assert row[:2] == (header.base_offset, header.max_timestamp)
        assert row[3:] == (header.size, header.last_offset_delta, header.record_count, header.leader_epoch)
        smallest = min_timestamp(made)
        wanted = header.max_timestamp if smallest is None else smallest
        assert row[2] == wanted or (row[2] == TIMES_UNKNOWN and header.base_offset >= scan.next_offset)
    return found


def batch(base, *pairs, timestamp=NOW_MS, **options):
    return build_batch(
        [(key, value, timestamp + n, [("h", b"v")]) for n, (key, value) in enumerate(pairs)],
        base_offset=base, leader_epoch=2, **options,
    )  # fmt: skip


def test_an_empty_batch_is_the_header_alone() -> None:
    data = batch(10, *[(b"k", b"v")] * 5, producer_id=1000, producer_epoch=2, base_sequence=0)
    later = batch(15, (b"k", b"v"))
    producers = {1000: (14, 2)}
    (_, empty), _ = compact(data, later, producers=producers)
    golden = bytearray(GOLDEN_EMPTY)
    header = parse_batch_header(bytes(empty))
    assert (header.record_count, header.last_offset_delta, header.last_sequence, header.codec) == (0, 4, 4, 0)
    golden[12:16] = empty[12:16]  # leader epoch, outside the CRC
    golden[35:43] = empty[35:43]  # highest timestamp
    golden[17:21] = empty[17:21]
    assert bytes(empty) == bytes(golden)
    assert [h.base_offset for h, _ in compact(data, later, producers={1000: (99, 2)})] == [15]
    # A batch that is empty already stays as it is, while it is needed.
    again = compact(bytes(empty), later, producers=producers)
    assert bytes(again[0][1]) == bytes(empty)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_rewritten_batch_keeps_its_header_and_offsets(codec) -> None:
    data = batch(100, (b"a", b"1"), (b"b", b"2"), (b"c", b"3"), codec=codec, producer_id=7, producer_epoch=1,
                 base_sequence=40)  # fmt: skip
    (header, view), _ = compact(data, batch(103, (b"c", b"4")), start=100)
    before = parse_batch_header(data)
    assert (header.base_offset, header.last_offset_delta, header.last_sequence) == (100, 2, 42)
    assert header.codec == before.codec
    assert (header.record_count, header.max_timestamp) == (2, NOW_MS + 1)
    assert [(r.offset, r.key, r.timestamp, r.headers) for r in iter_records(view)] == [
        (100, b"a", NOW_MS, [("h", b"v")]), (101, b"b", NOW_MS + 1, [("h", b"v")]),
    ]  # fmt: skip


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_the_second_pass_takes_what_the_first_has_decompressed_while_there_is_room(codec) -> None:
    batches = [batch(2 * n, (b"a%d" % (n % 3), bytes(500)), (b"b", b"%d" % n), codec=codec) for n in range(6)]
    batches.append(batch(12, (b"b", b"last")))
    whole = [(header, bytes(view)) for header, view in compact(*batches)]
    assert [header.record_count for header, _ in whole] == [1, 1, 1, 1]
    for kept in (0, 1, 4, 6):
        sections = PlainSections(kept * 800)
        # What was kept is not decompressed again: damage to it goes unnoticed.
        damaged = b"".join(piece[:61] + b"\xff" * (len(piece) - 61) for piece in batches[:kept])
        found = compact(*batches, sections=sections, second=damaged + b"".join(batches[kept:]))
        assert [(header, bytes(view)) for header, view in found] == whole
        assert len(sections) == 0
        assert 0 <= sections.room_bytes < 800
    with pytest.raises(CorruptRecordsError):
        compact(*batches, sections=PlainSections(5 * 800), second=damaged + batches[6])


def test_log_append_time_is_kept() -> None:
    data = batch(0, (b"a", b"1"), (b"b", None), timestamp_type=1, max_timestamp=NOW_MS + 500)
    (header, view), _ = compact(data, batch(2, (b"a", b"2")))
    assert header.max_timestamp == NOW_MS + 500
    assert header.base_timestamp == NOW_MS + DAY_MS
    assert [(r.timestamp, r.timestamp_type) for r in iter_records(view)] == [(NOW_MS + 500, 1)]


def test_a_tombstone_gets_its_horizon_once() -> None:
    first = compact(batch(0, (b"a", None), (b"b", b"1")))
    header, view = first[0]
    assert header.has_delete_horizon
    assert header.base_timestamp == NOW_MS + DAY_MS
    assert [(r.value, r.timestamp) for r in iter_records(view)] == [(None, NOW_MS), (b"1", NOW_MS + 1)]
    second = compact(bytes(view), now_ms=NOW_MS + DAY_MS - 1)
    assert bytes(second[0][1]) == bytes(view)
    third = compact(bytes(view), now_ms=NOW_MS + DAY_MS)
    assert [r.value for r in iter_records(third[0][1])] == [b"1"]


def marker(base, kind, **options):
    options = {"producer_id": 9, "producer_epoch": 0, "coordinator_epoch": 1, **options}
    return build_control_batch(kind, timestamp_ms=NOW_MS, base_offset=base, **options)


@pytest.mark.parametrize(("kind", "aborted"), [(1, ()), (0, [(9, 0, 1)])])
def test_a_marker_outlives_its_transaction_by_the_retention(kind, aborted) -> None:
    data = batch(0, (b"a", b"1"), producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
    tail = batch(2, (b"a", b"2"))
    first = compact(data, marker(1, kind), tail, aborted=aborted)
    assert [(h.base_offset, h.has_delete_horizon) for h, _ in first] == [(1, False), (2, False)]
    second = compact(*(bytes(v) for _, v in first), aborted=aborted)
    assert [(h.base_offset, h.has_delete_horizon) for h, _ in second] == [(1, True), (2, False)]
    assert second[0][0].base_timestamp == NOW_MS + DAY_MS
    again = [bytes(v) for _, v in second]
    assert [bytes(v) for _, v in compact(*again, now_ms=NOW_MS + DAY_MS - 1)] == again
    assert [h.base_offset for h, _ in compact(*again, now_ms=NOW_MS + DAY_MS)] == [2]
    # The marker of a live producer without data says its epoch.
    kept = compact(*again, now_ms=NOW_MS + DAY_MS, producers={9: (-1, 0)})
    assert [(h.base_offset, h.record_count) for h, _ in kept] == [(1, 0), (2, 1)]


def test_an_aborted_record_neither_wins_nor_stays() -> None:
    good = batch(0, (b"a", b"1"))
    bad = batch(1, (b"a", b"2"), producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
    other = batch(2, (b"z", b"1"), producer_id=9, producer_epoch=0, base_sequence=1)
    found = compact(good, bad, other, marker(3, 0), batch(4, (b"y", b"1")), aborted=[(9, 1, 3), (8, 0, 4)])
    assert [h.base_offset for h, _ in found] == [0, 2, 3, 4]
    found = compact(good, bad, marker(2, 1))
    assert [h.base_offset for h, _ in found] == [1, 2]


def test_null_keys_are_removed_below_the_end_and_stay_above_it() -> None:
    data = [batch(0, (None, b"1")), batch(1, (b"a", b"1")), batch(2, (None, b"2"))]
    assert [h.base_offset for h, _ in compact(*data, map_end=2)] == [1, 2]


def test_the_last_batch_of_the_round_stays() -> None:
    data = [batch(0, (b"a", b"1")), batch(1, (None, b"1"), (None, b"2"))]
    assert [(h.base_offset, h.record_count) for h, _ in compact(*data)] == [(0, 1), (1, 0)]


def test_a_full_map_ends_before_the_batch_that_did_not_fit() -> None:
    key_map = KeyMap(4 * SLOT_BYTES)
    assert key_map.limit == 3
    scan = KeyScan(key_map, 0, 100)
    assert scan.feed(batch(0, (b"a", b""), (b"b", b"")))
    assert not scan.feed(batch(2, (b"c", b""), (b"d", b"")))
    assert (scan.full, scan.next_offset) == (True, 2)


def test_offsets_before_the_start_are_not_in_the_map() -> None:
    key_map = KeyMap(100 * SLOT_BYTES)
    scan = KeyScan(key_map, 1, 100)
    scan.feed(batch(0, (b"a", b""), (b"b", b"")))
    assert (key_map.get(b"a"), key_map.get(b"b"), scan.next_offset) == (-1, 1, 2)


def broken(**changes):
    """A batch whose record section does not fit its header; the CRC is right."""
    data = bytearray(batch(0, (b"a", b"1"), (b"b", b"2"), codec=changes.pop("codec", "none")))
    for position, value in changes.pop("at", {}).items():
        data[position] = value
    return bytes(data)


@pytest.mark.parametrize("data", [
    broken(at={60: 3}),  # one more record than there is
    broken(at={60: 1}),  # one fewer
    broken(at={26: 0}),  # an offset delta beyond the last one
    broken(codec="gzip", at={70: 0, 71: 0, 72: 0}),
    broken()[:-1],
    b"\0" * 80,
])  # fmt: skip
def test_what_does_not_parse_is_an_error(data) -> None:
    with pytest.raises(CorruptRecordsError):
        KeyScan(KeyMap(1000), 0, 100).feed(data)
    with pytest.raises(CorruptRecordsError):
        BatchFilter(KeyMap(1000), 100, NOW_MS, DAY_MS).feed(data)


def test_records_larger_than_a_page_follow_the_same_rules() -> None:
    big = bytes(100_000)
    data = batch(0, *[(b"k%d" % n, big) for n in range(10)], codec="zstd")
    (header, view), _ = compact(data, batch(10, *[(b"k%d" % n, b"") for n in range(0, 10, 2)]))
    assert [r.offset for r in iter_records(view)] == [1, 3, 5, 7, 9]
    assert header.max_timestamp == NOW_MS + 9
