"""Requests to a shard, and bounded queues of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from kbroker.coordinator.runtime.config import ShardConfig
from kbroker.coordinator.runtime.result import Result, complete
from kbroker.errors import ErrorCode


@dataclass(slots=True)
class Request:
    """One operation on a shard, and how to answer it."""

    run: Callable[[Any, Future], Result | None]  # the shard, the request's future
    error_response: Callable[[ErrorCode], Any]
    future: Future = field(default_factory=Future)
    needs_topic: bool = False  # may write: the internal topic is created first
    is_read: bool = False  # its answer shows state, so it waits for earlier writes
    waits_for_load: bool = False  # kept while the shard loads, instead of being refused
    is_internal: bool = False  # no client retries it: it counts in no queue's bound and waits for space without limit
    give_up_at: float = 0.0  # monotonic seconds: when its wait in queues ends; 0: it has not waited

    def refuse(self, error: ErrorCode) -> None:
        """Answers it with an error."""
        complete(self.future, self.error_response(error))


def internal(run: Callable[[Any, Future], Result | None]) -> Request:
    """A request of the coordinator to itself."""
    return Request(run, lambda error: None, is_internal=True)


class RequestQueue:
    """Requests that wait, in order of arrival: a bounded number, each for a bounded time.

    Loop thread only; other threads read its length and `refused`.
    """

    def __init__(self, config: ShardConfig, monotonic: Callable[[], float], error: ErrorCode) -> None:
        """`error` is for requests that find the queue full or wait too long."""
        self._config = config
        self._monotonic = monotonic
        self._error = error
        self._requests: deque[Request] = deque()
        self.refused = 0

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request) -> None:
        """Appends a request, or refuses it if the queue is full."""
        if len(self._requests) >= self._config.backlog_max and not request.is_internal:
            self._refuse(request)
            return
        if not request.give_up_at:
            request.give_up_at = self._monotonic() + self._config.append_timeout_ms / 1000
        self._requests.append(request)

    def pop(self) -> Request:
        """Removes the oldest request."""
        return self._requests.popleft()

    def drain(self) -> list[Request]:
        """Removes all requests."""
        requests = list(self._requests)
        self._requests.clear()
        return requests

    def refuse_overdue(self) -> None:
        """Refuses requests that have waited too long."""
        now, requests = self._monotonic(), self._requests
        kept = []
        while requests and (requests[0].is_internal or requests[0].give_up_at <= now):
            request = requests.popleft()
            if request.is_internal:
                kept.append(request)
            else:
                self._refuse(request)
        requests.extendleft(reversed(kept))

    def _refuse(self, request: Request) -> None:
        self.refused += 1
        request.refuse(self._error)
