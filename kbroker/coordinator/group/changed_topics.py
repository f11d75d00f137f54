"""Changes of topics on their way to the groups: those of a short time are one operation of each shard."""

from __future__ import annotations

import threading
from collections.abc import Callable


class ChangedTopics:
    """`post` queues a call for the loop thread, where `on_changed` is called. `_lock` protects the set."""

    def __init__(
        self, post: Callable[[Callable[[], None]], None], on_changed: Callable[[frozenset[str]], None]
    ) -> None:
        self._post = post
        self._on_changed = on_changed
        self._lock = threading.Lock()
        self._topics: set[str] = set()  # changed since the loop thread has looked

    def add(self, topic: str) -> None:
        """A topic has changed. Any thread."""
        with self._lock:
            is_first = not self._topics
            self._topics.add(topic)
        if is_first:
            self._post(self._look)

    def _look(self) -> None:
        with self._lock:
            topics, self._topics = frozenset(self._topics), set()
        self._on_changed(topics)
