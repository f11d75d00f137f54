"""One record as a line of JSON: what ``consume --json`` and ``cat`` commands print, and ``produce --json`` reads."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, NamedTuple

from kbroker._fast.records.records import Record


def record_json(topic: str, partition: int, record: Record) -> str:
    """One record as a JSON line; bytes that are not UTF-8 become {"base64": ...}."""
    return json.dumps(
        {
            "topic": topic,
            "partition": partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": _text(record.key),
            "value": _text(record.value),
            "headers": [[name, _text(value)] for name, value in record.headers],
        },
        ensure_ascii=False,
    )


def _text(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return bytes(data).decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


class RecordLine(NamedTuple):
    """A record as `record_json` wrote it, without its offset."""

    topic: str
    partition: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def parse_record_json(line: bytes) -> RecordLine:
    """The record of a line. ValueError says what is wrong with it."""
    try:
        values = json.loads(line)
    except RecursionError:
        raise ValueError("not a record") from None
    if not isinstance(values, dict):
        raise ValueError("not a JSON object")
    topic, headers = values.get("topic"), values.get("headers", [])
    if not isinstance(topic, str) or not topic:
        raise ValueError("no topic")
    if not isinstance(headers, list):
        raise ValueError("headers: not a list")
    return RecordLine(
        topic,
        _number(values, "partition", 2**31),
        _number(values, "timestamp", 2**63),
        _bytes(values, "key"),
        _bytes(values, "value"),
        [_header(header) for header in headers],
    )


def _number(values: dict[str, Any], name: str, limit: int) -> int:
    value = values.get(name)
    if type(value) is not int or not -1 <= value < limit:
        raise ValueError(f"{name}: not a whole number from -1 on that fits its field")
    return value


def _bytes(values: dict[str, Any], name: str) -> bytes | None:
    if name not in values:
        raise ValueError(f"no {name}")
    return _data(values[name], name)


def _data(value: Any, name: str) -> bytes | None:
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return value.encode("utf-8")
        if isinstance(value, dict) and list(value) == ["base64"]:
            return base64.b64decode(value["base64"], validate=True)
    except (UnicodeEncodeError, binascii.Error, TypeError, ValueError):
        pass
    raise ValueError(f"{name}: neither text nor base64")


def _header(value: Any) -> tuple[str, bytes | None]:
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], str):
        raise ValueError("headers: not pairs of a name and a value")
    try:
        value[0].encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("headers: a name that is not text") from None
    return value[0], _data(value[1], "headers")
