"""Names the field that made an encode fail. Runs only after the failure, so the encoders carry no checks."""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Any

from kbroker.protocol.fields import STRING, STRING_BYTES_MAX, Field, Struct, WireType


def misfit(message: Struct, version: int) -> str | None:
    """The first field whose value does not fit its declaration, in words; None when all fit."""
    return _struct(message, version, type(message).__name__)


def _struct(value: Struct, version: int, path: str) -> str | None:
    for field in value.__fields__:
        if version in field.versions:
            inner = f"{path}.{field.name}"
            found = _field(field, getattr(value, field.name, None), version, inner)
            if found:
                return found
    return None


def _field(field: Field, value: Any, version: int, path: str) -> str | None:
    if value is None:
        unsent = version in field.tagged and not isinstance(field.type, WireType)
        return None if version in field.nullable or unsent else f"{path} is None and not nullable"
    if not field.array:
        return _element(field, value, version, path)
    if not isinstance(value, Collection) or isinstance(value, str | bytes):
        return f"{path} is {type(value).__name__}, not a list"
    for number, item in enumerate(value):
        found = _element(field, item, version, f"{path}[{number}]")
        if found:
            return found
    return None


def _element(field: Field, value: Any, version: int, path: str) -> str | None:
    kind = field.type
    if not isinstance(kind, WireType):
        if isinstance(value, kind):
            return _struct(value, version, path)
        if field.array and isinstance(value, bytes):
            return None  # its bytes in its place
        return f"{path} is {type(value).__name__}, not {kind.__name__}"
    if kind.code:
        try:
            struct.pack(">" + kind.code, value)
        except struct.error:
            return f"{path} = {value!r} does not fit {kind.name}"
        return None
    if kind is not STRING:
        fits = isinstance(value, bytes | bytearray | memoryview)
        return None if fits else f"{path} is {type(value).__name__}, not {kind.name}"
    if not isinstance(value, str):
        return f"{path} is {type(value).__name__}, not string"
    if len(value.encode(errors="replace")) > STRING_BYTES_MAX:
        return f"{path} is longer than {STRING_BYTES_MAX} bytes"
    return None
