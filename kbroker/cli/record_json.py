"""One record as a line of JSON: what ``consume --json`` and ``cat`` commands print, and ``produce --json`` reads."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from kbroker._fast.records.records import Record


def text_or_base64(data: bytes | None) -> Any:
    """Bytes as a value in JSON: text if they are UTF-8, else {"base64": ...}."""
    if data is None:
        return None
    try:
        return bytes(data).decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def record_json(
    topic: str,
    partition: int,
    record: Record,
    key: Callable[[bytes | None], Any] = text_or_base64,
    value: Callable[[bytes | None], Any] = text_or_base64,
) -> str:
    """One record as a JSON line; `key` and `value` make JSON of the record's."""
    return json.dumps(
        {
            "topic": topic,
            "partition": partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": key(record.key),
            "value": value(record.value),
            "headers": [[name, text_or_base64(header)] for name, header in record.headers],
        },
        ensure_ascii=False,
    )


class RecordLine(NamedTuple):
    """A record as `record_json` wrote it, without its offset. None: a field that a line may leave out."""

    topic: str | None
    partition: int | None
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def parse_record_json(line: bytes) -> RecordLine:
    """The record of a line, in which all but the value may be missing. ValueError says what is wrong with it."""
    try:
        values = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    except UnicodeDecodeError:
        raise ValueError("not text") from None
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
    if not isinstance(values, dict):
        raise ValueError("not a JSON object")
    topic, headers = values.get("topic"), values.get("headers", [])
    if "topic" in values and (not isinstance(topic, str) or not topic):
        raise ValueError("topic: not a name")
    if not isinstance(headers, list):
        raise ValueError("headers: not a list")
    if "value" not in values:
        raise ValueError("no value")
    return RecordLine(
        topic,
        _number(values, "partition", 0, 2**31),
        _number(values, "timestamp", -1, 2**63),
        _data(values.get("key"), "key"),
        _data(values["value"], "value"),
        [_header(header) for header in headers],
    )


def _number(values: dict[str, Any], name: str, least: int, limit: int) -> int | None:
    if name not in values:
        return None
    value = values[name]
    if type(value) is not int or not least <= value < limit:
        raise ValueError(f"{name}: not a whole number from {least} on that fits its field")
    return value


def _data(value: Any, name: str) -> bytes | None:
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return value.encode("utf-8")
        if isinstance(value, dict) and list(value) == ["base64"]:
            return base64.b64decode(value["base64"], validate=True)
        if isinstance(value, dict) and list(value) == ["hex"]:
            return bytes.fromhex(value["hex"])
    except (UnicodeEncodeError, binascii.Error, TypeError, ValueError):
        pass
    raise ValueError(f"{name}: neither text nor base64 nor hex")


def _header(value: Any) -> tuple[str, bytes | None]:
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], str):
        raise ValueError("headers: not pairs of a name and a value")
    try:
        value[0].encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("headers: a name that is not text") from None
    return value[0], _data(value[1], "headers")
