"""Records as JSON lines: text as text, other bytes as base64, nothing lost."""

from __future__ import annotations

import base64
import json
from itertools import product

import pytest

from kbroker._fast.records.records import Record, build_batch, iter_records
from kbroker.cli.record_json import parse_record_json, record_json


def shown(key, value, headers=()) -> dict:
    (record,) = iter_records(build_batch([(key, value, 1_700_000_000_123, list(headers))], base_offset=42))
    line = record_json("tópico", 3, record)
    assert "\n" not in line
    return json.loads(line)


def test_a_record_has_all_fields_in_order() -> None:
    found = shown(b"k", "wert €".encode(), [("h", b"1"), ("h", None), ("", b"")])
    assert list(found) == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
    assert found == {
        "topic": "tópico",
        "partition": 3,
        "offset": 42,
        "timestamp": 1_700_000_000_123,
        "key": "k",
        "value": "wert €",
        "headers": [["h", "1"], ["h", None], ["", ""]],
    }


def test_null_and_empty_differ() -> None:
    assert shown(None, b"")["key"] is None
    assert shown(None, b"")["value"] == ""
    assert shown(b"", None)["value"] is None


def test_bytes_that_are_not_text_are_base64() -> None:
    for data in (b"\xff", b"\x80abc", b"\xed\xa0\x80", bytes(range(256))):
        found = shown(data, data, [("h", data)])
        for place in (found["key"], found["value"], found["headers"][0][1]):
            assert base64.b64decode(place["base64"], validate=True) == data


def test_text_is_escaped_as_json() -> None:
    text = 'a\nb\t"\\\x00\u2028\U0001f600'
    assert shown(None, text.encode())["value"] == text


def test_text_that_looks_like_base64_stays_text() -> None:
    assert shown(None, b'{"base64": "eA=="}')["value"] == '{"base64": "eA=="}'


def test_a_record_without_a_timestamp_is_printed() -> None:
    assert json.loads(record_json("t", 0, Record(1, -1, 1, None, None, [])))["timestamp"] == -1


BINARY = (None, b"", b"text", "wert €".encode(), b"\xff\x00", b'{"base64": "eA=="}', b"a\nb\r\n", bytes(range(256)))


def test_printed_records_are_read_back() -> None:
    for key, value in product(BINARY, BINARY):
        headers = [("h", key), ("h", value), ("", b""), ("n", None)]
        record = Record(7, 1_700_000_000_123, 0, key, value, headers)
        line = record_json("tópico", 3, record).encode()
        assert parse_record_json(line) == ("tópico", 3, 1_700_000_000_123, key, value, headers)


def test_a_line_may_leave_out_all_but_the_value() -> None:
    assert parse_record_json(b'{"value": "v"}') == (None, None, None, None, b"v", [])
    assert parse_record_json(b'{"value": null, "key": {"hex": "00ff"}}') == (None, None, None, b"\x00\xff", None, [])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"topic": ""}, "topic"),
        ({"topic": 1}, "topic"),
        ({"partition": "0"}, "partition"),
        ({"partition": -1}, "partition"),
        ({"partition": True}, "partition"),
        ({"partition": 2**31}, "partition"),
        ({"timestamp": -2}, "timestamp"),
        ({"timestamp": 1.5}, "timestamp"),
        ({"key": 1}, "key"),
        ({"key": "\ud800"}, "key"),
        ({"value": {"base64": "!"}}, "value"),
        ({"value": {"base64": 1}}, "value"),
        ({"value": {"base64": "eA==", "more": 1}}, "value"),
        ({"value": {"hex": "0"}}, "value"),
        ({"value": {"hex": 1}}, "value"),
        ({"value": {"a": 1}}, "value"),
        ({"headers": {}}, "headers"),
        ({"headers": [["h"]]}, "headers"),
        ({"headers": [[1, "x"]]}, "headers"),
        ({"headers": [["\ud800", "x"]]}, "headers"),
        ({"headers": [["h", 1]]}, "headers"),
    ],
)
def test_lines_that_are_not_records_are_refused(change: dict, reason: str) -> None:
    good = {"topic": "t", "partition": 0, "offset": 1, "timestamp": 5, "key": None, "value": "v", "headers": []}
    assert parse_record_json(json.dumps(good).encode()).value == b"v"
    with pytest.raises(ValueError, match=reason):
        parse_record_json(json.dumps(good | change).encode())


@pytest.mark.parametrize("line", [b"\xff\x80\x01binary", b'{"value": "\xff"}', b"\0\0\0\xff\0"])
def test_bytes_that_are_not_text_are_named_so(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"^not text$"):
        parse_record_json(line)


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"1", b"\xff", b"[" * 100_000, b'{"topic": "t"}'])
def test_lines_that_are_not_json_objects_are_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parse_record_json(line)
