"""Keeps readers of a partition near each other, so that what one has read is still in the cache for the next.

Ten consumers that start together drift apart. Once the first is further ahead than the cache is large, the others find
nothing left and each reads the bucket for itself. So a reader that is about to fetch more waits a moment while
another, which goes on too, is more than half of the cache behind it. Who is further behind than the whole cache has
lost the others anyway, and nobody waits for a reader that stands still: a slow consumer costs a fast one a short time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable

from kbroker.clock import Clock, SystemClock

HOLD_SECONDS = 0.3  # of one read from the store: less than a fetch waits
ACTIVE_SECONDS = 0.5  # a reader that has not moved for so long is not waited for
OWNERS_MAX = 1_000
READERS_MAX = 1_000  # places in one partition


class _Place:
    __slots__ = ("moved_at", "readers")

    def __init__(self) -> None:
        self.moved_at = 0.0
        self.readers = 0


class Convoy:
    """Places of readers by owner (a partition). Thread-safe. `held` counts reads that waited."""

    def __init__(self, capacity_bytes: int, clock: Clock | None = None) -> None:
        self._capacity_bytes = capacity_bytes
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)
        self._waiting = 0
        self._owners: OrderedDict[Hashable, OrderedDict[int, _Place]] = OrderedDict()
        self.held = 0

    def moved(self, owner: Hashable, offset: int, next_offset: int) -> None:
        """A reader has got what lies between two offsets."""
        now = self._clock.monotonic()
        with self._lock:
            places = self._owners.setdefault(owner, OrderedDict())
            self._owners.move_to_end(owner)
            left = places.get(offset)
            if left is not None:
                left.readers -= 1
                if left.readers <= 0:
                    del places[offset]
            place = places.setdefault(next_offset, _Place())
            place.readers += 1
            place.moved_at = now
            places.move_to_end(next_offset)
            self._forget_locked(places, now)
            if self._waiting:
                self._moved.notify_all()

    def hold(self, owner: Hashable, offset: int, bytes_per_offset: float) -> bool:
        """Waits, at most HOLD_SECONDS, while a reader at `offset` is too far ahead of another; whether it had to."""
        with self._lock:
            if not self._too_far_locked(owner, offset, bytes_per_offset):
                return False
            self.held += 1
            self._waiting += 1
            self._moved.wait_for(lambda: not self._too_far_locked(owner, offset, bytes_per_offset), HOLD_SECONDS)
            self._waiting -= 1
            return True

    def _too_far_locked(self, owner: Hashable, offset: int, bytes_per_offset: float) -> bool:
        oldest = self._clock.monotonic() - ACTIVE_SECONDS
        active = sum(next(reversed(places.values())).moved_at > oldest for places in self._owners.values())
        share = self._capacity_bytes / max(1, active)
        return any(
            place.moved_at > oldest and share / 2 < (offset - behind) * bytes_per_offset <= share
            for behind, place in self._owners.get(owner, {}).items()
        )

    def _forget_locked(self, places: OrderedDict[int, _Place], now: float) -> None:
        while len(self._owners) > OWNERS_MAX:
            self._owners.popitem(last=False)
        # The newest stays: it tells whether anyone reads here.
        while len(places) > 1 and (
            len(places) > READERS_MAX or next(iter(places.values())).moved_at < now - ACTIVE_SECONDS
        ):
            places.popitem(last=False)
