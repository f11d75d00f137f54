"""Lines as records: keys, headers, nulls."""

from __future__ import annotations

import json

import pytest

from kbroker.cli.records.line_records import Given, Outgoing, TextLines, json_parser


def parsed(line: bytes, given: Given = Given(), **options) -> Outgoing:  # noqa: B008
    return TextLines("t", given, **options).parse(line)


def test_a_line_is_a_value() -> None:
    assert parsed(b"\0\xff:x") == Outgoing("t", None, None, None, b"\0\xff:x", [])
    assert parsed(b"") == Outgoing("t", None, None, None, b"", [])


def test_options_hold_for_every_line() -> None:
    found = parsed(b"v", Given(2, 5, [("h", b"1"), ("h", b"")]), key=b"k")
    assert found == Outgoing("t", 2, 5, b"k", b"v", [("h", b"1"), ("h", b"")])


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        (b"k::v", b"k", b"v"),
        (b"::v", b"", b"v"),
        (b"k::", b"k", b""),
        (b"a::b::c", b"a", b"b::c"),
        (b"a:b", None, b"a:b"),
    ],
)
def test_the_first_separator_ends_the_key(line: bytes, key: bytes | None, value: bytes) -> None:
    assert parsed(line, key_separator=b"::")[3:5] == (key, value)


@pytest.mark.parametrize(
    ("line", "headers", "value"),
    [
        (b"a:1,b:\tv", [("a", b"1"), ("b", b"")], b"v"),
        (b"\tv\tw", [], b"v\tw"),
        (b"a:1:2\t", [("a", b"1:2")], b""),
        ("ü:\xff".encode("latin-1").replace(b"\xfc", "ü".encode()) + b"\tv", [("ü", b"\xff")], b"v"),
    ],
)
def test_headers_stand_before_a_tab(line: bytes, headers: list, value: bytes) -> None:
    found = parsed(line, has_headers=True)
    assert (found.headers, found.value) == (headers, value)


def test_headers_of_the_line_come_before_those_of_the_options() -> None:
    found = parsed(b"a:1\tk=v", Given(headers=[("z", b"9")]), has_headers=True, key_separator=b"=")
    assert found == Outgoing("t", None, None, b"k", b"v", [("a", b"1"), ("z", b"9")])


@pytest.mark.parametrize("line", [b"", b"a:1", b"a\tv", b":1\tv", b"\xff:1\tv"])
def test_lines_without_headers_are_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="header"):
        parsed(line, has_headers=True)


def test_the_null_text_is_null_as_key_value_and_header_value() -> None:
    found = parsed(b"h:-,i:\t-=-", has_headers=True, key_separator=b"=", null=b"-")
    assert found == Outgoing("t", None, None, None, None, [("h", None), ("i", b"")])
    assert parsed(b"", null=b"").value is None
    assert parsed(b"-x", null=b"-").value == b"-x"


def line_of(**fields) -> bytes:
    return json.dumps(fields).encode()


def test_json_lines_say_where_they_go() -> None:
    line = line_of(
        topic="t", partition=3, offset=9, timestamp=5, key="k", value={"base64": "/w=="}, headers=[["h", None]]
    )
    assert json_parser(None, Given())(line) == Outgoing("t", 3, 5, b"k", b"\xff", [("h", None)])


def test_options_replace_what_json_lines_say() -> None:
    line = line_of(topic="t", partition=3, timestamp=5, key=None, value=None, headers=[["h", "1"]])
    found = json_parser("other", Given(1, 6, [("i", b"2")]))(line)
    assert found == Outgoing("other", 1, 6, None, None, [("h", b"1"), ("i", b"2")])


def test_a_json_line_needs_no_more_than_a_value_and_a_topic() -> None:
    assert json_parser("t", Given())(line_of(value="v")) == Outgoing("t", None, None, None, b"v", [])
    with pytest.raises(ValueError, match="no topic"):
        json_parser(None, Given())(line_of(value="v"))
    with pytest.raises(ValueError, match="no value"):
        json_parser("t", Given())(line_of(key="k"))
