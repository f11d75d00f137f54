"""A cache of byte ranges of immutable objects, bounded by bytes, with one GET for concurrent readers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np

from kbroker.storage.read.cached_pieces import CachedPieces, Cut, Distance, ObjectId, Piece

Loader = Callable[[int, int], tuple[bytes | np.ndarray, Sequence[Cut]]]  # (start, end) -> bytes and their cuts


class Load:
    """A range that is being read, or planned: the first thread that needs it reads it."""

    __slots__ = ("end", "future", "start", "started")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.started = False
        self.future: Future[list[Piece]] = Future()


class _Loads:
    """Loads by object, planned or running. Not thread-safe: RangeCache holds its lock."""

    def __init__(self) -> None:
        self.running_bytes = 0
        self._loads: dict[ObjectId, list[Load]] = {}

    def at(self, object_id: ObjectId, start: int) -> Load | None:
        """The load that will have the byte at `start`."""
        return next((load for load in self._loads.get(object_id, ()) if load.start <= start < load.end), None)

    def add(self, object_id: ObjectId, start: int, end: int) -> Load:
        """Plans a load from `start` on, up to `end` or the next load."""
        loads = self._loads.setdefault(object_id, [])
        load = Load(start, min([end, *(other.start for other in loads if other.start > start)]))
        loads.append(load)
        return load

    def remove(self, object_id: ObjectId, load: Load) -> None:
        """Forgets a load."""
        loads = self._loads[object_id]
        loads.remove(load)
        if not loads:
            del self._loads[object_id]


class RangeCache:
    """Thread-safe; one lock, not held during a GET, protects pieces and loads.

    `hits`, `misses` and `joined` (waited for another reader's GET) count look-ups.
    """

    def __init__(self, capacity_bytes: int, distance: Distance = lambda offsets: None) -> None:
        self.hits = 0
        self.misses = 0
        self.joined = 0
        self.pieces = CachedPieces(capacity_bytes, distance)
        self._loads = _Loads()
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """Bytes of cached pieces."""
        return self.pieces.used_bytes

    @property
    def wasted_bytes(self) -> int:
        """Bytes that were evicted unread, since the start."""
        return self.pieces.wasted_bytes

    @property
    def lent_bytes(self) -> int:
        """Bytes of evicted pieces that readers still hold."""
        with self._lock:
            return self.pieces.lent_bytes()

    @property
    def crowded(self) -> bool:
        """True while readers hold so much that no more should be lent."""
        return self.lent_bytes > self.pieces.capacity_bytes // 2

    def get(self, object_id: ObjectId, start: int, end: int) -> list[Piece]:
        """Contiguous cached pieces from the one that holds `start` up to `end`; none if it is missing."""
        with self._lock:
            found = self.pieces.find(object_id, start, end)
            if found:
                self.hits += 1
                self.pieces.mark_read(object_id, found, start, end)
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
            found = self.pieces.find(object_id, start, end)
            if found:
                self.hits += 1
                self.pieces.mark_read(object_id, found, start, until)
                return found, found[-1].end
            joined = self._loads.at(object_id, start)
            load = joined or self._plan_locked(object_id, start, end)
            mine = self._start_locked(load)
            if joined is None:
                self.misses += 1
            else:
                self.joined += 1
        pieces = self._load(object_id, load, loader) if mine else load.future.result()
        found = [piece for piece in pieces if piece.end > start]
        with self._lock:
            self.pieces.mark_read(object_id, found, start, until)
        return found, load.end

    def covered(self, object_id: ObjectId, start: int, end: int) -> int:
        """Up to where, from `start` on, everything is cached, being loaded or planned; at most `end`."""
        with self._lock:
            while start < end:
                found = self.pieces.find(object_id, start, end)
                load = None if found else self._loads.at(object_id, start)
                if not found and load is None:
                    break
                start = found[-1].end if load is None else load.end
            return start

    def plan(self, object_id: ObjectId, start: int, end: int) -> list[Load]:
        """Plans loads, for `load_ahead`, of what of [start, end) is neither cached nor being loaded."""
        made = []
        with self._lock:
            while start < end:
                found = self.pieces.find(object_id, start, end)
                load = None if found else self._loads.at(object_id, start)
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
        self._load(object_id, load, loader, ahead=True)

    def cancel(self, object_id: ObjectId, load: Load) -> None:
        """Cancels a planned load, unless a reader has started it."""
        with self._lock:
            if not load.started:
                load.started = True
                self._loads.remove(object_id, load)

    def put(self, object_id: ObjectId, start: int, data: bytes | memoryview, cuts: Sequence[Cut]) -> None:
        """Caches bytes that were read along with something else."""
        pieces = self.pieces.cut(start, data, cuts)
        with self._lock:
            self._add_locked(object_id, pieces)

    def _load(self, object_id: ObjectId, load: Load, loader: Loader, *, ahead: bool = False) -> list[Piece]:
        try:
            data, cuts = loader(load.start, load.end)
        except BaseException as error:
            with self._lock:
                self._end_locked(object_id, load)
            load.future.set_exception(error)
            raise
        pieces = self.pieces.cut(load.start, data, cuts)
        with self._lock:
            self._end_locked(object_id, load)
            self._add_locked(object_id, pieces, ahead=ahead)
        load.future.set_result(pieces)
        return pieces

    def _plan_locked(self, object_id: ObjectId, start: int, end: int) -> Load:
        """A load of the gap that begins at `start`: what is cached or being loaded is not read again."""
        return self._loads.add(object_id, start, self.pieces.next_start(object_id, start, end))

    def _start_locked(self, load: Load) -> bool:
        """Whether the caller is to run the load."""
        if load.started:
            return False
        load.started = True
        self.pieces.make_room(self._loads.running_bytes + load.end - load.start)
        self._loads.running_bytes += load.end - load.start
        return True

    def _end_locked(self, object_id: ObjectId, load: Load) -> None:
        self._loads.running_bytes -= load.end - load.start
        self._loads.remove(object_id, load)

    def _add_locked(self, object_id: ObjectId, pieces: Sequence[Piece], *, ahead: bool = False) -> None:
        self.pieces.add(object_id, pieces, ahead=ahead)
        self.pieces.make_room(self._loads.running_bytes)
