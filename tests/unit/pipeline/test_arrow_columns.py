"""Record batches as Arrow columns, against `iter_records` as the oracle."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from kbroker._fast.records.arrow_columns import COLUMNS, ColumnBuilder
from kbroker._fast.records.record_batch import CorruptRecordsError
from kbroker._fast.records.record_rows import RecordTooLarge, RowReader
from kbroker._fast.records.records import build_batch, build_control_batch, iter_batches, iter_records, seal
from kbroker.pipeline.column_names import DDL
from kbroker.pipeline.columns import BatchMaker

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOW = 1_700_000_000_000


def odd_records(chosen: random.Random, count: int) -> list[tuple]:
    def some(*choices):
        return chosen.choice(choices)

    return [
        (
            some(None, b"", b"key", chosen.randbytes(300)),
            some(None, b"", b"value", chosen.randbytes(chosen.randrange(5000))),
            NOW + chosen.randrange(-1000, 1000),
            [(some("", "a", "ключ"), some(None, b"", b"x", b"\x00\xff")) for _ in range(some(0, 0, 1, 5))],
        )
        for _ in range(count)
    ]


def expected(batches: bytes, topic: str = "t", partition: int = 3) -> list[dict]:
    """What Spark's kafka source gives for these batches."""
    rows = []
    for header, batch in iter_batches(batches):
        if header.is_control:
            continue
        rows += [
            {
                "key": record.key,
                "value": record.value,
                "topic": topic,
                "partition": partition,
                "offset": record.offset,
                "timestamp": EPOCH + timedelta(milliseconds=record.timestamp),
                "timestampType": record.timestamp_type,
                "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
            }
            for record in iter_records(batch)
        ]
    return rows


def decoded(batches: bytes, columns=tuple(DDL), first_offset: int = 0, aborted=None, **bounds) -> list[dict]:
    maker = BatchMaker(columns, "t", 3)
    builder = maker.builder()
    reader = RowReader(**bounds)
    reader.open(batches, first_offset=first_offset, aborted=aborted)
    assert not reader.fill(builder)
    batch = maker.take(builder)
    if batch is None:
        return []
    batch.validate(full=True)
    return batch.to_pylist()


def in_parts(batches: bytes, rows_max: int, bytes_max: int, room_bytes: int) -> tuple[list[dict], list[int]]:
    """The rows, and the bytes of each Arrow batch."""
    maker = BatchMaker(tuple(DDL), "t", 3)
    builder, reader = maker.builder(), RowReader()
    reader.open(batches, room_bytes=room_bytes)
    rows: list[dict] = []
    sizes: list[int] = []
    more = True
    while more:
        more = reader.fill(builder, rows_max, bytes_max)
        sizes.append(builder.nbytes)
        if (batch := maker.take(builder)) is not None:
            batch.validate(full=True)
            rows += batch.to_pylist()
    return rows, sizes


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("timestamp_type", [0, 1])
def test_every_column_is_decoded_from_every_codec(codec: str, timestamp_type: int) -> None:
    chosen = random.Random(codec)
    made, base = [], 0
    for count in (1, 7, 8, 9, 100):
        options = {"timestamp_type": timestamp_type, "max_timestamp": NOW + 5000}
        made.append(build_batch(odd_records(chosen, count), base_offset=base, codec=codec, **options))
        base += count + 3
    batches = b"".join(made)
    assert decoded(batches) == expected(batches)


@pytest.mark.parametrize("columns", [("offset",), ("value",), ("headers", "key"), ("topic",), ("partition", "topic")])
def test_only_the_columns_asked_for_are_built(columns: tuple[str, ...]) -> None:
    batches = build_batch(odd_records(random.Random(1), 50))
    rows = decoded(batches, columns)
    assert rows == ([{name: row[name] for name in columns} for row in expected(batches)])


def test_columns_that_are_not_asked_for_are_not_copied() -> None:
    builder, reader = ColumnBuilder(["offset"]), RowReader()
    reader.open(build_batch([(None, b"v" * 100_000, NOW, [])]))
    reader.fill(builder)
    assert builder.nbytes == 8


