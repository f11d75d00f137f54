"""Filters as bounds: nothing that a filter allows may be left out."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from kbroker.pipeline.pushdown import ANY, HIGHEST, LOWEST, NOTHING, bounds_of
from tests.unit.pipeline.filter_trees import Tree, both, either, where

MS = 1_700_000_000_000


def bounds(*trees: Tree) -> dict[str, Any]:
    return bounds_of(json.dumps(trees))


def test_no_filter_bounds_nothing() -> None:
    assert bounds_of(None) == bounds_of("[]") == {}


@pytest.mark.parametrize(
    ("operator", "expected"),
    [("=", (5, 5)), (">", (6, HIGHEST)), (">=", (5, HIGHEST)), ("<", (LOWEST, 4)), ("<=", (LOWEST, 5))],
)
def test_a_comparison_bounds_offsets_inclusively(operator: str, expected: tuple[int, int]) -> None:
    assert bounds(where("offset", operator, 5)) == {"offset": expected}


@pytest.mark.parametrize(
    ("operator", "microseconds", "expected"),
    [
        (">", 1000, (2, HIGHEST)), (">", 1001, (2, HIGHEST)), (">", 999, (1, HIGHEST)),
        (">=", 1000, (1, HIGHEST)), (">=", 1001, (2, HIGHEST)),
        ("<", 1000, (LOWEST, 0)), ("<", 1001, (LOWEST, 1)),
        ("<=", 1000, (LOWEST, 1)), ("<=", 1001, (LOWEST, 1)),
        (">", -1, (0, HIGHEST)), (">=", -1, (0, HIGHEST)), ("<", -1, (LOWEST, -1)), ("<=", -999, (LOWEST, -1)),
        ("=", 1000, (1, 1)), ("=", 1001, (2, 1)),
    ],
)  # fmt: skip
def test_microseconds_are_rounded_to_the_milliseconds_that_match(
    operator: str, microseconds: int, expected: tuple[int, int]
) -> None:
    assert bounds(where("timestamp", operator, microseconds)) == {"timestamp": expected}


def test_filters_are_intersected() -> None:
    found = bounds(
        where("offset", ">=", 3), where("offset", "<", 9), where("offset", "in", 1, 7, 8),
        where("topic", "in", "a", "b"), where("topic", "=", "b"),
        where("partition", ">", 1), where("partition", "<=", 4),
    )  # fmt: skip
    assert found == {"offset": (3, 8), "topic": {"b"}, "partition": range(2, 5)}
    assert bounds(where("partition", "in", 1, 2, 9), where("partition", "<", 5)) == {"partition": {1, 2}}
    assert bounds(where("offset", "in")) == {"offset": NOTHING}
    assert bounds(where("topic", "in")) == {"topic": set()}


def test_an_alternative_bounds_what_both_sides_bound() -> None:
    found = bounds(either(both(where("offset", "=", 3), where("partition", "=", 1)), where("offset", ">", 7)))
    assert found == {"offset": (3, HIGHEST)}
    assert bounds(either(where("topic", "=", "a"), where("topic", "in", "b", "c"))) == {"topic": {"a", "b", "c"}}
    assert bounds(either(where("topic", "=", "a"), where("topic", ">", "c"))) == {}


def test_bounds_allow_every_row_that_the_filters_allow() -> None:
    chance = random.Random(1)
    rows = [("ab"[n % 2], n % 5, n % 9, (MS + n * 7 % 11) * 1000) for n in range(200)]
    for _ in range(500):
        trees = [_tree(chance, 2) for _ in range(chance.randint(1, 3))]
        found = bounds(*trees)
        for row in rows:
            if all(_holds(tree, row) for tree in trees):
                assert row[0] in found.get("topic", row[0])
                assert row[1] in found.get("partition", [row[1]])
                assert found.get("offset", ANY)[0] <= row[2] <= found.get("offset", ANY)[1]
                low, high = found.get("timestamp", ANY)
                assert low <= row[3] // 1000 <= high


COLUMNS = ("topic", "partition", "offset", "timestamp")


def _tree(chance: random.Random, depth: int) -> Tree:
    if depth and chance.random() < 0.5:
        return chance.choice([both, either])(_tree(chance, depth - 1), _tree(chance, depth - 1))
    column = chance.choice(COLUMNS)
    operator = chance.choice(["=", "<", "<=", ">", ">=", "in"])

    def value() -> Any:
        numbers = {"partition": 6, "offset": 10}
        if column == "topic":
            return chance.choice("abc")
        if column == "timestamp":
            return MS * 1000 + chance.randint(-2000, 14_000)
        return chance.randint(-1, numbers[column])

    return where(column, operator, *(value() for _ in range(chance.randint(0, 3) if operator == "in" else 1)))


def _holds(tree: Tree, row: tuple) -> bool:
    if "and" in tree:
        return all(_holds(one, row) for one in tree["and"])
    if "or" in tree:
        return any(_holds(one, row) for one in tree["or"])
    value, given = row[COLUMNS.index(tree["column"])], tree["values"]
    compared = {
        "=": value in given, "in": value in given,
        "<": bool(given) and value < given[0], "<=": bool(given) and value <= given[0],
        ">": bool(given) and value > given[0], ">=": bool(given) and value >= given[0],
    }  # fmt: skip
    return compared[tree["op"]]
