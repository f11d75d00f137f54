"""The windows under way: begun by one thread, made true by another, in order; with one that fails all behind it end."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from kbroker.storage.flush.window import FlushWindow


class FlushLine:
    """Oldest first. Lock: `condition`, the flusher's own; it is never held while a window is finished or given up.

    What ends the line is raised by `raise_failure`, on the thread that begins windows; none joins before.
    """

    def __init__(self, condition: threading.Condition) -> None:
        self._condition = condition
        self._windows: deque[FlushWindow] = deque()
        self._failure: BaseException | None = None
        self._is_ended = False

    def __len__(self) -> int:
        return len(self._windows)

    def windows(self) -> list[FlushWindow]:
        """Those under way now."""
        with self._condition:
            return list(self._windows)

    def join(self, window: FlushWindow) -> bool:
        """Puts a window behind the others. False: what is ahead of it did not become true, so it must be given up."""
        with self._condition:
            if self._failure is not None:
                return False
            self._windows.append(window)
            self._condition.notify_all()
            return True

    def leave(self) -> None:
        """The first is true."""
        with self._condition:
            self._windows.popleft()
            self._condition.notify_all()

    def give_up(self, failure: BaseException) -> None:
        """Gives up all: what comes behind a window that failed must not become true."""
        with self._condition:
            self._failure = failure
            windows = list(self._windows)
        for window in windows:
            window.abandon()
        with self._condition:
            self._windows.clear()
            self._condition.notify_all()

    def wait_until_empty(self) -> None:
        """Until all are true or given up."""
        with self._condition:
            self._condition.wait_for(lambda: not self._windows)

    def raise_failure(self) -> None:
        """What ended the line, once it is empty; from now on windows may join again."""
        with self._condition:
            if self._failure is None:
                return
            self.wait_until_empty()
            failure, self._failure = self._failure, None
        raise failure

    def run(self, finish: Callable[[FlushWindow], None], wake: Callable[[], None]) -> None:
        """Finishes one window after another, until `end` was called and none is left; `wake` is called after each."""
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._windows or self._is_ended)
                if not self._windows:
                    return
                window = self._windows[0]
            try:
                finish(window)
            except BaseException as error:
                self.give_up(error)
            else:
                self.leave()
            wake()

    def end(self) -> None:
        """No window joins any more."""
        with self._condition:
            self._is_ended = True
            self._condition.notify_all()
