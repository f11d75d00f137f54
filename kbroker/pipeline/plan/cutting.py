"""Cuts what a plan has chosen into tasks of about the same size."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kbroker.pipeline.plan.object_choice import BASE, END, Chosen, Reading, are_read_whole, read_costs
from kbroker.pipeline.plan.splits import OBJECT_COST_BYTES, Share
from kbroker.storage.manifest.files import FileTable


@dataclass(frozen=True, slots=True)
class Piece:
    """Offsets [first, stop) in the chosen objects numbered [low, high)."""

    chosen: Chosen
    low: int
    high: int
    first: int
    stop: int
    cost_bytes: int


Pieces = list[Piece | Share]  # a share is a tail


@dataclass(slots=True)
class _Splits:
    """Gathers pieces into splits of about `target_bytes`."""

    target_bytes: int
    done: list[Pieces] = field(default_factory=list)
    pieces: Pieces = field(default_factory=list)
    room_bytes: int = 0

    def __post_init__(self) -> None:
        self.close()

    def add(self, piece: Piece | Share) -> None:
        self.pieces.append(piece)
        self.room_bytes -= piece.cost_bytes

    def close(self) -> None:
        if self.pieces:
            self.done.append(self.pieces)
        self.pieces = []
        self.room_bytes = self.target_bytes


def gather(chosen: list[Chosen | Share], target_bytes: int, files: FileTable, reading: Reading) -> list[Pieces]:
    """Cuts and groups, in order, so that each group costs about `target_bytes`. A tail is a group of its own."""
    splits = _Splits(target_bytes)
    for one in chosen:
        if isinstance(one, Share):
            splits.close()
            splits.add(one)
            splits.close()
        elif one.cost_bytes <= splits.room_bytes:
            splits.add(Piece(one, 0, len(one.places), one.first, one.stop, one.cost_bytes))
        else:
            _Cut(one, splits, files, reading).add()
    splits.close()
    return splits.done


class _Cut:
    """Adds objects in pieces that fill one split after another, so that all tasks have about the same work.

    A piece ends at an object's border if one is near, else within an object. Only the object's index, which is not read
    here, says where an offset lies, so offsets are assumed to be spread evenly. A batch across a border is read by both
    tasks; each takes its own records of it.
    """

    def __init__(self, chosen: Chosen, splits: _Splits, files: FileTable, reading: Reading) -> None:
        rows = chosen.rows()
        sizes = read_costs(rows, chosen.first, chosen.stop, files, reading)
        whole = are_read_whole(rows, files) | reading.counted
        self._chosen = chosen
        self._splits = splits
        self._bases, self._ends, self._sizes = rows[:, BASE], rows[:, END], sizes
        # How much an object may exceed the rest of a split: at most half of it, so that the split ends at the nearest
        # border.
        slack = np.where(whole, splits.target_bytes // 2, splits.target_bytes // 16)
        self._slack = np.minimum(slack, (sizes + OBJECT_COST_BYTES) // 2)
        self._before = np.concatenate([[0], np.cumsum(sizes + OBJECT_COST_BYTES)])
        # The room that a split needs, counted from the first object, for all objects up to each.
        self._needed = np.maximum.accumulate(self._before[:-1] + sizes - self._slack)
        self._low, self._first, self._used = 0, chosen.first, 0  # of the open piece

    def add(self) -> None:
        """Adds all objects."""
        at, count = 0, len(self._sizes)
        while at < count:
            room = self._splits.room_bytes - self._used + int(self._before[at])
            fitting = max(at, int(np.searchsorted(self._needed, room, side="right")))
            self._used += int(self._before[fitting] - self._before[at])
            at = fitting
            if at < count:
                self._add_one(at)
                at += 1
        self._end_piece(count, self._chosen.stop)

    def _add_one(self, at: int) -> None:
        """Adds the next object, which may be larger than what is left of the split."""
        splits, slack, size = self._splits, int(self._slack[at]), int(self._sizes[at])
        low = max(int(self._bases[at]), self._chosen.first)
        high = min(int(self._ends[at]), self._chosen.stop)
        while size > (room := splits.room_bytes - self._used) + slack:
            if room < slack and (self._used or splits.pieces):
                self._end_piece(at, low)
                splits.close()
                continue
            offsets = max(1, (high - low) * room // size)
            if offsets >= high - low:
                break
            taken = size * offsets // (high - low)
            low, size, self._used = low + offsets, size - taken, self._used + taken + OBJECT_COST_BYTES
            self._end_piece(at + 1, low)
            self._low = at  # the rest of it
            splits.close()
        self._used += size + OBJECT_COST_BYTES

    def _end_piece(self, high: int, stop: int) -> None:
        """Ends the open piece before the object numbered `high`, and before offset `stop`."""
        if self._low < high and self._first < stop:
            self._splits.add(Piece(self._chosen, self._low, high, self._first, stop, self._used))
        self._low, self._first, self._used = high, stop, 0