def test_offsets_and_timestamps_bound_the_rows() -> None:
    batches = b"".join(build_batch([(b"%d" % n, None, NOW + n, [])], base_offset=n) for n in range(20))
    batches += build_batch([(b"%d" % n, None, NOW + n, []) for n in range(20, 40)], base_offset=20)
    rows = decoded(batches, first_offset=5, stop_offset=35)
    assert [row["offset"] for row in rows] == list(range(5, 35))
    rows = decoded(batches, lowest_timestamp=NOW + 7, highest_timestamp=NOW + 33)
    assert [row["offset"] for row in rows] == list(range(7, 34))


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("timestamp_type", [0, 1])
def test_rows_alone_are_counted_by_the_headers(codec: str, timestamp_type: int) -> None:
    """Nothing is decompressed where no column differs from record to record and the bounds cut no batch."""
    columns = ("partition", "timestampType")

    def few(rows: list[dict]) -> list[dict]:
        return [{name: row[name] for name in columns} for row in rows]

    made = [
        build_batch(odd_records(random.Random(n), 20), base_offset=20 * n, codec=codec, timestamp_type=timestamp_type)
        for n in range(3)
    ]
    batches = b"".join(made)
    assert decoded(batches, columns) == few(expected(batches))
    assert decoded(batches, columns, first_offset=7, stop_offset=50) == few(expected(batches))[7:50]
    late = {row["timestamp"] for row in expected(batches)}
    lowest = round(sorted(late)[-1].timestamp() * 1000)
    assert len(decoded(batches, columns, lowest_timestamp=lowest)) == len(decoded(batches, lowest_timestamp=lowest))
    damaged = bytearray(made[0])
    damaged[61 + 10 :] = bytes(len(damaged) - 71)  # which only a reader of the records detects
    assert len(decoded(bytes(damaged), columns)) == 20
    with pytest.raises(CorruptRecordsError):
        decoded(bytes(damaged), columns, first_offset=1)


def test_control_batches_and_aborted_transactions_are_left_out() -> None:
    def transactional(producer_id: int, base: int) -> bytes:
        return build_batch(
            [(b"k", b"%d" % base, NOW, [])], base_offset=base, producer_id=producer_id, producer_epoch=0,
            base_sequence=base, transactional=True,
        )  # fmt: skip

    marker = build_control_batch(
        0, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW, base_offset=3
    )
    batches = transactional(1, 0) + transactional(2, 1) + transactional(1, 2) + marker + transactional(1, 4)
    assert [row["offset"] for row in decoded(batches)] == [0, 1, 2, 4]
    assert [row["offset"] for row in decoded(batches, aborted={})] == [0, 1, 2, 4]
    assert [row["offset"] for row in decoded(batches, aborted={1: [(0, 3)]})] == [1, 4]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("rows_max", "bytes_max"), [(15, 1 << 30), (1 << 30, 20_000), (1, 1 << 30)])
def test_arrow_batches_end_within_record_batches(codec: str, rows_max: int, bytes_max: int) -> None:
    made = [build_batch(odd_records(random.Random(n), 40), base_offset=40 * n, codec=codec) for n in range(4)]
    rows, sizes = in_parts(b"".join(made), rows_max, bytes_max, 1 << 30)
    assert rows == expected(b"".join(made))
    assert len(sizes) > 4
    assert max(sizes) < bytes_max + (1 << 15)


