"""Waiting for what another process does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PAUSE_SECONDS = 0.05
_pause = threading.Event()


def until(
    holds: Callable[[], object],
    what: str | Callable[[], str],
    *,
    seconds: float = 60.0,
    retried: tuple[type[Exception], ...] = (),
) -> None:
    """Asks until the answer is yes, or one of the errors that are `retried` no longer comes. Raises AssertionError."""
    deadline = time.monotonic() + seconds
    last: Exception | None = None
    while True:
        try:
            if holds():
                return
        except retried as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(f"no {what if isinstance(what, str) else what()} after {seconds} s") from last
        _pause.wait(PAUSE_SECONDS)
