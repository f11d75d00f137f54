"""Turns the filters that Spark pushes down into bounds on what to read. Coarse: Spark filters the rows again.

Filters arrive as JSON from the driver's JVM (PushedFilters.java): a list of trees, all of which must hold.

Bounds are plain values, so that they travel in a pickle: ``offset`` and ``timestamp`` (milliseconds) are (lowest,
highest), both inclusive; ``topic`` and ``partition`` are the values allowed, a set or range. A column without an
entry is unbounded.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
ANY = (LOWEST, HIGHEST)
NOTHING = (HIGHEST, LOWEST)

Bounds = dict[str, Any]
Range = tuple[int, int]
Values = range | set[Any]


def bounds_of(filters: str | None) -> Bounds:
    """The bounds that all filters together imply; none for None."""
    trees = json.loads(filters) if filters else ()
    return functools.reduce(_both, map(_bounds, trees), {})


def _bounds(tree: dict[str, Any]) -> Bounds:
    if "and" in tree:
        return functools.reduce(_both, map(_bounds, tree["and"]))
    if "or" in tree:
        return functools.reduce(_either, map(_bounds, tree["or"]))
    column, operator, values = tree["column"], tree["op"], tree["values"]
    if column in ("offset", "timestamp"):
        return {column: _range(operator, values, 1000 if column == "timestamp" else 1)}
    if operator in ("=", "in"):
        return {column: set(values)}
    return {column: _compared(operator, values)} if column == "partition" else {}


def _range(operator: str, values: Sequence[int], unit: int) -> Range:
    """The range that a comparison allows, in multiples of `unit`."""
    if not values:
        return NOTHING
    low, high = min(values), max(values)
    up, down = -(-low // unit), high // unit  # low rounded up, high rounded down
    if operator == ">":
        return low // unit + 1, HIGHEST
    if operator == ">=":
        return up, HIGHEST
    if operator == "<":
        return LOWEST, -(-high // unit) - 1
    if operator == "<=":
        return LOWEST, down
    return up, down


def _compared(operator: str, values: Sequence[int]) -> range:
    """The partitions that a comparison allows."""
    low, high = _range(operator, values, 1)
    return range(max(low, 0), min(high, 1 << 31) + 1)


def _both(one: Bounds, other: Bounds) -> Bounds:
    """What both allow."""
    found = {**one, **other}
    for column in one.keys() & other.keys():
        a, b = one[column], other[column]
        if column in ("offset", "timestamp"):
            found[column] = (max(a[0], b[0]), min(a[1], b[1]))
        else:
            found[column] = _common(a, b)
    return found


def _common(one: Values, other: Values) -> Values:
    if isinstance(one, range) and isinstance(other, range):
        return range(max(one.start, other.start), min(one.stop, other.stop))
    if isinstance(one, range):
        one, other = other, one
    return {value for value in one if value in other}


def _either(one: Bounds, other: Bounds) -> Bounds:
    """What either allows, or more: a column that one of them does not bound is unbounded."""
    found: Bounds = {}
    for column in one.keys() & other.keys():
        a, b = one[column], other[column]
        if column in ("offset", "timestamp"):
            found[column] = (min(a[0], b[0]), max(a[1], b[1]))
        elif isinstance(a, set) and isinstance(b, set):
            found[column] = a | b
    return found
