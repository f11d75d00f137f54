"""Whether the object store works, as seen by the broker's own requests."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from datetime import UTC, datetime

from kbroker.clock import Clock
from kbroker.log_throttle import INTERVAL_SECONDS, UNTHROTTLED

logger = logging.getLogger(__name__)

# Errors that mean that the store is away, overloaded or denies access. The others are answers.
_UNAVAILABLE = {"StoreUnavailable", "StoreFull", "StoreDenied"}
FORGOTTEN_SECONDS = 120.0  # after its last failure an outage ends if nothing retries that kind of request
_READS = {"get", "head", "list", "list_multipart"}


@dataclass(slots=True)
class _Outage:
    """Of reads or of writes: a success ends its own kind's, and the other kind's if nothing retries that."""

    failures: int = 0
    since_ms: int = 0
    failed_at: float = 0.0


class StoreHealth:
    """Counts the outcome of every request. Thread-safe. Logs when an outage begins and when it ends.

    Beginnings are logged at most every INTERVAL_SECONDS; each logged outage also logs its end.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards the fields below
        self._reads, self._writes = _Outage(), _Outage()
        self._logged = False
        self._logged_at: float | None = None

    @property
    def consecutive_failures(self) -> int:
        """Reads or writes, whichever are more, that failed since one succeeded."""
        return max(self._reads.failures, self._writes.failures)

    @property
    def unavailable_since(self) -> str | None:
        """The time of the first of these failures, in ISO 8601; None while the store answers."""
        with self._lock:
            failing = [outage.since_ms for outage in (self._reads, self._writes) if outage.failures]
        return _iso(min(failing)) if failing else None

    def note(self, operation: str, error: str | None) -> None:
        """One request's outcome: the name of its error's class, or None."""
        failed = error in _UNAVAILABLE
        outage, other = (self._reads, self._writes) if operation in _READS else (self._writes, self._reads)
        if not (failed or outage.failures or other.failures):
            return  # nearly always, and without the lock
        now = self._clock.monotonic()
        with self._lock:
            if not failed:
                ended = [outage] + ([other] if now - other.failed_at >= FORGOTTEN_SECONDS else [])
                failures = sum(each.failures for each in ended)
                since = _iso(min((each.since_ms for each in ended if each.failures), default=0))
                for each in ended:
                    each.failures = 0
                if not self._logged or outage.failures or other.failures:
                    return
                self._logged = False
            else:
                if not outage.failures:
                    outage.since_ms = self._clock.now_ms()
                outage.failures += 1
                outage.failed_at = now
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
