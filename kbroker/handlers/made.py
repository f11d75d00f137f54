"""Parts of long answers that are made while they are written: only their bytes are in memory together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class MadeInTurn(Generic[T]):
    """What `make` gives for each of `items`, in order, anew each time it is asked for: an array field of a response.

    `make` runs on the thread that encodes the response, after its handler has returned.
    """

    def __init__(self, make: Callable[[T], Any], items: Collection[T]) -> None:
        self._make = make
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return map(self._make, self._items)
