"""The parts of a multipart upload that concatenates ranges of other objects. Pure: no store.

S3 wants every part but the last to have at least 5 MiB. A range that is long enough is copied by the store; shorter
ones are read here and sent, filled up from an adjacent range to the size of a part. After all ranges comes a tail of
our own (the index of a KLIX object), in the last part, which may have any length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kbroker.storage.stores.object_store import PART_BYTES_MIN, PARTS_MAX

COPY_BYTES_MAX = 1 << 30  # of one part; S3 takes 5 GiB, a shorter request fails for less
SEND_BYTES_MAX = 2 * PART_BYTES_MIN  # of one part that is sent from here: it is in memory


class Range(NamedTuple):
    """Bytes [start, start + length) of the source at a place."""

    source: int
    start: int
    length: int


class Part(NamedTuple):
    """One part: a range that the store copies, or ranges that are read and sent; the last one ends with the tail."""

    copied: bool
    ranges: tuple[Range, ...]

    @property
    def length(self) -> int:
        """Bytes, without the tail."""
        return sum(piece.length for piece in self.ranges)


def lay_out(
    lengths: Sequence[int],
    *,
    part_bytes_min: int = PART_BYTES_MIN,
    copy_bytes_max: int = COPY_BYTES_MAX,
    send_bytes_max: int = SEND_BYTES_MAX,
    parts_max: int = PARTS_MAX,
) -> list[Part]:
    """The parts of an object of sources with these lengths, all bytes of each, in order.

    The last part is never a copy (and may be empty): the tail goes with it. A short range between two long ones is
    filled up from the one that is left with enough bytes. `copy_bytes_max` and `send_bytes_max` must be at least twice
    `part_bytes_min`. ValueError when there would be too many parts.
    """
    if min(copy_bytes_max, send_bytes_max) < 2 * part_bytes_min or part_bytes_min < 1:
        raise ValueError("a part may not be larger than a part must be")
    layout = _Layout(part_bytes_min, copy_bytes_max, send_bytes_max)
    for source, length in enumerate(lengths):
        if length:
            layout.add(Range(source, 0, length))
    parts = [*layout.parts, Part(False, tuple(layout.pending))]
    if len(parts) > parts_max:
        raise ValueError(f"{len(parts)} parts, more than {parts_max}")
    return parts


class _Layout:
    """Parts so far, and the pending ranges after them that will be sent. They are always less than `send_bytes_max`."""

    def __init__(self, part_bytes_min: int, copy_bytes_max: int, send_bytes_max: int) -> None:
        self.parts: list[Part] = []
        self.pending: list[Range] = []
        self._min = part_bytes_min
        self._copy_max = copy_bytes_max
        self._send_max = send_bytes_max

    def add(self, piece: Range) -> None:
        """Copies the range, or the rest of it after filling up the pending part; if too short, sends it."""
        need = self._need()
        if piece.length - need >= self._min:
            if need:
                self.pending.append(piece._replace(length=need))
                piece = piece._replace(start=piece.start + need, length=piece.length - need)
            self._close()
            self._copy(piece)
        elif piece.length >= self._min and self._take_back(need):
            self._close()
            self._copy(piece)
        else:
            self._send(piece)

    def _pending_bytes(self) -> int:
        return sum(piece.length for piece in self.pending)

    def _need(self) -> int:
        """Bytes missing from the pending ranges to make a part."""
        return max(0, self._min - self._pending_bytes()) if self.pending else 0

    def _close(self) -> None:
        if self.pending:
            self.parts.append(Part(False, tuple(self.pending)))
            self.pending = []

    def _take_back(self, count: int) -> bool:
        """Takes the missing bytes from the end of the copy before, if that leaves it long enough."""
        if not self.parts or not self.parts[-1].copied:
            return False
        (before,) = self.parts[-1].ranges
        left = before.length - count
        if left < self._min:
            return False
        self.parts[-1] = Part(True, (before._replace(length=left),))
        self.pending.insert(0, before._replace(start=before.start + left, length=count))
        return True

    def _copy(self, piece: Range) -> None:
        """Copies in pieces of nearly equal length, so that none is too short."""
        count = -(-piece.length // self._copy_max)
        start, end = piece.start, piece.start + piece.length
        for number in range(count):
            stop = start + (end - start) // (count - number)
            self.parts.append(Part(True, (Range(piece.source, start, stop - start),)))
            start = stop

    def _send(self, piece: Range) -> None:
        """Sends a range shorter than two parts: it may complete one part and begin the next."""
        room = self._send_max - self._pending_bytes()
        if piece.length >= room:
            self.pending.append(piece._replace(length=room))
            self._close()
            piece = piece._replace(start=piece.start + room, length=piece.length - room)
        if piece.length:
            self.pending.append(piece)
