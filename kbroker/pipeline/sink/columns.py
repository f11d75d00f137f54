"""Maps a DataFrame's columns to fields of a record, with the rules and messages of Spark's kafka sink."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kbroker.pipeline.options import OptionError

_TEXT = ("string", "binary")
_TYPES = {
    "topic": ("string",),
    "key": _TEXT,
    "value": _TEXT,
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
}

Field = tuple[str, str]  # name, and Spark's simple name of its type


class RecordColumns(NamedTuple):
    """Indexes of columns; None for one that a DataFrame does not have."""

    value: int
    key: int | None
    headers: int | None
    partition: int | None
    topic: int | None  # None too where the option `topic` is set


def record_columns(fields: Sequence[Field], topic: str | None) -> RecordColumns:
    """The columns of a record; others are not written. OptionError for one that is missing or of a wrong type."""
    found = {"topic": None if topic is not None else _index(fields, "topic")}
    if topic is None and found["topic"] is None:
        raise OptionError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
        )
    for name in ("key", "value", "headers", "partition"):
        found[name] = _index(fields, name)
    value = found.pop("value")
    if value is None:
        raise OptionError("Required attribute 'value' not found")
    return RecordColumns(value, found["key"], found["headers"], found["partition"], found["topic"])


def _index(fields: Sequence[Field], name: str) -> int | None:
    for index, (field, kind) in enumerate(fields):
        if field == name:
            if kind.split(" collate ")[0] not in _TYPES[name]:
                wanted = " or ".join(_TYPES[name])
                raise OptionError(f"{name} attribute unsupported type {kind}. {name} must be a(n) {wanted}")
            return index
    return None
