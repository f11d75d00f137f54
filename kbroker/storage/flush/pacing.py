"""Pacing of uploads: a flush spreads its bytes over time, so that it costs little at any moment."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kbroker.limits import KIB
from kbroker.storage.stores.object_store import BodySource, send_some

CREDIT_SECONDS = 0.1  # of unused rate may be saved up
PIECE_SECONDS = 0.004  # of the rate are sent at once, so that other threads find a free core ...
PIECE_BYTES_MIN = 128 * KIB  # ... but not less than this
SPREAD_SECONDS = 0.2  # of the rate are spread evenly by one call, below the interpreter
RATE_CHECK_SECONDS = 0.1  # between looks at a rate that may have risen


class Pacer:
    """A rate limiter. Thread-safe.

    `wait(seconds)` sleeps and may return early; `monotonic` is the clock's. `rate()`, if given, returns the bytes per
    second, 0 for no limit; it is called often and must be quick. `sent(count)` is called with the bytes sent.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        wait: Callable[[float], object],
        rate: Callable[[], float] | None = None,
        sent: Callable[[int], None] | None = None,
    ) -> None:
        self._monotonic = monotonic
        self._wait = wait
        self._bytes_per_second = 0.0  # 0: no limit
        self._rate = rate or (lambda: self._bytes_per_second)
        self._sent = sent
        self._lock = threading.Lock()
        self._requested = 0  # bytes of all requests
        self._newest = 0  # where the last request begins
        self._allowed = 0.0  # bytes that may be sent ...
        self._at = monotonic()  # ... at this time

    def set_rate(self, bytes_per_second: float) -> None:
        """Sets the rate from now on; 0 is no limit. Earlier requests are granted."""
        with self._lock:
            self._bytes_per_second = bytes_per_second
            self._allowed, self._at = float(self._requested), self._monotonic()

    def acquire(self, count: int) -> None:
        """Returns when `count` more bytes may be sent. Threads take turns in the order of their calls."""
        with self._lock:
            turn = self._newest = self._requested
            self._requested += count
        while seconds := self._seconds_until(turn):
            self._wait(min(seconds, RATE_CHECK_SECONDS))

    def give_back(self, count: int) -> None:
        """Returns granted bytes that were not sent. Threads that wait already wait no less."""
        with self._lock:
            self._requested -= count

    def note_sent(self, count: int) -> None:
        """Reports bytes that were sent."""
        if self._sent is not None:
            self._sent(count)

    @property
    def rate(self) -> int:
        """Bytes per second now, 0 for no limit."""
        return int(self._rate())

    def piece_bytes(self, wanted: int) -> int:
        """How many of `wanted` bytes to request at once."""
        return _bytes_of(PIECE_SECONDS, self._rate(), wanted)

    def _seconds_until(self, turn: int) -> float:
        """How long until the byte at `turn` may be sent; 0 when it may."""
        with self._lock:
            now = self._monotonic()
            rate = self._rate()
            if rate:
                earned = self._allowed + rate * (now - self._at)
                self._allowed = min(earned, self._newest + rate * CREDIT_SECONDS)
            else:
                self._allowed = float(self._requested)
            self._at = now
            missing = turn - self._allowed
            return missing / rate if missing >= 1 else 0.0  # less than a byte may be below the clock's resolution


class PacedBody:
    """A body whose reads and sends wait for the pacer."""

    __slots__ = ("_body", "_pacer", "_sends_itself", "length")

    def __init__(self, body: BodySource, pacer: Pacer) -> None:
        self._body = body
        self._pacer = pacer
        self._sends_itself = True  # until send_to returns 0: then a large request would delay others for nothing
        self.length = body.length

    def read_into(self, position: int, out: memoryview) -> int:
        """Waits, then reads, less than `len(out)` where the rate is low."""
        count = self._pacer.piece_bytes(min(len(out), self.length - position))
        self._pacer.acquire(count)
        self._pacer.note_sent(count)
        return self._body.read_into(position, out[:count])

    def send_to(self, position: int, limit: int, fd: int, timeout_ms: int, rate: int = 0) -> int:
        """See send_some; the rate is the pacer's."""
        wanted = min(limit, self.length - position)
        rate = self._pacer.rate
        count = spread_bytes(wanted, rate) if self._sends_itself else self._pacer.piece_bytes(wanted)
        self._pacer.acquire(count)
        if not self._pacer.rate:  # lifted while other threads had their turn
            rate = 0
        sent = 0
        try:
            sent = send_some(self._body, position, count, fd, timeout_ms, rate)
        finally:
            self._pacer.give_back(count - sent)
        self._sends_itself = sent > 0
        if sent:
            self._pacer.note_sent(sent)
        return sent


def spread_bytes(wanted: int, rate: int) -> int:
    """How many of `wanted` bytes one call spreads evenly at `rate` (bytes per second, 0 for no limit)."""
    return _bytes_of(SPREAD_SECONDS, rate, wanted)


def _bytes_of(seconds: float, rate: float, wanted: int) -> int:
    """Bytes for so much time, at least PIECE_BYTES_MIN and at most `wanted`; all of it without a limit."""
    return min(wanted, max(int(rate * seconds), PIECE_BYTES_MIN)) if rate else wanted
