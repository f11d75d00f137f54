"""Long loops, cut so that other threads get the interpreter in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

SLICE_ITEMS = 50  # handled between two pauses: a quarter of a millisecond at most

Pause = Callable[[], None]


def in_slices(items: Sequence[T], pause: Pause) -> Iterator[T]:
    """The items, with a pause after each SLICE_ITEMS."""
    for first in range(0, len(items), SLICE_ITEMS):
        yield from items[first : first + SLICE_ITEMS]
        pause()
