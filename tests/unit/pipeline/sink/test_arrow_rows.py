"""Arrow columns as the builder of record batches takes them."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker._fast.records.arrow_batches import TopicBatches
from kbroker._fast.records.records import iter_records
from kbroker.pipeline.sink.arrow_rows import arrow_rows, by_topic
from kbroker.pipeline.sink.columns import RecordColumns
from kbroker.pipeline.sink.errors import SinkError

pa = pytest.importorskip("pyarrow")


def values_of(column: Any) -> list[bytes | None]:
    """The values of the records that a column becomes."""
    made = TopicBatches(1, batch_bytes_max=1 << 20, record_bytes_max=1 << 20, seed=0)
    made.add(
        arrow_rows(pa.RecordBatch.from_pydict({"value": column}), RecordColumns(0, None, None, None, None)), 0, 1 << 20
    )
    ((_, _, batch),) = made.build(
        [0], producer_id=1, producer_epoch=0, timestamp_ms=1, transactional=False, codec="none"
    )
    return [record.value for record in iter_records(batch)]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_text_is_sent_as_utf8(kind: Any) -> None:
    assert values_of(pa.array(["é", None, ""], kind)) == ["é".encode(), None, b""]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(2)])
def test_bytes_are_sent_as_they_are(kind: Any) -> None:
    assert values_of(pa.array([b"ab", None, b"cd"], kind).slice(1)) == [None, b"cd"]


def test_a_column_of_nulls_alone_is_one_of_tombstones() -> None:
    assert values_of(pa.array([None, None], pa.binary())) == [None, None]


def test_rows_are_split_by_topic_in_their_order() -> None:
    topics = ["b", "a", "b", "c", "a"]
    batch = pa.RecordBatch.from_pydict({"n": list(range(6)), "topic": ["x", *topics]}).slice(1)
    found = {topic: rows.column(0).to_pylist() for topic, rows in by_topic(batch, 1)}
    assert found == {"b": [1, 3], "a": [2, 5], "c": [4]}


def test_rows_of_one_topic_are_not_copied() -> None:
    batch = pa.RecordBatch.from_pydict({"topic": ["a", "a"]})
    assert [(topic, rows is batch) for topic, rows in by_topic(batch, 0)] == [("a", True)]


def test_a_null_topic_is_refused() -> None:
    with pytest.raises(SinkError, match="null topic present in the data"):
        list(by_topic(pa.RecordBatch.from_pydict({"topic": ["a", None]}), 0))
