"""Filters as the driver's JVM sends them."""

from __future__ import annotations

from typing import Any

Tree = dict[str, Any]


def where(column: str, operator: str, *values: Any) -> Tree:
    """A comparison; timestamps are microseconds."""
    return {"column": column, "op": operator, "values": list(values)}


def both(left: Tree, right: Tree) -> Tree:
    return {"and": [left, right]}


def either(left: Tree, right: Tree) -> Tree:
    return {"or": [left, right]}
