"""Room for the log on its volume, and what is said while there is none.

A full volume is no failure of the log: what is flushed is given up, then appends wait until there is room.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kbroker.clock import Clock
from kbroker.log_throttle import UNTHROTTLED

log = logging.getLogger("kbroker.wal")

NO_ROOM_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
BUDGET_SECONDS = 2.0  # uploads that keep up free some of the budget within this time
REPEAT_SECONDS = 30.0  # between two lines about the same shortage

PREPARING, SEALING, COMMITTING = "preparing", "sealing", "committing"


def is_no_room(error: BaseException) -> bool:
    """Whether an error says that the volume, a quota or a file is full."""
    return isinstance(error, OSError) and error.errno in NO_ROOM_ERRORS


class LogVolume:
    """The volume that holds the log's folder. `reserve_bytes` of it are left free for other files than segments."""

    def __init__(self, folder: Path | str, reserve_bytes: int = 0) -> None:
        self._folder = os.fspath(folder)
        self.reserve_bytes = reserve_bytes

    def free_bytes(self) -> int:
        """Free for a process without privileges. Raises OSError."""
        status = os.statvfs(self._folder)
        return status.f_bavail * status.f_frsize

    def spare_bytes(self) -> int:
        """Free beside the reserve; negative when other files have taken some of that."""
        return self.free_bytes() - self.reserve_bytes

    def describe(self) -> str:
        """What is free, for a message."""
        try:
            return f"{self.free_bytes()} bytes are free on the volume of {self._folder}"
        except OSError as error:
            return f"{self._folder}: {error.strerror}"


class _Missing(NamedTuple):
    reason: str
    stops_appends: bool  # at once, whether or not one has come
    patience_s: float


class RoomShortage:
    """Why the log gets no more room, and whether appends wait for it. Thread-safe.

    Each of the log's steps (PREPARING, SEALING, COMMITTING) begins and ends its own. A shortage that appends wait for
    is logged when it begins, every REPEAT_SECONDS while it lasts, and when it ends; one that begins within
    REPEAT_SECONDS of the last line is only counted.
    """

    def __init__(self, clock: Clock, append_waits: Callable[[], int]) -> None:
        self._clock = clock
        self._append_waits = append_waits
        self._lock = threading.Lock()  # of everything below
        self._missing: dict[str, _Missing] = {}  # by step
        self._began_at = 0.0
        self._waits_before = 0
        self._counted = self._told = False  # this shortage: as one that appends wait for; in the log
        self._quiet_until = float("-inf")
        self._times = 0  # shortages since the last line

    @property
    def exists(self) -> bool:
        """True while a step has no room, whether or not appends wait for it yet."""
        return bool(self._missing)

    def lacks(self, step: str) -> bool:
        """Whether this step has no room."""
        return step in self._missing

    def begin(self, step: str, reason: str, *, stops_appends: bool = False, patience_s: float = 0.0) -> bool:
        """A step has no room now. It counts after `patience_s`, once an append had to wait or if it `stops_appends`.

        True when it had room before: appends that wait already should try again, so as to be counted.
        """
        with self._lock:
            is_new = not self._missing
            if is_new:
                self._began_at = self._clock.monotonic()
                self._waits_before = self._append_waits()
                self._counted = self._told = False
            self._missing[step] = _Missing(reason, stops_appends, patience_s)
            self._tell_locked()
        return is_new

    def end(self, step: str) -> None:
        """A step has found room, or needs none."""
        if not self.lacks(step):
            return
        with self._lock:
            self._missing.pop(step, None)
            if not self._missing and self._told:
                seconds = self._clock.monotonic() - self._began_at
                waits = self._append_waits() - self._waits_before
                text = "the log has room again after %.1f s, in which %d appends found none"
                log.warning(text, seconds, waits, extra=UNTHROTTLED)

    def waiting(self) -> str | None:
        """What appends wait for; None when they do not."""
        with self._lock:
            return self._waiting_locked()

    def _waiting_locked(self) -> str | None:
        seconds = self._clock.monotonic() - self._began_at
        for missing in self._missing.values():
            stopped = missing.stops_appends or self._append_waits() != self._waits_before
            if stopped and seconds >= missing.patience_s:
                return missing.reason
        return None

    def _tell_locked(self) -> None:
        reason, now = self._waiting_locked(), self._clock.monotonic()
        if reason is None:
            return
        self._times += not self._counted
        self._counted = True
        if now < self._quiet_until:
            return
        seconds, waits = now - self._began_at, self._append_waits() - self._waits_before
        times = f", {self._times} times since the last line" if self._times > 1 else ""
        text = "appends wait for room in the log for %.1f s%s, %d found none: %s"
        log.warning(text, seconds, times, waits, reason, extra=UNTHROTTLED)
        self._told, self._quiet_until, self._times = True, now + REPEAT_SECONDS, 0