@pytest.mark.parametrize("codec", CODECS)
def test_records_larger_than_a_piece_are_decompressed(codec: str) -> None:
    chosen = random.Random(codec)
    sizes = (300_000, 5, 1_500_000, 262_144, 0, 700_001)
    batch = build_batch([(b"k", chosen.randbytes(size), NOW, []) for size in sizes], codec=codec)
    rows, _ = in_parts(batch, 1 << 30, 1 << 20, 1 << 30)
    assert rows == expected(batch)


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_a_batch_of_many_times_its_size_stays_within_its_room(codec: str) -> None:
    """64 MiB of zeros in 64 records; nothing of that order is ever allocated."""
    batch = build_batch([(None, bytes(1 << 20), NOW, [])] * 64, codec=codec)
    maker = BatchMaker(("value",), "t", 3)
    builder, reader = maker.builder(), RowReader()
    reader.open(batch, room_bytes=12 << 20)
    lengths = []
    more = True
    while more:
        more = reader.fill(builder, 1 << 30, 1 << 20)
        assert builder.nbytes < 3 << 20
        if (taken := maker.take(builder)) is not None:
            lengths += [len(value) for value in taken.column("value").to_pylist()]
    assert lengths == [1 << 20] * 64


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_record_beyond_the_room_says_how_much_it_takes(codec: str) -> None:
    batch = build_batch([(None, bytes(100), NOW, []), (None, bytes(3 << 20), NOW, [])], codec=codec)
    room = 4 << 20
    with pytest.raises(RecordTooLarge, match="a record of 31457") as caught:
        in_parts(batch, 1 << 30, 1 << 20, room)
    assert room < caught.value.needed_bytes < 12 << 20
    rows, _ = in_parts(batch, 1 << 30, 1 << 20, caught.value.needed_bytes)
    assert len(rows) == 2


def test_a_codec_beyond_the_room_says_how_much_it_takes() -> None:
    batch = build_batch([(None, bytes(3 << 20), NOW, [])], codec="zstd")
    with pytest.raises(RecordTooLarge, match="to decompress"):
        in_parts(batch, 1 << 30, 1 << 20, 100_000)


def test_an_empty_batch_of_compaction_gives_no_rows() -> None:
    assert decoded(build_batch([], last_offset_delta=9)) == []


def test_taken_columns_outlive_their_builder() -> None:
    maker = BatchMaker(("key", "value"), "t", 0)
    builder, reader = maker.builder(), RowReader()
    reader.open(build_batch([(b"k", b"v" * 100_000, NOW, [])]))
    reader.fill(builder)
    batch = maker.take(builder)
    reader.open(build_batch([(b"other", b"w" * 100_000, NOW, [])]))
    reader.fill(builder)
    del builder, reader
    assert batch.column("value")[0].as_py() == b"v" * 100_000


def test_header_keys_that_are_not_utf8_are_replaced() -> None:
    batch = bytearray(build_batch([(None, None, NOW, [("abc", b"x")])]))
    batch[batch.index(b"abc")] = 0xFF
    seal(batch)
    assert decoded(bytes(batch))[0]["headers"] == [{"key": "\ufffdbc", "value": b"x"}]


def test_a_timestamp_beyond_microseconds_is_refused() -> None:
    batch = build_batch([(None, None, 1 << 62, [])])
    with pytest.raises(CorruptRecordsError, match="microseconds"):
        decoded(batch)
    assert decoded(batch, ("offset",)) == [{"offset": 0}]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_count_that_the_bytes_cannot_hold_is_refused(codec: str) -> None:
    batch = bytearray(build_batch([(None, b"v", NOW, [])], codec=codec))
    batch[23:27] = (1 << 30).to_bytes(4, "big")  # lastOffsetDelta
    batch[57:61] = (1 << 30).to_bytes(4, "big")  # records count
    seal(batch)
    for columns in (tuple(DDL), ("partition",)):
        with pytest.raises(CorruptRecordsError):
            decoded(bytes(batch), columns)


def test_a_truncated_buffer_names_the_batch() -> None:
    batches = b"".join(build_batch([(b"k", b"v", NOW, [])], base_offset=n) for n in range(2))
    with pytest.raises(CorruptRecordsError) as caught:
        decoded(batches[:-1])
    assert caught.value.position == len(batches) // 2


def test_all_modules_name_the_same_columns() -> None:
    assert set(COLUMNS) | {"topic", "partition"} == set(DDL)
