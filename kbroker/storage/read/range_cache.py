"""A cache of byte ranges of immutable objects, bounded by bytes, with one GET for concurrent readers.

A range that was read is cut into pieces of whole batches, which are cached one by one. So a view that is held (by an
answer that its client does not take) keeps about its own size alive, not the 32 MiB that were read ahead. Pieces that
were evicted and are still held are counted as lent.

A scan must not evict what others read again, nor read-ahead what is in use. So there are three LRU lists: unread, read
once, and read again. Pieces read once are evicted first, unless the unread ones take more than half of the cache: then
those. Pieces read again take at most half; the excess returns to the list of those read once.

Above all, a piece that no known reader will come to is evicted before one that a reader will; among the latter, the one
whose nearest reader is furthest.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np

from kbroker.storage.read.read_sharing import OffsetRange

ObjectId = tuple[str, str, int]  # key, ETag, first byte of the image: images of a pack do not mix
EVICTION_LOOKS = 32  # pieces of a list that are searched for one that no reader will come to


class Cut(NamedTuple):
    """Where a piece of a loaded range ends, and its offsets."""

    end: int  # relative to the first byte loaded
    offsets: OffsetRange | None


Loader = Callable[[int, int], tuple[bytes | np.ndarray, Sequence[Cut]]]  # (start, end) -> bytes and their cuts
Distance = Callable[[OffsetRange], int | None]  # offsets from the nearest reader; None: none comes
_Slot = tuple[ObjectId, int]


class Piece:
    """Bytes [start, end) of one object; owned by the cache and by every view of it."""

    __slots__ = ("_data", "end", "lru", "offsets", "read_end", "start")

    def __init__(self, start: int, data: np.ndarray, offsets: OffsetRange | None) -> None:
        self.start = start
        self.end = start + len(data)
        self.offsets = offsets
        self.lru: _LruList | None = None  # its list in the cache
        self.read_end = start  # the end of what was read once; a read below it is a second one
        self._data = data

    def __len__(self) -> int:
        return self.end - self.start

    def view(self, start: int, end: int) -> memoryview:
        """The part of the piece in [start, end); keeps the piece's memory alive."""
        first = max(start, self.start) - self.start
        part = self._data[first : max(first, min(end, self.end) - self.start)]
        return memoryview(part)  # type: ignore[arg-type]


