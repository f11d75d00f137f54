"""Rows of Arrow batches as calls of the client's produce(), and the list of tasks in a decision."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.pipeline.sink import records
from kbroker.pipeline.sink.columns import record_columns
from kbroker.pipeline.sink.decisions import format_attempts, parse_attempts
from kbroker.pipeline.sink.errors import SinkError
from kbroker.pipeline.sink.records import row_arguments

pa = pytest.importorskip("pyarrow")

TEXT, BINARY = pa.string(), pa.binary()
HEADERS = pa.list_(pa.struct([("key", TEXT), ("value", BINARY)]))
KINDS = {TEXT: "string", BINARY: "binary", pa.int32(): "int", HEADERS: "array<struct<key:string,value:binary>>"}


def sent(columns: dict[str, Any], topic: str | None = "t") -> list[tuple[Any, ...]]:
    batch = pa.RecordBatch.from_pydict(columns)
    fields = [(field.name, KINDS[field.type]) for field in batch.schema]
    return [row for rows in row_arguments(batch, record_columns(fields, topic), topic) for row in rows]


def test_text_is_sent_as_utf8_and_nulls_as_nulls() -> None:
    values = pa.array(["é", None, ""], TEXT)
    assert sent({"value": values, "key": pa.array([None, "k", ""], TEXT)}) == [
        ("t", "é".encode(), None, -1),
        ("t", None, b"k", -1),
        ("t", b"", b"", -1),
    ]


def test_topic_partition_and_headers_come_from_columns() -> None:
    columns = {
        "headers": pa.array([[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], None], HEADERS),
        "partition": pa.array([3, None], pa.int32()),
        "topic": pa.array(["x", "y"], TEXT),
        "value": pa.array([b"1", b"2"], BINARY),
    }
    assert sent(columns, None) == [
        ("x", b"1", None, 3, None, None, 0, [("a", b"1"), ("a", None)]),
        ("y", b"2", None, -1, None, None, 0, []),
    ]
    assert [row[0] for row in sent(columns, "t")] == ["t", "t"]


def test_large_values_are_sent_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "SLICE_BYTES", 100)
    values = [bytes([number]) * 60 for number in range(7)]
    assert [row[1] for row in sent({"value": pa.array(values, BINARY)})] == values
    assert [row[1] for row in sent({"value": pa.array(values, BINARY).slice(2, 3)})] == values[2:5]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"topic": pa.array(["a", None], TEXT)}, "null topic present in the data"),
        ({"topic": pa.array(["a", "a"], TEXT), "partition": pa.array([0, -1], pa.int32())}, "Invalid partition: -1"),
        (
            {
                "topic": pa.array(["a", "a"], TEXT),
                "headers": pa.array([[], [{"key": None, "value": b""}]], HEADERS),
            },
            "Null header keys are not permitted",
        ),
    ],
)
def test_a_wrong_row_is_refused(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(SinkError, match=message):
        sent({"value": pa.array([b"1", b"2"], BINARY), **columns}, None)


@pytest.mark.parametrize(
    ("attempts", "text"),
    [
        ([], ""),
        ([(0, 0)], "0.0"),
        ([(2, 0), (0, 0), (1, 0)], "0-2.0"),
        ([(0, 0), (1, 1), (2, 0), (4, 0), (5, 3)], "0.0,1.1,2.0,4.0,5.3"),
        ([(task, 0) for task in range(10_000)], "0-9999.0"),
    ],
)
def test_the_tasks_of_a_decision_are_listed_in_ranges(attempts: list[tuple[int, int]], text: str) -> None:
    assert format_attempts(attempts) == text
    assert parse_attempts(text, "g") == tuple(sorted(attempts))


@pytest.mark.parametrize("text", ["x", "1", "1-2", "1.0,", "-1.0"])
def test_metadata_of_another_writer_is_refused(text: str) -> None:
    with pytest.raises(SinkError, match="group g was not written by this sink"):
        parse_attempts(text, "g")
