"""Pieces of ranges that were read, and which of them are evicted first.

A range that was read is cut into pieces of whole batches, which are cached one by one. So a view that is held (by an
answer that its client does not take) keeps about its own size alive, not the 32 MiB that were read ahead. Pieces that
were evicted and are still held are counted as lent.

A scan must not evict what others read again, nor read-ahead what is in use. So there are three LRU lists: unread, read
once, and read again. Pieces read once are evicted first, unless the unread ones take more than half of the cache: then
those. Pieces read again take at most half; the excess returns to the list of those read once.

Above all, a piece that no known reader will come to is evicted before one that a reader will; among the latter, the one
with the most bytes before its nearest reader gets there.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from kbroker.storage.read.read_sharing import OffsetRange

ObjectId = tuple[str, str, int]  # key, ETag, first byte of the image: images of a pack do not mix
EVICTION_LOOKS = 32  # pieces of a list that are searched for one that no reader will come to


class Cut(NamedTuple):
    """Where a piece of a loaded range ends, and its offsets."""

    end: int  # relative to the first byte loaded
    offsets: OffsetRange | None


Distance = Callable[[OffsetRange], int | None]  # offsets from the nearest reader; None: none comes
_Slot = tuple[ObjectId, int]


class Piece:
    """Bytes [start, end) of one object; owned by the cache and by every view of it."""

    __slots__ = ("_data", "ahead", "end", "lru", "offsets", "read_end", "start")

    def __init__(self, start: int, data: np.ndarray, offsets: OffsetRange | None) -> None:
        self.start = start
        self.end = start + len(data)
        self.offsets = offsets
        self.ahead = False  # it was read ahead
        self.lru: LruList | None = None  # its list in the cache
        self.read_end = start  # the end of what was read once; a read below it is a second one
        self._data = data

    def __len__(self) -> int:
        return self.end - self.start

    def view(self, start: int, end: int) -> memoryview:
        """The part of the piece in [start, end); keeps the piece's memory alive."""
        first = max(start, self.start) - self.start
        part = self._data[first : max(first, min(end, self.end) - self.start)]
        return memoryview(part)  # type: ignore[arg-type]


class LruList:
    """Cached pieces by object and first byte, least recently used first."""

    def __init__(self) -> None:
        self.used_bytes = 0
        self._pieces: OrderedDict[_Slot, Piece] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pieces)

    def add(self, slot: _Slot, piece: Piece) -> None:
        self._pieces[slot] = piece
        self.used_bytes += len(piece)
        piece.lru = self

    def remove(self, slot: _Slot) -> Piece:
        piece = self._pieces.pop(slot)
        self.used_bytes -= len(piece)
        piece.lru = None
        return piece

    def oldest(self) -> _Slot:
        return next(iter(self._pieces))

    def unwanted(self, distance: Distance, bytes_max: int) -> tuple[_Slot, float]:
        """The first of the oldest that no reader will come to, else the one furthest from its reader; and how far.

        A reader more than `bytes_max` away does not count. Pieces that a reader will come to move to the list's end.
        """
        furthest, bytes_away = self.oldest(), -1.0
        for _ in range(min(EVICTION_LOOKS, len(self._pieces))):
            slot = self.oldest()
            piece = self._pieces[slot]
            offsets = piece.offsets
            missing = distance(offsets) if offsets is not None else None
            if offsets is None or missing is None:
                return slot, float("inf")
            away = missing * len(piece) / (offsets.end_offset - offsets.base_offset)
            if away > bytes_max:
                return slot, float("inf")
            if away > bytes_away:
                furthest, bytes_away = slot, away
            self._pieces.move_to_end(slot)
        return furthest, bytes_away


