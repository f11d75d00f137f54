"""Filters that Spark offers, as bounds on what has to be read. Coarse: Spark filters the rows again.

Bounds are plain values, so that they travel in a pickle: ``offset`` and ``timestamp`` (milliseconds) are (lowest,
highest), both inclusive; ``topic`` and ``partition`` are the values allowed. What is not there is not bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
ANY = (LOWEST, HIGHEST)

Bounds = dict[str, Any]


def bounds_of(filters: Iterable[Any], known: Mapping[str, Any] | None = None) -> Bounds:
    """The bounds that all of `filters` (pyspark.sql.datasource.Filter) and `known` leave."""
    bounds: Bounds = dict(known or {})
    for one in filters:
        kind = type(one).__name__
        column = one.attribute[0] if len(getattr(one, "attribute", ())) == 1 else None
        if column in ("offset", "timestamp"):
            _narrow_range(bounds, column, kind, one)
        elif column in ("topic", "partition") and kind in ("EqualTo", "EqualNullSafe", "In"):
            values = set(one.value) if kind == "In" else {one.value}
            bounds[column] = bounds.get(column, values) & values
    return bounds


def _narrow_range(bounds: Bounds, column: str, kind: str, one: Any) -> None:
    values = one.value if kind == "In" else (getattr(one, "value", None),)
    numbers = [_number(value, column) for value in values]
    if not numbers or None in numbers:
        return
    known = [number for number in numbers if number is not None]
    low, high = bounds.get(column, ANY)
    if kind in ("EqualTo", "EqualNullSafe", "In", "GreaterThan", "GreaterThanOrEqual"):
        low = max(low, min(known))
    if kind in ("EqualTo", "EqualNullSafe", "In", "LessThan", "LessThanOrEqual"):
        high = min(high, max(known))
    bounds[column] = (low, high)


def _number(value: Any, column: str) -> int | None:
    """An offset, or a moment as milliseconds, rounded down; None for what says nothing."""
    if column == "timestamp":
        if not isinstance(value, datetime) or value.tzinfo is None:
            return None
        seconds = int(value.replace(microsecond=0).timestamp())
        return seconds * 1000 + value.microsecond // 1000
    return value if type(value) is int else None
