"""A cache of byte ranges of immutable objects: bounded by bytes, one GET however many readers want it.

A range that was read is cut into pieces, each whole batches, and kept piece by piece. So a reader that holds on to
what it was given (an answer that its client does not take) keeps about as much memory alive as it was given, not the
32 MiB that were read ahead. Pieces that left the cache and are still held are counted as lent.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np

ObjectId = tuple[str, str, int]  # key, ETag, first byte of the image: what two images of a pack hold never mixes
# (start, end) -> the bytes, and where to cut them: ascending, relative to start, the last one is their length.
Loader = Callable[[int, int], tuple[bytes, Sequence[int]]]


class Piece:
    """Bytes [start, end) of one object; owned by the cache and by every view of it."""

    __slots__ = ("_data", "end", "read", "start")

    def __init__(self, start: int, data: np.ndarray) -> None:
        self.start = start
        self.end = start + len(data)
        self.read = False  # by someone, so that reading it ahead was worth it
        self._data = data

    def __len__(self) -> int:
        return self.end - self.start

    def view(self, start: int, end: int) -> memoryview:
        """The part of the piece in [start, end); keeps the piece's memory alive."""
        first = max(start, self.start) - self.start
        part = self._data[first : max(first, min(end, self.end) - self.start)]
        return memoryview(part)  # type: ignore[arg-type]


