"""Several bodies one after another, as one to be sent."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from kbroker.storage.object_store import BodySource, read_exactly


class JoinedBody:
    """Several bodies one after another."""

    __slots__ = ("_parts", "_starts", "length")

    def __init__(self, parts: Sequence[BodySource]) -> None:
        self._parts = parts
        self._starts = [0]
        for part in parts:
            self._starts.append(self._starts[-1] + part.length)
        self.length = self._starts.pop()

    def read_into(self, position: int, out: memoryview) -> int:
        """Copies bytes from `position`, filling `out` up to the end of the whole; returns how many."""
        filled = 0
        wanted = min(len(out), self.length - position)
        while filled < wanted:
            index = bisect_right(self._starts, position + filled) - 1
            inside = position + filled - self._starts[index]
            take = min(wanted - filled, self._parts[index].length - inside)
            read_exactly(self._parts[index], inside, out[filled : filled + take])
            filled += take
        return filled
