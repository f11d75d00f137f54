"""How far to read ahead: as much as a reader has read sequentially, less when memory cannot hold it all."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

from kbroker.limits import KIB, MIB
from kbroker.storage.read.cached_pieces import ObjectId

WINDOW_BYTES_MIN = 512 * KIB
WINDOW_BYTES_MAX = 32 * MIB
FIRST_WINDOW_BYTES_MAX = 4 * MIB  # of a first read
STREAMS_MAX = 10_000

Place = tuple[bytes, int, int]  # topic id, partition, offset


class Stream(NamedTuple):
    """A sequential reader at an offset; several at the same offset are one."""

    run_bytes: int  # read sequentially up to here
    image: ObjectId | None = None
    ahead: int = 0  # the image was cached or being loaded up to this byte a moment ago


class ReadAhead:
    """Streams by the offset where each continues; the least recently used are dropped. Thread-safe.

    The windows of all streams together must fit the cache. Streams are not counted: when ranges are evicted unread, the
    common limit is halved; it grows with every other read.
    """

    def __init__(self, window_bytes_max: int) -> None:
        self._window_max = max(WINDOW_BYTES_MIN, min(WINDOW_BYTES_MAX, window_bytes_max))
        self.limit_bytes = self._window_max
        self._wasted_bytes = 0
        self._lock = threading.Lock()
        self._streams: OrderedDict[Place, Stream] = OrderedDict()

    def find(self, place: Place) -> Stream | None:
        """The stream that continues here; None for a reader that comes from elsewhere."""
        with self._lock:
            stream = self._streams.get(place)
            if stream is not None:
                self._streams.move_to_end(place)
            return stream

    def move(self, place: Place, stream: Stream) -> None:
        """Remembers where a stream continues. Two that meet become one."""
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
        """Bytes to read from the store for this stream."""
        wanted = max(WINDOW_BYTES_MIN, min(max_bytes, FIRST_WINDOW_BYTES_MAX))
        if stream is not None:
            wanted += stream.run_bytes
        return min(wanted, self.limit_bytes)

    def loaded(self, wasted_bytes: int) -> None:
        """Adjusts the limit after a read; `wasted_bytes` is what the cache has evicted unread since the start."""
        with self._lock:
            if wasted_bytes > self._wasted_bytes:
                self._wasted_bytes = wasted_bytes
                self.limit_bytes = max(WINDOW_BYTES_MIN, self.limit_bytes // 2)
            else:
                self.limit_bytes = min(self._window_max, self.limit_bytes + WINDOW_BYTES_MIN // 4)
