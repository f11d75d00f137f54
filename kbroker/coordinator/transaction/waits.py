"""Requests that wait briefly for a transaction's markers, instead of being refused with a retriable error."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kbroker.coordinator.runtime.event_loop import Timer
from kbroker.coordinator.runtime.shard import Scheduler
from kbroker.errors import ErrorCode


class _Wait(NamedTuple):
    again: Callable[[], None]
    refuse: Callable[[ErrorCode], None]
    timer: Timer


class CompletionWaits:
    """The waiting requests of one shard, by transactional id. Loop thread only.

    `post` queues a call for the loop thread: requests restart from there, not in the middle of a replay.
    """

    def __init__(self, post: Callable[[Callable[[], None]], None]) -> None:
        self._post = post
        self._waits: dict[str, list[_Wait]] = {}

    def park(
        self,
        transactional_id: str,
        scheduler: Scheduler,
        wait_ms: int,
        again: Callable[[], None],
        refuse: Callable[[ErrorCode], None],
    ) -> None:
        """Calls `again` when the transaction is complete, or `refuse` if that takes longer than `wait_ms`."""

        def too_long() -> None:
            waits = self._waits.get(transactional_id, [])
            if wait in waits:
                waits.remove(wait)
                refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
            if not waits:
                self._waits.pop(transactional_id, None)

        wait = _Wait(again, refuse, scheduler.schedule(wait_ms, too_long))
        self._waits.setdefault(transactional_id, []).append(wait)

    def resume(self, transactional_id: str) -> None:
        """The transaction is complete."""
        for wait in self._waits.pop(transactional_id, ()):
            wait.timer.cancel()
            self._post(wait.again)

    def refuse_all(self, error: ErrorCode) -> None:
        """Refuses all waiting requests."""
        waits, self._waits = self._waits, {}
        for parked in waits.values():
            for wait in parked:
                wait.timer.cancel()
                wait.refuse(error)
