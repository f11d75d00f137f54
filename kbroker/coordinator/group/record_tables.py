"""Encoding and decoding of group records by tables: by record type, and by key version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from kbroker.protocol import records
from kbroker.protocol.fields import Message

_VALUE_VERSION = 0  # of all that these tables hold

Encoders: TypeAlias = Mapping[type, Callable[[Any], tuple[Message, Message | None]]]
Decoders: TypeAlias = Mapping[int, tuple[type[Message], type[Message], Callable[[Any, Any], Any]]]


def encode(encoders: Encoders, record: Any) -> tuple[bytes, bytes | None]:
    """Key and value of the record."""
    key, value = encoders[type(record)](record)
    encoded_key = records.encode_record(key, key.VERSIONS.first)
    return encoded_key, None if value is None else records.encode_record(value, _VALUE_VERSION)


def decode(decoders: Decoders, key: bytes, value: bytes | None) -> Any:
    """The record; None if the key has another version. Raises ProtocolError."""
    known = decoders.get(records.record_version(key))
    if known is None:
        return None
    key_class, value_class, build = known
    decoded = None if value is None else records.decode_record(value_class, value)
    return build(records.decode_record(key_class, key), decoded)
