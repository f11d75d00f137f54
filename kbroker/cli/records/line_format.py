"""``--format``: a record as text, with kcat's tokens."""

from __future__ import annotations

import struct
from collections.abc import Callable

from kbroker._fast.records.records import Record
from kbroker.cli.records.escapes import as_bytes, unescape
from kbroker.cli.records.rendering import Rendering

VALUE_AND_NEWLINE = "%v\\n"

Part = Callable[[int, Record], bytes]  # of a partition and a record


def compiled(text: str, topic: str, key: Rendering, value: Rendering) -> Part:
    """A function that writes a record as `text` says. ValueError names a token or an escape that is none."""
    parts: list[Part] = []
    for number, piece in enumerate(text.split("%%")):
        if number:
            parts.append(_constant(b"%"))
        first, *rest = piece.split("%")
        parts.append(_constant(unescape(first)))
        for each in rest:
            parts.append(_token(each[:1], topic, key, value))
            parts.append(_constant(unescape(each[1:])))
    return lambda partition, record: b"".join([part(partition, record) for part in parts])


def _token(name: str, topic: str, key: Rendering, value: Rendering) -> Part:
    tokens: dict[str, Part] = {
        "t": _constant(as_bytes(topic)),
        "p": lambda partition, record: b"%d" % partition,
        "o": lambda partition, record: b"%d" % record.offset,
        "T": lambda partition, record: b"%d" % record.timestamp,
        "k": lambda partition, record: key.line(record.key),
        "K": lambda partition, record: b"%d" % _length(record.key),
        "v": lambda partition, record: value.line(record.value),
        "s": lambda partition, record: value.line(record.value),
        "S": lambda partition, record: b"%d" % _length(record.value),
        "R": lambda partition, record: struct.pack(">i", _length(record.value)),
        "h": lambda partition, record: _headers(record),
    }
    if name not in tokens:
        raise ValueError(f"there is no token '%{name}'; one of {', '.join(f'%{each}' for each in tokens)}, %%")
    return tokens[name]


def _constant(data: bytes) -> Part:
    return lambda partition, record: data


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers(record: Record) -> bytes:
    return b",".join(name.encode() + b"=" + (b"NULL" if value is None else value) for name, value in record.headers)
