"""Creates a coordinator's internal topic when the first request needs it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor

from kbroker.coordinator.runtime.event_loop import EventLoop, loop_thread_only
from kbroker.coordinator.runtime.internal_topic import InternalTopic
from kbroker.coordinator.runtime.request import Request
from kbroker.errors import ErrorCode

logger = logging.getLogger(__name__)


class TopicCreation:
    """At most one creation at a time, and the requests that wait for it. Loop thread only.

    `open_topic` is called after each attempt; it returns whether the topic exists now.
    """

    def __init__(
        self, name: str, loop: EventLoop, executor: Executor, topic: InternalTopic, open_topic: Callable[[], bool]
    ) -> None:
        self._name = name
        self._loop = loop
        self._executor = executor
        self._topic = topic
        self._open_topic = open_topic
        self._running = False
        self._stopped = False
        self._waiting: list[tuple[Request, Callable[[], None]]] = []

    @loop_thread_only
    def wait(self, request: Request, resume: Callable[[], None]) -> None:
        """Calls `resume` once the topic exists; refuses the request if it could not be created."""
        if self._stopped:
            request.refuse(ErrorCode.NOT_COORDINATOR)
            return
        self._waiting.append((request, resume))
        if not self._running:
            self._running = True
            self._executor.submit(self._create)

    def stop(self) -> None:
        """Refuses what waits, and all that follows."""
        self._stopped = True
        waiting, self._waiting = self._waiting, []
        for request, _ in waiting:
            request.refuse(ErrorCode.NOT_COORDINATOR)

    def _create(self) -> None:
        """Worker thread."""
        try:
            self._topic.create()
        except Exception:
            logger.exception("%s: could not create the internal topic", self._name)
        self._loop.post(self._created)

    def _created(self) -> None:
        self._running = False
        waiting, self._waiting = self._waiting, []
        exists = self._open_topic()
        for request, resume in waiting:
            if exists:
                resume()
            else:
                request.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
