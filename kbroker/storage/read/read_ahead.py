"""How far to read ahead: as much again as a reader has read in one go, less when memory cannot hold it all."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

from kbroker.limits import KIB, MIB
from kbroker.storage.read.range_cache import ObjectId

WINDOW_BYTES_MIN = 512 * KIB
WINDOW_BYTES_MAX = 32 * MIB
FIRST_WINDOW_BYTES_MAX = 4 * MIB  # a first read gets what was asked for, up to this
STREAMS_MAX = 10_000

Place = tuple[bytes, int, int]  # topic id, partition, offset


class Stream(NamedTuple):
    """What is known of readers that come to a place: several that have come the same way are one."""

    run_bytes: int  # read in one go up to here
    image: ObjectId | None = None
    ahead: int = 0  # everything of the image up to this byte was there, or on its way, a moment ago


class ReadAhead:
    """Streams by the place where each goes on, least recently used out first. Thread-safe.

    The windows of all streams together must fit the cache. Nobody counts streams: when ranges are evicted before
    anyone has read them the common limit is halved, and it grows back with every read that does no such harm.
    """

    def __init__(self, window_bytes_max: int) -> None:
        self._window_max = max(WINDOW_BYTES_MIN, min(WINDOW_BYTES_MAX, window_bytes_max))
        self.limit_bytes = self._window_max
        self._wasted_bytes = 0
        self._lock = threading.Lock()
        self._streams: OrderedDict[Place, Stream] = OrderedDict()

    def find(self, place: Place) -> Stream | None:
        """The stream that goes on at this place; None for a reader that comes from elsewhere."""
        with self._lock:
            stream = self._streams.get(place)
            if stream is not None:
                self._streams.move_to_end(place)
            return stream

    def goes_on(self, place: Place, stream: Stream) -> None:
        """Remembers where a stream will read next. Two that meet are one."""
        with self._lock:
            met = self._streams.get(place)
            if met is not None:
                further = met if met.image == stream.image and met.ahead > stream.ahead else stream
                stream = further._replace(run_bytes=max(met.run_bytes, stream.run_bytes))
            self._streams[place] = stream
            self._streams.move_to_end(place)
            while len(self._streams) > STREAMS_MAX:
                self._streams.popitem(last=False)

    def window(self, stream: Stream | None, max_bytes: int) -> int:
        """Bytes to read from the store at once."""
        wanted = max(WINDOW_BYTES_MIN, min(max_bytes, FIRST_WINDOW_BYTES_MAX))
        if stream is not None:
            wanted += stream.run_bytes
        return min(wanted, self.limit_bytes)

    def loaded(self, wasted_bytes: int) -> None:
        """Moves the limit after a read; `wasted_bytes` is what the cache has evicted unread since the start."""
        with self._lock:
            if wasted_bytes > self._wasted_bytes:
                self._wasted_bytes = wasted_bytes
                self.limit_bytes = max(WINDOW_BYTES_MIN, self.limit_bytes // 2)
            else:
                self.limit_bytes = min(self._window_max, self.limit_bytes + WINDOW_BYTES_MIN // 4)
