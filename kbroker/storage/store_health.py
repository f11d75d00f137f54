"""Whether the object store does what it is asked, as the broker's own requests show it."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime

from kbroker.clock import Clock
from kbroker.log_throttle import INTERVAL_SECONDS, UNTHROTTLED

logger = logging.getLogger(__name__)

# Errors that say that the store is away, overloaded or closed to us. The others are answers.
_UNAVAILABLE = {"StoreUnavailable", "StoreDenied"}


class StoreHealth:
    """Told of every request's outcome, from many threads. Logs a line when an outage begins and when it ends.

    A store that fails now and then begins an outage in the log at most every INTERVAL_SECONDS; each one that was
    logged is also logged to have ended.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards the fields below
        self._failures = 0
        self._since_ms = 0
        self._logged = False
        self._logged_at: float | None = None

    @property
    def consecutive_failures(self) -> int:
        """Requests that failed since one succeeded."""
        return self._failures

    @property
    def unavailable_since(self) -> str | None:
        """The time of the first of these failures, in ISO 8601; None while the store answers."""
        with self._lock:
            return _iso(self._since_ms) if self._failures else None

    def note(self, operation: str, error: str | None) -> None:
        """One request's outcome: the name of its error's class, or None."""
        failed = error in _UNAVAILABLE
        if not failed and not self._failures:
            return  # nearly always, and without the lock
        with self._lock:
            if not failed:
                since, failures, self._failures = _iso(self._since_ms), self._failures, 0
                if not self._logged:
                    return
                self._logged = False
            else:
                if not self._failures:
                    self._since_ms = self._clock.now_ms()
                self._failures += 1
                now = self._clock.monotonic()
                if self._logged or (self._logged_at is not None and now - self._logged_at < INTERVAL_SECONDS):
                    return
                self._logged, self._logged_at = True, now
        if failed:
            logger.warning("the object store is unavailable: %s failed (%s)", operation, error, extra=UNTHROTTLED)
        else:
            logger.warning(
                "the object store answers again: unavailable since %s, %d failures", since, failures, extra=UNTHROTTLED
            )


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
