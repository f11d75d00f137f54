"""Escapes, renderings and the tokens of --format."""

from __future__ import annotations

import pytest

from kbroker._fast.records.records import Record
from kbroker.cli.record_json import parse_record_json, record_json
from kbroker.cli.records.escapes import unescape
from kbroker.cli.records.line_format import compiled
from kbroker.cli.records.rendering import RENDERINGS

TEXT = RENDERINGS["text"]
RECORD = Record(7, 1_700_000_000_123, 0, b"k\xff", b"two\nlines", [("a", b"1"), ("b", None), ("a", b"\x00")])
NULLS = Record(8, -1, 0, None, None, [])


def shown(text: str, record: Record = RECORD, key: str = "text", value: str = "text") -> bytes:
    return compiled(text, "tópico", RENDERINGS[key], RENDERINGS[value])(3, record)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", b""),
        ("plain ü", "plain ü".encode()),
        (r"\n\r\t\0\\", b"\n\r\t\0\\"),
        (r"\x41\xfF\x9z", b"A\xff\x09z"),
        ("\udcff", b"\xff"),  # of a command line that is not UTF-8
    ],
)
def test_escapes_stand_for_their_bytes(text: str, expected: bytes) -> None:
    assert unescape(text) == expected


@pytest.mark.parametrize("text", [r"\q", "\\", r"a\xg"])
def test_unknown_escapes_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="there is no escape"):
        unescape(text)


@pytest.mark.parametrize(
    ("text", "expected", "of_nulls"),
    [
        ("%t", "tópico".encode(), "tópico".encode()),
        ("%p", b"3", b"3"),
        ("%o", b"7", b"8"),
        ("%T", b"1700000000123", b"-1"),
        ("%k", b"k\xff", b""),
        ("%K", b"2", b"-1"),
        ("%v", b"two\nlines", b""),
        ("%s", b"two\nlines", b""),
        ("%S", b"9", b"-1"),
        ("%R", b"\0\0\0\x09", b"\xff\xff\xff\xff"),
        ("%h", b"a=1,b=NULL,a=\0", b""),
        ("%%o", b"%o", b"%o"),
        ("%%%o%%", b"%7%", b"%8%"),
        (r"%o\t%p\n", b"7\t3\n", b"8\t3\n"),
    ],
)
def test_tokens_show_fields(text: str, expected: bytes, of_nulls: bytes) -> None:
    assert shown(text) == expected
    assert shown(text, NULLS) == of_nulls


@pytest.mark.parametrize("text", ["%q", "%", "a%%%", "% o"])
def test_unknown_tokens_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="there is no token '%"):
        shown(text)


@pytest.mark.parametrize(
    ("name", "data", "line", "in_json"),
    [
        ("text", b"a\nb", b"a\nb", "a\nb"),
        ("text", b"\xff", b"\xff", {"base64": "/w=="}),
        ("hex", b"\xff\x00", b"ff00", {"hex": "ff00"}),
        ("base64", b"\xff\x00", b"/wA=", {"base64": "/wA="}),
        ("json", b' {"a":\n [1, "\xc3\xbc"]}', '{"a": [1, "ü"]}'.encode(), {"a": [1, "ü"]}),
        ("json", b"a\nb", rb'"a\nb"', "a\nb"),
        ("json", b"\xff", b'{"base64": "/w=="}', {"base64": "/w=="}),
        ("json", b"NaN", b'"NaN"', "NaN"),
        ("json", rb'"\ud800"', rb'"\"\\ud800\""', r'"\ud800"'),
        ("json", b"[" * 100_000, b'"' + b"[" * 100_000 + b'"', "[" * 100_000),
    ],
)
def test_renderings_show_any_bytes(name: str, data: bytes, line: bytes, in_json: object) -> None:
    assert RENDERINGS[name].line(data) == line
    assert RENDERINGS[name].in_json(data) == in_json


@pytest.mark.parametrize("name", RENDERINGS)
def test_null_is_empty_in_a_line_and_null_in_json(name: str) -> None:
    assert RENDERINGS[name].line(None) == b""
    assert RENDERINGS[name].in_json(None) is None


@pytest.mark.parametrize("name", ["text", "hex", "base64"])
@pytest.mark.parametrize("data", [None, b"", b"text", b"\xff\x00", b'{"hex": "00"}'])
def test_renderings_in_json_are_read_back(name: str, data: bytes | None) -> None:
    shown_as = RENDERINGS[name].in_json
    line = record_json("t", 0, Record(1, 2, 0, data, data, []), shown_as, shown_as)
    assert parse_record_json(line.encode())[3:5] == (data, data)
