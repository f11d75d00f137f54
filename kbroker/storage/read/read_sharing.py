"""Where the readers of each partition are: what they will need is kept for them, and they are kept together.

Ten consumers that start together drift apart. What the first has read must stay in the cache until the last has passed,
and nothing else need stay. So the cache asks here how far behind a stretch the nearest reader is: nobody behind it,
nobody needs it.

Once the first is further ahead than the cache is large, the others find nothing left and each reads the bucket for
itself. So a reader that is about to fetch more waits while what it would fetch does not fit beside what another, who
goes on too, has still to read. It waits for two thirds of the time at most: a reader that is less than a third as fast
falls behind, and out of the reach of the cache it has lost the others, who do not wait for it any more.

Nobody says which reader asks: a reader is known by the place where it goes on, and forgotten when nothing was read
there for ACTIVE_SECONDS, which is more than a client rests while its own queue is full.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Hashable
from typing import NamedTuple

from kbroker.clock import Clock, SystemClock
from kbroker.limits import MIB

ACTIVE_SECONDS = 2.0
PATIENCE_SECONDS = 1.5  # of one wait, and of several in a row
WAITING_PART = 2 / 3  # of the time, at most
WAITING_MAX = 2  # threads
SHARE_BYTES_MIN = 16 * MIB  # of a partition in the cache: readers in less than this cannot be kept together
RECOUNT_SECONDS = 0.1
OWNERS_MAX = 1_000
READERS_MAX = 1_000  # places in one partition


class Stretch(NamedTuple):
    """Offsets [base_offset, end_offset) of a partition."""

    owner: Hashable
    base_offset: int
    end_offset: int


class _Place:
    __slots__ = ("moved_at", "readers")

    def __init__(self) -> None:
        self.moved_at = 0.0
        self.readers = 0


class _Owner:
    """Readers of one partition, by the offset where each goes on: who moved last at the end."""

    __slots__ = ("offsets", "patience", "patience_at", "places")

    def __init__(self, now: float) -> None:
        self.places: OrderedDict[int, _Place] = OrderedDict()
        self.offsets: list[int] = []  # the same places, in their own order
        self.patience = PATIENCE_SECONDS
        self.patience_at = now

    def move(self, offset: int, next_offset: int, now: float) -> None:
        left = self._leave(offset)
        place = self.places.get(next_offset)
        if place is None:
            place = self.places[next_offset] = _Place()
            insort(self.offsets, next_offset)
        # Who was not known may be one that asks again, because an earlier answer came too late for its fetch.
        if left or not place.readers:
            place.readers += 1
        place.moved_at = now
        self.places.move_to_end(next_offset)

    def _leave(self, offset: int) -> bool:
        place = self.places.get(offset)
        if place is None:
            return False
        place.readers -= 1
        if place.readers <= 0:
            self._drop(offset)
        return True

    def forget(self, oldest: float) -> None:
        """The newest place stays: it tells whether anyone reads here."""
        while len(self.places) > 1:
            offset, place = next(iter(self.places.items()))
            if len(self.places) <= READERS_MAX and place.moved_at >= oldest:
                return
            self._drop(offset)

    def moved_at(self) -> float:
        """When anyone did."""
        return next(reversed(self.places.values())).moved_at

    def _drop(self, offset: int) -> None:
        del self.places[offset]
        del self.offsets[bisect_left(self.offsets, offset)]


class Convoy:
    """Places of readers by owner (a partition). Thread-safe. `held` counts reads that waited.

    Args:
        capacity_bytes: of the cache that the readers share.
    """

    def __init__(self, capacity_bytes: int, clock: Clock | None = None) -> None:
        self._capacity_bytes = capacity_bytes
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)
        self._waiting = 0
        self._owners: OrderedDict[Hashable, _Owner] = OrderedDict()
        self._active = 1  # owners, at the last count
        self._counted_at = float("-inf")
        self.held = 0

    def moved(self, owner: Hashable, offset: int, next_offset: int) -> None:
        """A reader has got what lies between two offsets."""
        now = self._clock.monotonic()
        with self._lock:
            known = self._owners.get(owner)
            if known is None:
                known = self._owners[owner] = _Owner(now)
                self._counted_at = float("-inf")
            self._owners.move_to_end(owner)
            known.move(offset, next_offset, now)
            known.forget(now - ACTIVE_SECONDS)
            while len(self._owners) > OWNERS_MAX:
                self._owners.popitem(last=False)
            if self._waiting:
                self._moved.notify_all()

    def distance(self, stretch: Stretch) -> int | None:
        """Offsets from the nearest reader that will come to this stretch up to it; None when nobody will."""
        with self._lock:
            known = self._owners.get(stretch.owner)
            if known is None:
                return None
            oldest = self._clock.monotonic() - ACTIVE_SECONDS
            for index in range(bisect_left(known.offsets, stretch.end_offset) - 1, -1, -1):
                offset = known.offsets[index]
                if known.places[offset].moved_at >= oldest:
                    return max(0, stretch.base_offset - offset)
            return None

    def too_far(self, stretch: Stretch, bytes_per_offset: float) -> bool:
        """Whether this stretch, if it were fetched now, would push out what a reader behind it still needs."""
        with self._lock:
            return self._too_far_locked(stretch, bytes_per_offset)

    def hold(self, stretch: Stretch, bytes_per_offset: float) -> bool:
        """Waits while it is too far, as long as patience lasts; whether it had to. For a thread that may wait."""
        with self._lock:
            if self._waiting >= WAITING_MAX or not self._too_far_locked(stretch, bytes_per_offset):
                return False
            known = self._owners[stretch.owner]
            patience = self._patience_locked(known)
            if patience <= 0:
                return False
            self.held += 1
            self._waiting += 1
            started = self._clock.monotonic()
            self._moved.wait_for(lambda: not self._too_far_locked(stretch, bytes_per_offset), patience)
            self._waiting -= 1
            known.patience -= self._clock.monotonic() - started
            return True

    def _patience_locked(self, known: _Owner) -> float:
        now = self._clock.monotonic()
        known.patience = min(PATIENCE_SECONDS, known.patience + (now - known.patience_at) * WAITING_PART)
        known.patience_at = now
        return known.patience

    def _too_far_locked(self, stretch: Stretch, bytes_per_offset: float) -> bool:
        known = self._owners.get(stretch.owner)
        share = self._share_bytes_locked()
        if known is None or share < SHARE_BYTES_MIN:
            return False
        oldest = self._clock.monotonic() - ACTIVE_SECONDS
        room = share * 7 / 8 / bytes_per_offset  # in offsets
        # Who is further behind than the room before this stretch has lost the others.
        first = bisect_left(known.offsets, stretch.base_offset - room)
        stop = bisect_left(known.offsets, min(stretch.base_offset, stretch.end_offset - room))
        return any(known.places[offset].moved_at >= oldest for offset in known.offsets[first:stop])

    def _share_bytes_locked(self) -> float:
        """What each partition that is being read has of the cache."""
        now = self._clock.monotonic()
        if now - self._counted_at >= RECOUNT_SECONDS:
            self._counted_at = now
            oldest = now - ACTIVE_SECONDS
            self._active = max(1, sum(known.moved_at() >= oldest for known in self._owners.values()))
        return self._capacity_bytes / self._active