class CachedPieces:
    """Pieces by object and first byte, bounded by bytes. Not thread-safe, except `cut`: RangeCache holds its lock.

    `ahead_bytes`: what was read ahead; `ahead_used_bytes`: of it, what was used; `wasted_bytes`: what was evicted
    unread. `distance`: of a range of offsets from the nearest reader.
    """

    def __init__(self, capacity_bytes: int, distance: Distance) -> None:
        self.capacity_bytes = capacity_bytes
        self.distance = distance
        self.used_bytes = 0
        self.ahead_bytes = 0
        self.ahead_used_bytes = 0
        self.wasted_bytes = 0
        self.unread, self.once, self.again = LruList(), LruList(), LruList()
        self._pieces: dict[_Slot, Piece] = {}
        self._starts: dict[ObjectId, list[int]] = {}
        self._alive_bytes = 0  # of all pieces, cached or lent
        self._freed: deque[int] = deque()  # sizes of freed pieces; any thread may append at any time

    def lent_bytes(self) -> int:
        """Bytes of evicted pieces that readers still hold."""
        while self._freed:
            self._alive_bytes -= self._freed.popleft()
        return self._alive_bytes - self.used_bytes

    def find(self, object_id: ObjectId, start: int, end: int) -> list[Piece]:
        """Contiguous pieces from the one that holds `start` up to `end`; none if it is missing."""
        starts = self._starts.get(object_id)
        index = bisect_right(starts, start) - 1 if starts else -1
        found: list[Piece] = []
        position = start
        while starts and 0 <= index < len(starts) and position < end:
            piece = self._pieces[object_id, starts[index]]
            if not piece.start <= position < piece.end:
                break
            found.append(piece)
            position = piece.end
            index += 1
        return found

    def next_start(self, object_id: ObjectId, start: int, end: int) -> int:
        """Where the first piece above `start` begins; `end` if that is above it."""
        starts = self._starts.get(object_id, [])
        index = bisect_right(starts, start)
        return min([end, *starts[index : index + 1]])

    def mark_read(self, object_id: ObjectId, pieces: list[Piece], start: int, end: int) -> None:
        """[start, end) of these pieces is read; some may have been evicted meanwhile."""
        for piece in reversed(pieces):
            first, stop = max(start, piece.start), min(end, piece.end)
            if first >= stop:
                continue
            if piece.lru is not None:
                slot = (object_id, piece.start)
                again = first < piece.read_end or piece.lru is self.again
                piece.lru.remove(slot)
                (self.again if again else self.once).add(slot, piece)
            if piece.ahead:
                self.ahead_used_bytes += len(piece)
                piece.ahead = False
            piece.read_end = max(piece.read_end, stop)
        while self.again.used_bytes > self.capacity_bytes // 2:
            slot = self.again.oldest()
            self.once.add(slot, self.again.remove(slot))

    def cut(self, start: int, data: bytes | memoryview | np.ndarray, cuts: Sequence[Cut]) -> list[Piece]:
        """Pieces of bytes from `start` on, to be added. Any thread may call it without the lock."""
        # A view refers to the array that owns its bytes; the finalizer must watch that array.
        whole = data if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
        pieces = []
        begin = 0
        for end, offsets in cuts:
            # One piece is the bytes themselves; several are copies, so that each can be freed alone.
            part = whole if len(cuts) == 1 else whole[begin:end].copy()
            weakref.finalize(part, self._freed.append, len(part)).atexit = False
            pieces.append(Piece(start + begin, part, offsets))
            begin = end
        return pieces

    def add(self, object_id: ObjectId, pieces: Sequence[Piece], *, ahead: bool = False) -> None:
        """Caches pieces, except those that are there."""
        # Backwards, so that what a reader needs first is evicted last.
        for piece in reversed(pieces):
            self._alive_bytes += len(piece)
            slot = (object_id, piece.start)
            if len(piece) and slot not in self._pieces:
                self._pieces[slot] = piece
                self.unread.add(slot, piece)
                if ahead:
                    piece.ahead = True
                    self.ahead_bytes += len(piece)
                insort(self._starts.setdefault(object_id, []), piece.start)
                self.used_bytes += len(piece)

    def make_room(self, size: int) -> None:
        """Evicts until `size` more bytes fit. Lent bytes count, but leave the cache half of its capacity.

        The newest piece stays, however large: the fetch that caused its load will repeat, and must find it.
        """
        while len(self._pieces) > 1:
            room = self.capacity_bytes - min(self.lent_bytes(), self.capacity_bytes // 2)
            if self.used_bytes + size <= room:
                return
            self._evict()

    def _evict(self) -> None:
        unread_too_much = self.unread.used_bytes > self.capacity_bytes // 2 and len(self.unread) > 1
        order = (self.unread, self.once, self.again) if unread_too_much else (self.once, self.again, self.unread)
        found, lru, bytes_away = None, self.once, -1.0
        for other in order:
            if len(other) and bytes_away < float("inf"):
                slot, away = other.unwanted(self.distance, self.capacity_bytes)
                if found is None or away > bytes_away:
                    found, lru, bytes_away = slot, other, away
        assert found is not None
        object_id, start = slot = found
        piece = lru.remove(slot)
        del self._pieces[slot]
        self.used_bytes -= len(piece)
        if piece.read_end == piece.start:
            self.wasted_bytes += len(piece)
        starts = self._starts[object_id]
        del starts[bisect_left(starts, start)]
        if not starts:
            del self._starts[object_id]
