"""Waiting for several futures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from kbroker.coordinator.runtime.result import complete


def when_all(futures: Sequence[Future[Any]], act: Callable[[], None]) -> None:
    """Calls `act` once all are done or failed: on the thread that completes the last one, or here."""
    lock = threading.Lock()
    remaining = len(futures)

    def one_done(_: Future[Any]) -> None:
        nonlocal remaining
        with lock:
            remaining -= 1
            last = remaining == 0
        if last:
            act()

    if not futures:
        act()
    for future in futures:
        future.add_done_callback(one_done)


def gathered(futures: Sequence[Future[Any]]) -> Future[list[Any]]:
    """A future of all results, in order; none of the futures may fail."""
    done: Future[list[Any]] = Future()
    when_all(futures, lambda: complete(done, [future.result() for future in futures]))
    return done


def settled(futures: Sequence[Future[Any]]) -> Future[list[BaseException | None]]:
    """A future of the errors of all, in order (None: no error)."""
    done: Future[list[BaseException | None]] = Future()
    when_all(futures, lambda: complete(done, [future.exception() for future in futures]))
    return done
