"""How long and how often an operation on the store is retried: exponential backoff with full jitter."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kbroker.clock import Clock, SystemClock


def _never_cancelled() -> Callable[[float], bool]:
    return threading.Event().wait


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Immutable; shared by many operations.

    ``wait(seconds)`` sleeps and returns True when cancelled: an ``Event.wait`` is one. The wait before attempt n is
    drawn between 0 and min(wait_max_s, first_wait_s * 2**n), so that many clients do not retry together.
    ``on_retry`` is called before each attempt but the first.
    """

    deadline_s: float | None = 30.0  # None: until cancelled
    first_wait_s: float = 0.1
    wait_max_s: float = 10.0
    clock: Clock = field(default_factory=SystemClock)
    wait: Callable[[float], bool] = field(default_factory=_never_cancelled)
    draw: Callable[[], float] = random.random  # uniform in [0, 1)
    on_retry: Callable[[], None] = lambda: None

    def attempts(self) -> Iterator[int]:
        """Yields 0, 1, ... with a wait between; ends when the deadline has passed or the wait was cancelled."""
        started = self.clock.monotonic()
        attempt = 0
        while True:
            yield attempt
            pause = self.draw() * min(self.wait_max_s, self.first_wait_s * 2.0 ** min(attempt, 60))
            if self.deadline_s is not None:
                left = started + self.deadline_s - self.clock.monotonic()
                if left <= 0:
                    return
                pause = min(pause, left)
            if self.wait(pause):
                return
            attempt += 1
            self.on_retry()
