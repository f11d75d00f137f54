"""Timers of the members of consumer groups, by name: what a timer is about is looked up when it fires."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbroker.coordinator.runtime.event_loop import Timer
    from kbroker.coordinator.runtime.result import Operation, Result


class TimerKind(Enum):
    """What a member has not done when its timer fires."""

    SESSION = "session"  # sent a heartbeat
    REVOCATION = "revocation"  # given up partitions
    JOIN = "join"  # joined again (classic protocol)
    SYNC = "sync"  # called SyncGroup (classic protocol)


class MemberTimers:
    """The timers of one shard. Loop thread only, but for `postpone`; in a shard that is loading there are none.

    Timers are set by decisions, also those whose records are refused in the end: what fires looks again.
    """

    def __init__(self, schedule: Callable[[int, Operation], Timer]) -> None:
        self._schedule = schedule
        self._timers: dict[tuple[TimerKind, str, str], Timer] = {}

    def restart(self, kind: TimerKind, group_id: str, member_id: str, delay_ms: int, operation: Operation) -> None:
        """Makes `operation` run `delay_ms` from now, instead of when it was to run before."""
        key = kind, group_id, member_id
        timer = self._timers.get(key)
        if timer is not None:
            if kind is TimerKind.SESSION and timer.postpone(delay_ms / 1000):
                return
            timer.cancel()

        def fire() -> Result | None:
            del self._timers[key]  # its member may never have come to be
            return operation()

        self._timers[key] = self._schedule(delay_ms, fire)

    def postpone(self, kind: TimerKind, group_id: str, member_id: str, delay_ms: int) -> bool:
        """Moves a timer that is set to `delay_ms` from now; False if it is not, or would move closer. Any thread."""
        timer = self._timers.get((kind, group_id, member_id))
        return timer is not None and timer.postpone(delay_ms / 1000)

    def is_running(self, kind: TimerKind, group_id: str, member_id: str) -> bool:
        """True if the timer is set and has not fired."""
        timer = self._timers.get((kind, group_id, member_id))
        return timer is not None and timer.active

    def cancel(self, kind: TimerKind, group_id: str, member_id: str) -> None:
        """Makes the timer not fire."""
        timer = self._timers.pop((kind, group_id, member_id), None)
        if timer is not None:
            timer.cancel()

    def cancel_member(self, group_id: str, member_id: str) -> None:
        """Ends all timers of a member that is gone."""
        for kind in TimerKind:
            self.cancel(kind, group_id, member_id)
