"""Polling for what another thread or process does: the one place in the tests that sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable

FIRST_PAUSE_SECONDS = 0.001
PAUSE_SECONDS_MAX = 0.05


def until(
    holds: Callable[[], object],
    what: str | Callable[[], str],
    *,
    seconds: float = 60.0,
    retried: tuple[type[Exception], ...] = (),
) -> None:
    """Returns once `holds` returns something true; calls it again after any of the errors `retried`.

    Raises AssertionError, with `what` was missing, when it does not within `seconds`.
    """
    deadline = time.monotonic() + seconds
    pause = FIRST_PAUSE_SECONDS
    last: Exception | None = None
    while True:
        try:
            if holds():
                return
        except retried as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(f"no {what if isinstance(what, str) else what()} after {seconds} s") from last
        time.sleep(pause)
        pause = min(2 * pause, PAUSE_SECONDS_MAX)
