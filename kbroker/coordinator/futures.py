"""One Future for the answers of several shards."""

from __future__ import annotations

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
