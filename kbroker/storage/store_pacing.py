"""Uploads at a chosen rate, so that a flush does not take the CPU and the network from producers and consumers."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kbroker.clock import Clock, SystemClock
from kbroker.storage.object_store import (
    BODY_PIECE_BYTES,
    Body,
    BodySource,
    ObjectMeta,
    ObjectStore,
    UploadedPart,
    as_source,
)
from kbroker.storage.store_wrappers import StoreWrapper


class UploadPacer:
    """A rate shared by all uploads, changeable while they run.

    One lock protects rate and schedule. ``wait(condition, seconds)`` waits on the held condition (tests inject it).
    """

    def __init__(
        self,
        bytes_per_second: float | None = None,
        *,
        clock: Clock | None = None,
        wait: Callable[[threading.Condition, float], object] = threading.Condition.wait,
    ) -> None:
        self._clock = clock or SystemClock()
        self._wait = wait
        self._changed = threading.Condition()
        self._rate = bytes_per_second
        self._ready_at = 0.0  # monotonic time at which the next piece may go

    @property
    def bytes_per_second(self) -> float | None:
        """The rate now; None: as fast as it goes."""
        return self._rate

    def set_rate(self, bytes_per_second: float | None) -> None:
        """A new rate, or None to burst; uploads that are waiting go on by it at once."""
        if bytes_per_second is not None and bytes_per_second <= 0:
            raise ValueError(f"upload rate {bytes_per_second} (None is unlimited)")
        with self._changed:
            self._rate = bytes_per_second
            self._ready_at = self._clock.monotonic()
            self._changed.notify_all()

    def take(self, size_bytes: int) -> None:
        """Returns when ``size_bytes`` may be sent."""
        with self._changed:
            while self._rate is not None:
                now = self._clock.monotonic()
                if self._ready_at <= now:
                    self._ready_at = now + size_bytes / self._rate
                    return
                self._wait(self._changed, self._ready_at - now)


class PacedBody:
    """A BodySource that gives at most BODY_PIECE_BYTES at a time, when the pacer allows them."""

    def __init__(self, source: BodySource, pacer: UploadPacer) -> None:
        self._source = source
        self._pacer = pacer
        self.length = source.length

    def read_into(self, position: int, out: memoryview) -> int:
        piece = out[:BODY_PIECE_BYTES]
        self._pacer.take(min(len(piece), self.length - position))
        return self._source.read_into(position, piece)


class PacedStore(StoreWrapper):
    """Paces the bodies of puts and parts that are larger than one piece; small ones (log records) never wait.

    Wrap it inside RetryingStore: each attempt is paced. Give the CRC-32C with a part, or it is read twice.
    """

    def __init__(self, inner: ObjectStore, pacer: UploadPacer) -> None:
        super().__init__(inner)
        self._pacer = pacer

    def _paced(self, body: Body) -> Body:
        source = as_source(body)
        return PacedBody(source, self._pacer) if source.length > BODY_PIECE_BYTES else body

    def put(
        self,
        key: str,
        body: Body,
        *,
        if_none_match: bool = False,
        if_match: str | None = None,
        crc32c: int | None = None,
    ) -> ObjectMeta:
        return self._inner.put(key, self._paced(body), if_none_match=if_none_match, if_match=if_match, crc32c=crc32c)

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, crc32c: int | None = None
    ) -> UploadedPart:
        return self._inner.upload_part(key, upload_id, number, self._paced(body), crc32c=crc32c)
