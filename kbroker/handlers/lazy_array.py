"""Array fields of long answers, built while they are encoded: only their bytes are in memory together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, Generic, TypeVar

from kbroker.handlers.first_error import first_error

T = TypeVar("T")


class LazyArray(Generic[T]):
    """An array field of a response: `build` of each of `items`, in order, on each iteration.

    `build` runs on the thread that encodes the response, after its handler has returned. `error_code` is the first
    one in what it has built.
    """

    def __init__(self, build: Callable[[T], Any], items: Collection[T]) -> None:
        self.error_code = 0
        self._build = build
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            element = self._build(item)
            self.error_code = self.error_code or first_error(element)
            yield element
