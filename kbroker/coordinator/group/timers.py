"""Timers of members by group id and member id: a timer looks its member up when it fires."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from kbroker.coordinator.runtime.event_loop import Timer
from kbroker.coordinator.runtime.result import Operation, Result


class TimerKind(Enum):
    """What a member has failed to do when its timer fires."""

    SESSION = "session"  # send a heartbeat
    REVOCATION = "revocation"  # give up partitions
    JOIN = "join"  # rejoin (classic protocol)
    SYNC = "sync"  # call SyncGroup (classic protocol)


class MemberTimers:
    """The timers of one shard. Loop thread only, except `postpone` and `is_running`; a loading shard has none.

    A decision sets timers before its records are appended, so its member may not exist when a timer fires.
    """

    def __init__(self, schedule: Callable[[int, Operation], Timer]) -> None:
        self._schedule = schedule
        self._timers: dict[tuple[TimerKind, str, str], Timer] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def restart(self, kind: TimerKind, group_id: str, member_id: str, delay_ms: int, operation: Operation) -> None:
        """Schedules `operation` for `delay_ms` from now, in place of an earlier timer of the same kind."""
        key = kind, group_id, member_id
        timer = self._timers.get(key)
        if timer is not None:
            if kind is TimerKind.SESSION and timer.postpone(delay_ms / 1000):
                return
            timer.cancel()

        def fire() -> Result | None:
            del self._timers[key]  # its member may never have been added
            return operation()

        self._timers[key] = self._schedule(delay_ms, fire)

    def postpone(self, kind: TimerKind, group_id: str, member_id: str, delay_ms: int) -> bool:
        """Moves a running timer to `delay_ms` from now; False if it does not run, or would fire earlier. Any thread."""
        timer = self._timers.get((kind, group_id, member_id))
        return timer is not None and timer.postpone(delay_ms / 1000)

    def is_running(self, kind: TimerKind, group_id: str, member_id: str) -> bool:
        """True if the timer is set and has not fired yet."""
        timer = self._timers.get((kind, group_id, member_id))
        return timer is not None and timer.active

    def cancel(self, kind: TimerKind, group_id: str, member_id: str) -> None:
        """Cancels a timer, if it runs."""
        timer = self._timers.pop((kind, group_id, member_id), None)
        if timer is not None:
            timer.cancel()

    def cancel_member(self, group_id: str, member_id: str) -> None:
        """Cancels all timers of a removed member."""
        for kind in TimerKind:
            self.cancel(kind, group_id, member_id)