class _LruList:
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
        """The first of the oldest that no reader will come to, else the one whose reader is furthest; and its distance.

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


class Load:
    """A range that is being read, or planned: the first thread that needs it reads it."""

    __slots__ = ("end", "future", "start", "started")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.started = False
        self.future: Future[list[Piece]] = Future()


class RangeCache:
    """Thread-safe; one lock, not held during a GET.

    `hits`, `misses` and `joined` (waited for another reader's GET) count look-ups, `ahead` counts loads by read-ahead,
    `wasted_bytes` what was evicted unread.
    """

    def __init__(self, capacity_bytes: int, distance: Distance = lambda offsets: None) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.hits = 0
        self.misses = 0
        self.joined = 0
        self.ahead = 0
        self.wasted_bytes = 0
        self._distance = distance
        self._lock = threading.Lock()
        self._unread, self._once, self._again = _LruList(), _LruList(), _LruList()
        self._pieces: dict[_Slot, Piece] = {}
        self._starts: dict[ObjectId, list[int]] = {}
        self._loading: dict[ObjectId, list[Load]] = {}
        self._loading_bytes = 0
        self._alive_bytes = 0  # of all pieces, cached or lent
        self._freed: deque[int] = deque()  # sizes of freed pieces; any thread may append at any time

    @property
    def lent_bytes(self) -> int:
        """Bytes of evicted pieces that readers still hold."""
        with self._lock:
            return self._lent_locked()

    @property
    def crowded(self) -> bool:
        """True while readers hold so much that no more should be lent."""
        return self.lent_bytes > self.capacity_bytes // 2

    def get(self, object_id: ObjectId, start: int, end: int) -> list[Piece]:
        """Contiguous cached pieces from the one that holds `start` up to `end`; none if it is missing."""
        with self._lock:
            found = self._find_locked(object_id, start, end)
            if found:
                self.hits += 1
                self._read_locked(object_id, found, start, end)
            return found

    def load(
        self, object_id: ObjectId, start: int, end: int, loader: Loader, *, until: int | None = None
    ) -> tuple[list[Piece], int]:
        """Pieces from the one that holds `start` on, and where they end.

        They are cached, loaded by another thread, or loaded here: [start, end), or less where a part of it is cached
        already. `until`: where the caller stops reading, if before `end`. Raises what `loader` raises, on every thread
        that waits for the load.
        """
        until = end if until is None else until
        with self._lock:
            found = self._find_locked(object_id, start, end)
            if found:
                self.hits += 1
                self._read_locked(object_id, found, start, until)
                return found, found[-1].end
            joined = self._running_load_locked(object_id, start)
            load = joined or self._plan_locked(object_id, start, end)
            mine = self._start_locked(load)
            if joined is None:
                self.misses += 1
            else:
                self.joined += 1
        pieces = self._load(object_id, load, loader) if mine else load.future.result()
        found = [piece for piece in pieces if piece.end > start]
        with self._lock:
            self._read_locked(object_id, found, start, until)
        return found, load.end

    def covered(self, object_id: ObjectId, start: int, end: int) -> int:
        """Up to where, from `start` on, everything is cached, being loaded or planned; at most `end`."""
        with self._lock:
            while start < end:
                found = self._find_locked(object_id, start, end)
                load = None if found else self._running_load_locked(object_id, start)
                if not found and load is None:
                    break
                start = found[-1].end if load is None else load.end
            return start

    def plan(self, object_id: ObjectId, start: int, end: int) -> list[Load]:
        """Plans loads, for `load_ahead`, of what of [start, end) is neither cached nor being loaded."""
        made = []
        with self._lock:
            while start < end:
                found = self._find_locked(object_id, start, end)
                load = None if found else self._running_load_locked(object_id, start)
                if not found and load is None:
                    load = self._plan_locked(object_id, start, end)
                    made.append(load)
                start = found[-1].end if load is None else load.end
        return made

    def load_ahead(self, object_id: ObjectId, load: Load, loader: Loader) -> None:
        """Runs a planned load, unless a reader has started it. Raises what `loader` raises."""
        with self._lock:
            if not self._start_locked(load):
                return
            self.ahead += 1
        self._load(object_id, load, loader)

    def cancel(self, object_id: ObjectId, load: Load) -> None:
        """Cancels a planned load, unless a reader has started it."""
        with self._lock:
            if not load.started:
                load.started = True
                self._remove_locked(object_id, load)

    def put(self, object_id: ObjectId, start: int, data: bytes | memoryview, cuts: Sequence[Cut]) -> None:
        """Caches bytes that were read along with something else."""
        pieces = self._cut(start, data, cuts)
        with self._lock:
            self._insert_locked(object_id, pieces)

    def _load(self, object_id: ObjectId, load: Load, loader: Loader) -> list[Piece]:
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
            self._insert_locked(object_id, pieces)
        load.future.set_result(pieces)
        return pieces

    def _running_load_locked(self, object_id: ObjectId, start: int) -> Load | None:
        return next((load for load in self._loading.get(object_id, ()) if load.start <= start < load.end), None)

    def _plan_locked(self, object_id: ObjectId, start: int, end: int) -> Load:
        load = Load(start, self._free_end_locked(object_id, start, end))
        self._loading.setdefault(object_id, []).append(load)
        return load

    def _start_locked(self, load: Load) -> bool:
        """Whether the caller is to run the load."""
        if load.started:
            return False
        load.started = True
        self._make_room_locked(load.end - load.start)
        self._loading_bytes += load.end - load.start
        return True

    def _end_load_locked(self, object_id: ObjectId, load: Load) -> None:
        self._loading_bytes -= load.end - load.start
        self._remove_locked(object_id, load)

    def _remove_locked(self, object_id: ObjectId, load: Load) -> None:
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
            piece = self._pieces[object_id, starts[index]]
            if not piece.start <= position < piece.end:
                break
            found.append(piece)
            position = piece.end
            index += 1
        return found

    def _read_locked(self, object_id: ObjectId, pieces: list[Piece], start: int, end: int) -> None:
        """[start, end) of these pieces is read; some may have been evicted meanwhile."""
        for piece in reversed(pieces):
            first, stop = max(start, piece.start), min(end, piece.end)
            if first >= stop:
                continue
            if piece.lru is not None:
                slot = (object_id, piece.start)
                again = first < piece.read_end or piece.lru is self._again
                piece.lru.remove(slot)
                (self._again if again else self._once).add(slot, piece)
            piece.read_end = max(piece.read_end, stop)
        while self._again.used_bytes > self.capacity_bytes // 2:
            slot = self._again.oldest()
            self._once.add(slot, self._again.remove(slot))

    def _free_end_locked(self, object_id: ObjectId, start: int, end: int) -> int:
        """Where the gap that begins at `start` ends: what is cached or being loaded is not read again."""
        starts = self._starts.get(object_id, [])
        index = bisect_right(starts, start)
        ends = [end, *starts[index : index + 1]]
        ends += [load.start for load in self._loading.get(object_id, []) if load.start > start]
        return min(ends)

    def _cut(self, start: int, data: bytes | memoryview | np.ndarray, cuts: Sequence[Cut]) -> list[Piece]:
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

    def _insert_locked(self, object_id: ObjectId, pieces: list[Piece]) -> None:
        # Backwards, so that what a reader needs first is evicted last.
        for piece in reversed(pieces):
            self._alive_bytes += len(piece)
            slot = (object_id, piece.start)
            if len(piece) and slot not in self._pieces:
                self._pieces[slot] = piece
                self._unread.add(slot, piece)
                insort(self._starts.setdefault(object_id, []), piece.start)
                self.used_bytes += len(piece)
        self._make_room_locked(0)

    def _make_room_locked(self, size: int) -> None:
        """Evicts until `size` more bytes fit. Lent bytes count, but leave the cache half of its capacity.

        The newest piece stays, however large: the fetch that caused its load will repeat, and must find it.
        """
        while len(self._pieces) > 1:
            room = self.capacity_bytes - min(self._lent_locked(), self.capacity_bytes // 2)
            if self.used_bytes + self._loading_bytes + size <= room:
                return
            self._evict_locked()

    def _evict_locked(self) -> None:
        unread_too_much = self._unread.used_bytes > self.capacity_bytes // 2 and len(self._unread) > 1
        order = (self._unread, self._once, self._again) if unread_too_much else (self._once, self._again, self._unread)
        found, lru, bytes_away = None, self._once, -1.0
        for other in order:
            if len(other) and bytes_away < float("inf"):
                slot, away = other.unwanted(self._distance, self.capacity_bytes)
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

    def _lent_locked(self) -> int:
        while self._freed:
            self._alive_bytes -= self._freed.popleft()
        return self._alive_bytes - self.used_bytes
