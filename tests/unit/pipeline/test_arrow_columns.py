"""Record batches as Arrow columns, against `iter_records` as the oracle."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from kbroker._fast.records.arrow_columns import COLUMNS, ColumnBuilder
from kbroker._fast.records.record_batch import CorruptRecordsError
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


def decoded(batches: bytes, columns=tuple(DDL), **bounds) -> list[dict]:
    maker = BatchMaker(columns, "t", 3)
    builder = maker.builder()
    assert builder.add(batches, **bounds) == len(batches)
    batch = maker.take(builder)
    if batch is None:
        return []
    batch.validate(full=True)
    return batch.to_pylist()


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
    builder = ColumnBuilder(["offset"])
    builder.add(build_batch([(None, b"v" * 100_000, NOW, [])]))
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


def test_a_full_builder_continues_where_it_stopped() -> None:
    batches = b"".join(build_batch(odd_records(random.Random(n), 10), base_offset=10 * n) for n in range(10))
    maker = BatchMaker(tuple(DDL), "t", 3)
    builder = maker.builder()
    rows, position = [], 0
    while position < len(batches):
        position = builder.add(batches, position, rows_max=15)
        taken = maker.take(builder)
        assert taken.num_rows <= 24
        rows += taken.to_pylist()
    assert rows == expected(batches)
    assert maker.take(builder) is None


def test_an_empty_batch_of_compaction_gives_no_rows() -> None:
    assert decoded(build_batch([], last_offset_delta=9)) == []


def test_taken_columns_outlive_their_builder() -> None:
    maker = BatchMaker(("key", "value"), "t", 0)
    builder = maker.builder()
    builder.add(build_batch([(b"k", b"v" * 100_000, NOW, [])]))
    batch = maker.take(builder)
    builder.add(build_batch([(b"other", b"w" * 100_000, NOW, [])]))
    del builder
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
