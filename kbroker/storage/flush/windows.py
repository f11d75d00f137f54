"""The flush windows in progress: begun by one thread, committed by another, in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from kbroker.storage.flush.window import FlushWindow

PLAN_SECONDS = 5.0  # more than a plan takes


class FlushWindows:
    """A queue, oldest first, and the window that is planned and built before it joins the queue.

    When one window fails, all are abandoned, and none is added before `raise_failure` was called. Thread-safe.
    Lock: `condition`, shared with the flusher; never held while a window is committed or abandoned.
    """

    def __init__(self, condition: threading.Condition) -> None:
        self.most = 0  # windows at a time since the start
        self._condition = condition
        self._windows: deque[FlushWindow] = deque()
        self._building: frozenset[str] | None = frozenset()  # see note_building
        self._failure: BaseException | None = None
        self._is_ended = False

    def __len__(self) -> int:
        return len(self._windows)

    def in_order(self) -> list[FlushWindow]:
        """A copy, oldest first."""
        with self._condition:
            return list(self._windows)

    def note_building(self, topics: frozenset[str] | None) -> None:
        """Sets the topics of which the window that is built has segments; None while it is planned."""
        with self._condition:
            self._building = topics
            self._condition.notify_all()

    def add(self, window: FlushWindow) -> bool:
        """Appends the window that was built. False when an earlier one has failed: the caller must abandon it."""
        with self._condition:
            self._building = frozenset()
            self._condition.notify_all()
            if self._failure is not None:
                return False
            self._windows.append(window)
            self.most = max(self.most, len(self._windows))
            return True

    def writes_segments(self, topic: str) -> bool:
        """True while a flush may be storing segments of a topic of this name, even of a deleted one."""
        with self._condition:
            self._condition.wait_for(lambda: self._building is not None, PLAN_SECONDS)
            return (
                self._building is None
                or topic in self._building
                or any(topic in window.segment_topics for window in self._windows)
            )

    def remove_first(self) -> None:
        """The first is committed."""
        with self._condition:
            self._windows.popleft()
            self._condition.notify_all()

    def abandon(self, failure: BaseException) -> None:
        """Abandons all: after a failed window no later one may be committed."""
        with self._condition:
            self._failure = failure
            windows = list(self._windows)
        for window in windows:
            window.abandon()
        with self._condition:
            self._windows.clear()
            self._condition.notify_all()

    def wait_until_empty(self) -> None:
        """Returns when all are committed or abandoned."""
        with self._condition:
            self._condition.wait_for(lambda: not self._windows)

    def raise_failure(self) -> None:
        """Raises the failure, if there is one, once all windows are abandoned; then windows may be added again."""
        with self._condition:
            if self._failure is None:
                return
            self.wait_until_empty()
            failure, self._failure = self._failure, None
        raise failure

    def run(self, commit: Callable[[FlushWindow], None], wake: Callable[[], None]) -> None:
        """Commits one window after another until `end` was called and none is left; calls `wake` after each."""
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._windows or self._is_ended)
                if not self._windows:
                    return
                window = self._windows[0]
            try:
                commit(window)
            except BaseException as error:
                self.abandon(error)
            else:
                self.remove_first()
            wake()

    def end(self) -> None:
        """No window is added any more."""
        with self._condition:
            self._is_ended = True
            self._condition.notify_all()
