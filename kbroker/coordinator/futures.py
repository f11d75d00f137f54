"""One Future for the answers of several shards."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from kbroker.coordinator.result import complete


def gathered(futures: Sequence[Future[Any]]) -> Future[list[Any]]:
    """Done when all are, with their results in order. For futures that only the loop thread completes: no lock."""
    done: Future[list[Any]] = Future()
    remaining = len(futures)

    def one_done(_: Future[Any]) -> None:
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            complete(done, [future.result() for future in futures])

    for future in futures:
        future.add_done_callback(one_done)
    return done


def settled(futures: Sequence[Future[Any]]) -> Future[list[BaseException | None]]:
    """Done when all are, with the error of each in order (None: it has none). For futures of any thread."""
    done: Future[list[BaseException | None]] = Future()
    lock = threading.Lock()
    remaining = len(futures)

    def one_done(_: Future[Any]) -> None:
        nonlocal remaining
        with lock:
            remaining -= 1
            last = remaining == 0
        if last:
            complete(done, [future.exception() for future in futures])

    if not futures:
        done.set_result([])
    for future in futures:
        future.add_done_callback(one_done)
    return done
