"""Several bodies sent as one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from kbroker.storage.stores.object_store import BodySource, read_exactly, send_some


class JoinedBody:
    """A BodySource that concatenates others."""

    __slots__ = ("_parts", "_starts", "length")

    def __init__(self, parts: Sequence[BodySource]) -> None:
        self._parts = parts
        self._starts = [0]
        for part in parts:
            self._starts.append(self._starts[-1] + part.length)
        self.length = self._starts.pop()

    def read_into(self, position: int, out: memoryview) -> int:
        """Copies bytes from `position`, fills `out` unless the body ends first; returns how many."""
        filled = 0
        wanted = min(len(out), self.length - position)
        while filled < wanted:
            part, inside = self._at(position + filled)
            take = min(wanted - filled, part.length - inside)
            read_exactly(part, inside, out[filled : filled + take])
            filled += take
        return filled

    def send_to(self, position: int, limit: int, fd: int, timeout_ms: int, rate: int) -> int:
        """See send_some: what the part at `position` can send."""
        part, inside = self._at(position)
        return send_some(part, inside, limit, fd, timeout_ms, rate)

    def _at(self, position: int) -> tuple[BodySource, int]:
        """The part that holds the byte at `position`, and where in it."""
        index = bisect_right(self._starts, position) - 1
        return self._parts[index], position - self._starts[index]
