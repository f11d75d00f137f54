"""One record as a line of JSON: what ``consume --json`` and ``object cat`` print."""

from __future__ import annotations

import base64
import json
from typing import Any

from kbroker._fast.records import Record


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
