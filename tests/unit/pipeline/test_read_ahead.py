"""Loads ahead of the decoder: order, errors, and how much memory they hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from kbroker.limits import MIB
from kbroker.pipeline.read_ahead import WINDOW_BYTES, ReadAhead

MEMORY_BYTES = 32 * MIB


@dataclass(frozen=True)
class Range:
    number: int
    length: int = WINDOW_BYTES


def load(wanted: Range, memory: memoryview) -> memoryview:
    assert len(memory) == wanted.length
    memory[0] = wanted.number % 251
    return memory


@pytest.fixture
def ahead() -> Iterator[ReadAhead]:
    made = ReadAhead(MEMORY_BYTES)
    yield made
    made.close()


def test_ranges_come_in_order_from_a_bounded_number_of_blocks(ahead: ReadAhead) -> None:
    blocks = set()
    for number, (found, data) in enumerate(ahead.run(iter(map(Range, range(50))), load)):
        assert found == Range(number)
        assert data[0] == number
        assert ahead.held_bytes <= ahead.ahead_bytes
        blocks.add(id(data.obj))
    assert len(blocks) <= ahead.ahead_bytes // WINDOW_BYTES
    assert ahead.held_bytes == 0


def test_a_range_larger_than_the_bound_is_loaded_alone(ahead: ReadAhead) -> None:
    lengths = [WINDOW_BYTES, 14 * MIB, 15 * MIB, 10, WINDOW_BYTES]
    ranges = [Range(number, length) for number, length in enumerate(lengths)]
    for found, data in ahead.run(iter(ranges), load):
        assert len(data) == found.length
        assert ahead.held_bytes <= max(ahead.ahead_bytes, found.length)
        assert ahead.room_bytes(found.length) <= MEMORY_BYTES - ahead.held_bytes


def test_what_came_before_an_error_of_the_ranges_counts(ahead: ReadAhead) -> None:
    def ranges() -> Iterator[Range]:
        yield Range(0)
        yield Range(1)
        raise KeyError("third")

    found = []

    def collect() -> None:
        for each, _ in ahead.run(ranges(), load):
            found.append(each.number)

    with pytest.raises(KeyError, match="third"):
        collect()
    assert found == [0, 1]
    assert ahead.held_bytes == 0


def test_nothing_is_held_after_a_load_that_failed(ahead: ReadAhead) -> None:
    def failing(wanted: Range, memory: memoryview) -> memoryview:
        if wanted.number == 2:
            raise OSError("away")
        return load(wanted, memory)

    found = []

    def collect() -> None:
        for each, _ in ahead.run(iter(map(Range, range(9))), failing):
            found.append(each.number)

    with pytest.raises(OSError, match="away"):
        collect()
    assert found == [0, 1]
    assert ahead.held_bytes == 0
    assert [each.number for each, _ in ahead.run(iter(map(Range, range(9))), load)] == list(range(9))
