"""Record batches from Arrow columns: the same as those of build_batch, in the partitions of Java's client."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._fast.records.arrow_batches import ArrowRows, RecordTooLarge, RowError, TopicBatches, UnknownPartition
from kbroker._fast.records.records import build_batch, iter_batches, iter_records
from kbroker.pipeline.sink.arrow_rows import arrow_rows
from kbroker.pipeline.sink.columns import RecordColumns
from kbroker.protocol.partitioner import partition_of

pa = pytest.importorskip("pyarrow")

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
MUCH = 1 << 30


def batches(partitions: int = 3, batch_bytes_max: int = MUCH, record_bytes_max: int = MUCH) -> TopicBatches:
    return TopicBatches(partitions, batch_bytes_max=batch_bytes_max, record_bytes_max=record_bytes_max, seed=1)


def built(made: TopicBatches, sequences: list[int], codec: str = "none") -> dict[int, bytes]:
    found = made.build(
        sequences, producer_id=7, producer_epoch=2, timestamp_ms=1_700_000_000_000, transactional=True, codec=codec
    )
    return {partition: batch for partition, _, batch in found}


def rows_of(columns: dict[str, Any]) -> ArrowRows:
    batch = columns if isinstance(columns, pa.RecordBatch) else pa.RecordBatch.from_pydict(columns)
    index = {name: batch.schema.names.index(name) for name in batch.schema.names}
    found = [index.get(name) for name in ("key", "headers", "partition")]
    return arrow_rows(batch, RecordColumns(index["value"], found[0], found[1], found[2], None))


text = st.none() | st.text(max_size=5)
content = st.none() | st.binary(max_size=300)
header = st.fixed_dictionaries({"key": st.text(max_size=3), "value": content})
row = st.tuples(content, content, st.none() | st.integers(0, 2), st.none() | st.lists(header, max_size=3))


@given(st.lists(row, min_size=1, max_size=200), st.data(), st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"]))
def test_batches_are_those_of_build_batch(found: list[Any], data: st.DataObject, codec: str) -> None:
    large = data.draw(st.booleans())
    kind = pa.large_binary() if large else pa.binary()
    first = data.draw(st.integers(0, len(found) - 1))
    table = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([each[0] for each in found], kind),
            "value": pa.array([each[1] for each in found], kind),
            "partition": pa.array([each[2] for each in found], pa.int32()),
            "headers": pa.array([each[3] for each in found], HEADERS),
        }
    ).slice(first)
    found = found[first:]
    made = batches()
    rows = rows_of(table)
    start = 0
    while start < rows.rows:
        start = made.add(rows, start, data.draw(st.integers(1, 2000)))
    sequences = [10, 20, 0x7FFFFFFF]
    result = built(made, sequences, codec)
    keyless = [each for each in found if each[2] is None and each[0] is None]
    sticky = {partition for partition, batch in result.items() for each in iter_records(batch) if each.key is None}
    wanted: dict[int, list[Any]] = {}
    for key, value, partition, headers in found:
        if partition is None:
            if key is None:
                continue
            partition = partition_of(key, 3)
        wanted.setdefault(partition, []).append((key, value, [(h["key"], h["value"]) for h in headers or ()]))
    if keyless:
        assert sticky
        return
    assert result == {
        partition: build_batch(
            [(key, value, 1_700_000_000_000, headers) for key, value, headers in records],
            producer_id=7, producer_epoch=2, base_sequence=[10, 20, 0x7FFFFFFF][partition], transactional=True,
            codec=codec,
        )
        for partition, records in wanted.items()
    }  # fmt: skip
    for partition, records in wanted.items():
        assert sequences[partition] == ([10, 20, 0x7FFFFFFF][partition] + len(records)) & 0x7FFFFFFF


def test_rows_without_a_key_stay_together_and_spread_in_the_long_run() -> None:
    made = batches(4)
    rows = rows_of({"value": pa.array([b"x" * 1000] * 2000, pa.binary())})
    assert made.add(rows, 0, 10_000) == 10
    assert len(built(made, [0] * 4)) == 1
    assert made.add(rows, 10, MUCH) == 2000
    found = built(made, [0] * 4)
    assert len(found) == 4
    assert sum(header.record_count for batch in found.values() for header, _ in iter_batches(batch)) == 1990


def test_taking_ends_with_a_full_batch_or_with_enough() -> None:
    rows = rows_of({"value": pa.array([b"x" * 100] * 50, pa.binary())})
    made = batches(1, batch_bytes_max=1000)
    assert made.add(rows, 0, MUCH) == 8
    assert made.add(rows, 8, MUCH) == 8
    (batch,) = built(made, [0]).values()
    assert len(batch) <= 1000
    assert made.add(rows, 8, 1) == 9
    assert made.nbytes == 109


def test_rows_without_a_key_fill_the_batches_of_all_partitions() -> None:
    """A small limit leaves each partition a batch before a request is full."""
    rows = rows_of({"value": pa.array([b"x" * 100] * 500, pa.binary())})
    made = batches(12, batch_bytes_max=1000)
    taken = made.add(rows, 0, MUCH)
    found = built(made, [0] * 12)
    assert len(found) == 12
    assert all(900 <= len(batch) <= 1000 for batch in found.values())
    assert taken == sum(header.record_count for batch in found.values() for header, _ in iter_batches(batch))


def test_a_limit_can_be_lowered_between_batches() -> None:
    rows = rows_of({"value": pa.array([b"x" * 100] * 50, pa.binary())})
    made = batches(1, batch_bytes_max=1000)
    assert made.add(rows, 0, MUCH) == 8
    built(made, [0])
    made.batch_bytes_max = 500
    assert made.add(rows, 8, MUCH) == 12


def test_a_record_larger_than_a_batch_has_one_of_its_own() -> None:
    rows = rows_of({"value": pa.array([b"", b"x" * 5000, b""], pa.binary())})
    made = batches(1, batch_bytes_max=1000)
    taken = [made.add(rows, 0, MUCH)]
    while taken[-1] < 3:
        assert len(built(made, [0])) == 1
        taken.append(made.add(rows, taken[-1], MUCH))
    assert taken == [1, 2, 3]


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"partition": pa.array([0, 3], pa.int32())}, UnknownPartition),
        ({"partition": pa.array([0, -1], pa.int32())}, UnknownPartition),
        ({"key": pa.array([b"", b"x" * 2000], pa.binary())}, RecordTooLarge),
        ({"headers": pa.array([None, [{"key": None, "value": b""}]], HEADERS)}, RowError),
        ({"headers": pa.array([None, [None]], HEADERS)}, RowError),
    ],
)
def test_a_wrong_row_is_refused_and_those_before_it_are_kept(columns: dict[str, Any], error: type[RowError]) -> None:
    made = batches(record_bytes_max=2000)
    rows = rows_of({"value": pa.array([b"a", b"b"], pa.binary()), **columns})
    with pytest.raises(error) as caught:
        made.add(rows, 0, MUCH)
    assert type(caught.value) is error
    if isinstance(caught.value, RecordTooLarge):
        assert caught.value.nbytes == 61 + 2 + 1 + 2 + 2000 + 2 + 1
    (batch,) = built(made, [0, 0, 0]).values()
    assert [each.value for each in iter_records(batch)] == [b"a"]


@pytest.mark.parametrize("offsets", [[0, 9], [5, 2], [-1, 2], [0]])
def test_offsets_outside_a_column_are_refused(offsets: list[int]) -> None:
    made = batches()
    column = (0, False, None, b"".join(each.to_bytes(4, "little", signed=True) for each in offsets), b"12345678")
    with pytest.raises(RowError, match="leaves its buffers"):
        made.add(ArrowRows(1, column), 0, MUCH)


@pytest.mark.parametrize(
    "given",
    [
        {"partitions": (0, None, bytes(4))},
        {"partitions": (0, b"", bytes(8))},
        {"key": (0, False, b"", bytes(12), b"")},
    ],
)
def test_buffers_shorter_than_the_rows_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="fewer"):
        ArrowRows(2, (0, False, None, bytes(12), b""), **given)