class _Load:
    """A range on its way."""

    __slots__ = ("end", "future", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.future: Future[list[Piece]] = Future()


class RangeCache:
    """Thread-safe; one lock, not held while bytes come.

    `hits`, `misses` and `joined` (waited for another reader's GET) count look-ups, `wasted_bytes` what was evicted
    before anyone had read it.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.hits = 0
        self.misses = 0
        self.joined = 0
        self.wasted_bytes = 0
        self._lock = threading.Lock()
        self._lru: OrderedDict[tuple[ObjectId, int], Piece] = OrderedDict()
        self._starts: dict[ObjectId, list[int]] = {}
        self._loading: dict[ObjectId, list[_Load]] = {}
        self._loading_bytes = 0
        self._alive_bytes = 0  # of all pieces, cached or lent
        self._freed: deque[int] = deque()  # sizes of pieces that are gone; any thread may append at any time

    @property
    def lent_bytes(self) -> int:
        """Bytes of pieces that left the cache and that readers still hold."""
        with self._lock:
            return self._lent_locked()

    @property
    def crowded(self) -> bool:
        """True while readers hold on to so much that no more should be lent."""
        return self.lent_bytes > self.capacity_bytes // 2

    def get(self, object_id: ObjectId, start: int, end: int) -> list[Piece]:
        """Cached pieces that follow each other from the one that holds `start`, until `end`; none if it is missing."""
        with self._lock:
            found = self._find_locked(object_id, start, end)
            if found:
                self.hits += 1
                _mark_read(found)
            return found

    def load(
        self, object_id: ObjectId, start: int, end: int, loader: Loader, *, ahead: bool = False
    ) -> tuple[list[Piece], int]:
        """Pieces from the one that holds `start` on, and where what was found or loaded ends.

        Cached, or being loaded by someone else, or loaded here: [start, end), less where a part of it is there
        already. `ahead`: nobody reads them yet. Raises what `loader` raises; every reader that joined gets the same
        exception.
        """
        with self._lock:
            found = self._find_locked(object_id, start, end)
            if not ahead:
                self.hits += bool(found)
                _mark_read(found)
            if found:
                return found, found[-1].end
            running = self._loading.get(object_id, [])
            joined = next((load for load in running if load.start <= start < load.end), None)
            if joined is None:
                mine = _Load(start, self._free_end_locked(object_id, start, end))
                self._loading.setdefault(object_id, []).append(mine)
                self.misses += not ahead
                self._make_room_locked(mine.end - mine.start)
                self._loading_bytes += mine.end - mine.start
            else:
                self.joined += not ahead
        pieces = joined.future.result() if joined is not None else self._load(object_id, mine, loader)
        found = [piece for piece in pieces if piece.end > start]
        if not ahead:
            _mark_read(found)
        return found, (joined or mine).end

    def put(self, object_id: ObjectId, start: int, data: bytes, cuts: Sequence[int]) -> None:
        """Keeps bytes that came along with something else."""
        pieces = self._cut(start, data, cuts)
        with self._lock:
            self._take_in_locked(object_id, pieces)

    def _load(self, object_id: ObjectId, load: _Load, loader: Loader) -> list[Piece]:
        try:
            data, cuts = loader(load.start, load.end)
        except BaseException as error:
            with self._lock:
                self._end_load_locked(object_id, load)
            load.future.set_exception(error)
            raise
        pieces = self._cut(load.start, data, cuts)
        with self._lock:
            self._end_load_locked(object_id, load)
            self._take_in_locked(object_id, pieces)
        load.future.set_result(pieces)
        return pieces

    def _end_load_locked(self, object_id: ObjectId, load: _Load) -> None:
        self._loading_bytes -= load.end - load.start
        running = self._loading[object_id]
        running.remove(load)
        if not running:
            del self._loading[object_id]

    def _find_locked(self, object_id: ObjectId, start: int, end: int) -> list[Piece]:
        starts = self._starts.get(object_id)
        index = bisect_right(starts, start) - 1 if starts else -1
        found: list[Piece] = []
        position = start
        while starts and 0 <= index < len(starts) and position < end:
            slot = (object_id, starts[index])
            piece = self._lru[slot]
            if not piece.start <= position < piece.end:
                break
            self._lru.move_to_end(slot)
            found.append(piece)
            position = piece.end
            index += 1
        return found

    def _free_end_locked(self, object_id: ObjectId, start: int, end: int) -> int:
        """Where the gap ends that begins at `start`: what is cached or on its way is not read again."""
        starts = self._starts.get(object_id, [])
        index = bisect_right(starts, start)
        ends = [end, *starts[index : index + 1]]
        ends += [load.start for load in self._loading.get(object_id, []) if load.start > start]
        return min(ends)

    def _cut(self, start: int, data: bytes, cuts: Sequence[int]) -> list[Piece]:
        whole = np.frombuffer(data, dtype=np.uint8)
        pieces = []
        begin = 0
        for end in cuts:
            # One piece is the bytes themselves; several are copies, so that each can be freed alone.
            part = whole if len(cuts) == 1 else whole[begin:end].copy()
            weakref.finalize(part, self._freed.append, len(part)).atexit = False
            pieces.append(Piece(start + begin, part))
            begin = end
        return pieces

    def _take_in_locked(self, object_id: ObjectId, pieces: list[Piece]) -> None:
        # Backwards: what a reader needs first is evicted last.
        for piece in reversed(pieces):
            self._alive_bytes += len(piece)
            slot = (object_id, piece.start)
            if len(piece) and slot not in self._lru:
                self._lru[slot] = piece
                insort(self._starts.setdefault(object_id, []), piece.start)
                self.used_bytes += len(piece)
        self._make_room_locked(0)

    def _make_room_locked(self, size: int) -> None:
        """Evicts until `size` more bytes fit. Lent bytes count, but leave the cache half of its capacity.

        The newest piece stays, however large: a fetch that was answered without it asks again, and must find it.
        """
        while len(self._lru) > 1:
            room = self.capacity_bytes - min(self._lent_locked(), self.capacity_bytes // 2)
            if self.used_bytes + self._loading_bytes + size <= room:
                return
            self._evict_locked()

    def _evict_locked(self) -> None:
        (object_id, start), piece = self._lru.popitem(last=False)
        self.used_bytes -= len(piece)
        if not piece.read:
            self.wasted_bytes += len(piece)
        starts = self._starts[object_id]
        del starts[bisect_left(starts, start)]
        if not starts:
            del self._starts[object_id]

    def _lent_locked(self) -> int:
        while self._freed:
            self._alive_bytes -= self._freed.popleft()
        return self._alive_bytes - self.used_bytes


def _mark_read(pieces: list[Piece]) -> None:
    for piece in pieces:
        piece.read = True
