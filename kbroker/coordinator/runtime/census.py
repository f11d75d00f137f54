"""Counts over all shards of a coordinator, for metrics: the loop thread counts, so the state does not change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from kbroker.coordinator.runtime.request import Request
from kbroker.coordinator.runtime.result import Result
from kbroker.coordinator.runtime.shard_runtime import S
from kbroker.coordinator.runtime.shard_set import ShardSet, identity
from kbroker.errors import ErrorCode
from kbroker.futures import map_future


def census(shards: ShardSet[S], count: Callable[[S], Counter[Any]]) -> Future[Counter[Any]]:
    """The sum of what `count` says of each shard. One that is loading or blocked counts as empty."""

    def add_up(parts: list[Any]) -> Counter[Any]:
        total: Counter[Any] = Counter()
        for part in parts:
            total.update(Counter() if isinstance(part, ErrorCode) else part)
        return total

    def new_request() -> Request:
        return Request(lambda shard, future: Result(response=count(shard)), identity)

    return map_future(shards.submit_to_all(new_request), add_up)
