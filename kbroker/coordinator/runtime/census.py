"""Counts over all shards of a coordinator, for metrics: the loop thread counts, so the state does not change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from kbroker.coordinator.runtime.request import Request
from kbroker.coordinator.runtime.result import Result, complete
from kbroker.coordinator.runtime.shard_runtime import S
from kbroker.coordinator.runtime.shard_set import ShardSet, identity
from kbroker.errors import ErrorCode


def census(shards: ShardSet[S], count: Callable[[S], Counter[Any]]) -> Future[Counter[Any]]:
    """The sum of what `count` says of each shard. One that is loading or blocked counts as empty."""
    done: Future[Counter[Any]] = Future()

    def add_up(parts: Future[list[Any]]) -> None:
        total: Counter[Any] = Counter()
        for part in parts.result():
            total.update(Counter() if isinstance(part, ErrorCode) else part)
        complete(done, total)

    def new_request() -> Request:
        return Request(lambda shard, future: Result(response=count(shard)), identity)

    shards.submit_to_all(new_request).add_done_callback(add_up)
    return done
