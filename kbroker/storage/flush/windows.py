"""The flush windows in progress: begun by one thread, committed by another, in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from kbroker.storage.flush.window import FlushWindow


class FlushWindows:
    """A queue, oldest first. Lock: `condition`, the flusher's own; never held while a window is committed or abandoned.

    When one window fails, all are abandoned, and none is added before `raise_failure` was called.
    """

    def __init__(self, condition: threading.Condition) -> None:
        self._condition = condition
        self._windows: deque[FlushWindow] = deque()
        self._failure: BaseException | None = None
        self._is_ended = False

    def __len__(self) -> int:
        return len(self._windows)

    def in_order(self) -> list[FlushWindow]:
        """A copy, oldest first."""
        with self._condition:
            return list(self._windows)

    def add(self, window: FlushWindow) -> bool:
        """Appends a window. False when an earlier one has failed: then the caller must abandon it."""
        with self._condition:
            if self._failure is not None:
                return False
            self._windows.append(window)
            self._condition.notify_all()
            return True

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
