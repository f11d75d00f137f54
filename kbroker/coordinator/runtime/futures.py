"""One Future for the answers of several."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from kbroker.coordinator.runtime.result import complete


def when_all(futures: Sequence[Future[Any]], act: Callable[[], None]) -> None:
    """Calls `act` once all are done, however they ended: on the thread that completes the last, or here."""
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
    """Done when all are, with their results in order; none of them may fail."""
    done: Future[list[Any]] = Future()
    when_all(futures, lambda: complete(done, [future.result() for future in futures]))
    return done


def settled(futures: Sequence[Future[Any]]) -> Future[list[BaseException | None]]:
    """Done when all are, with the error of each in order (None: it has none)."""
    done: Future[list[BaseException | None]] = Future()
    when_all(futures, lambda: complete(done, [future.exception() for future in futures]))
    return done
