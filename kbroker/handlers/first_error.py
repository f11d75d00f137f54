"""The error code that an answer is counted by."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple, Protocol

from kbroker.protocol.fields import Struct

_CODES = frozenset({"error_code", "partition_error_code"})


class _BuiltLater(Protocol):
    """An array that is no list: a LazyArray, which knows the first error of its elements once they are encoded."""

    error_code: int


class _Places(NamedTuple):
    """Where a class of structs has error codes."""

    codes: tuple[str, ...]  # its own fields
    arrays: tuple[str, ...]  # of structs that have some


def first_error(struct: Struct) -> int:
    """The struct's own error code if that is not 0, else the first one in its arrays; 0: there is none."""
    places = _places(type(struct))
    for name in places.codes:
        code: int = getattr(struct, name)
        if code:
            return int(code)
    for name in places.arrays:
        found = _first_in(getattr(struct, name))
        if found:
            return found
    return 0


def _first_in(array: list[Struct | bytes] | tuple[Struct | bytes, ...] | _BuiltLater | None) -> int:
    if array is None:
        return 0
    if not isinstance(array, list | tuple):
        return array.error_code
    for element in array:
        # Topics of Metadata that are encoded already have no error.
        if isinstance(element, Struct) and (found := first_error(element)):
            return found
    return 0


@cache
def _places(struct: type[Struct]) -> _Places:
    codes = tuple(field.name for field in struct.__fields__ if field.name in _CODES)
    arrays = tuple(
        field.name
        for field in struct.__fields__
        if field.array and isinstance(field.type, type) and any(_places(field.type))
    )
    return _Places(codes, arrays)
