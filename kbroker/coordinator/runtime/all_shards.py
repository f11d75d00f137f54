"""Operations on all shards of a coordinator that are led here."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from kbroker.coordinator.runtime.request import Request
from kbroker.coordinator.runtime.result import Result
from kbroker.coordinator.runtime.shard_runtime import S, ShardState
from kbroker.coordinator.runtime.shard_set import ShardSet, identity
from kbroker.errors import ErrorCode
from kbroker.futures import map_future


def list_all(shards: ShardSet[S], run: Callable[[S], Result]) -> Future[list[Any] | ErrorCode]:
    """What `run` lists of each shard that is led here, as one list; or the first error."""

    def merge(parts: list[Any]) -> list[Any] | ErrorCode:
        errors = [part for part in parts if isinstance(part, ErrorCode)]
        return errors[0] if errors else [listed for part in parts for listed in part]

    def new_request() -> Request:
        return Request(lambda shard, future: run(shard), identity, is_read=True)

    return map_future(shards.submit_to_led(new_request), merge)


def run_on_active(shards: ShardSet[S], run: Callable[[S], Result], *, is_internal: bool = False) -> None:
    """Runs an operation without an answer on each shard that is loaded. Loop thread only."""
    for runtime in shards.runtimes:
        if runtime.state is ShardState.ACTIVE:
            runtime.submit(Request(lambda shard, future: run(shard), no_response, is_internal=is_internal))


def run_every(shards: ShardSet[S], interval_ms: int, run: Callable[[S], Result]) -> None:
    """Runs `run_on_active` again and again, first after one interval. Loop thread only."""

    def due() -> None:
        run_on_active(shards, run)
        run_every(shards, interval_ms, run)

    shards.loop.call_later(interval_ms / 1000, due)


def no_response(error: ErrorCode) -> None:
    """The error response of requests that answer nothing."""
    return
