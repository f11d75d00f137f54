"""How keys and values are shown: as text, or so that any bytes fit in a line of text."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from kbroker.cli.record_json import text_or_base64


class Rendering(NamedTuple):
    """Of one kind of data: in a line of text, and as a value in JSON."""

    line: Callable[[bytes | None], bytes]
    in_json: Callable[[bytes | None], Any]


def _plain(data: bytes | None) -> bytes:
    return data or b""


def _hex(data: bytes | None) -> bytes:
    return (data or b"").hex().encode()


def _hex_in_json(data: bytes | None) -> dict[str, str] | None:
    return None if data is None else {"hex": data.hex()}


def _base64(data: bytes | None) -> bytes:
    return base64.b64encode(data or b"")


def _base64_in_json(data: bytes | None) -> dict[str, str] | None:
    return None if data is None else {"base64": base64.b64encode(data).decode()}


def _json(data: bytes | None) -> bytes:
    """JSON in one line; other text as a JSON string."""
    return b"" if data is None else json.dumps(_parsed(data), ensure_ascii=False).encode()


def _parsed(data: bytes | None) -> Any:
    """The JSON value that the data is; what is no JSON as text or base64."""
    if data is None:
        return None
    try:
        value = json.loads(data, parse_constant=_refuse)
        json.dumps(value, ensure_ascii=False).encode()  # fails on half a surrogate pair
    except (ValueError, RecursionError):
        return text_or_base64(data)
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


RENDERINGS = {
    "text": Rendering(_plain, text_or_base64),
    "hex": Rendering(_hex, _hex_in_json),
    "base64": Rendering(_base64, _base64_in_json),
    "json": Rendering(_json, _parsed),
}
