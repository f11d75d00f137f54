"""Operations that run one at a time, each on a thread of its own that stops at every request to the store.

A thread is only a place to keep a half-done operation: exactly one of all threads runs, from `resume` until it pauses
or ends, so a history is decided by its seed alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class Killed(BaseException):
    """The process of this operation has died: the operation does not continue."""


class Task:
    """An operation in progress. `paused_at` is the request that it waits to make; None when it has ended."""

    running: Task | None = None  # the one that runs now; None: the scheduler

    def __init__(self, name: str, work: Callable[[], Any]) -> None:
        self.name = name
        self.paused_at: Any = None
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None
        self._work = work
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._go.acquire()
        try:
            self.result = self._work()
        except BaseException as error:  # raised in the thread that resumed it
            self.error = error
        self.done = True
        self.paused_at = None
        self._back.release()

    def resume(self) -> bool:
        """Lets it run to its next request; True when it has ended."""
        Task.running = self
        self._go.release()
        arrived = self._back.acquire(timeout=60)
        Task.running = None
        assert arrived, f"{self.name} waits for something that is not the store; it was at {self.paused_at}"
        if self.done:
            self._thread.join()
        return self.done

    def pause(self, point: Any) -> None:
        """Called by the operation: others run now, until it is resumed."""
        self.paused_at = point
        self._back.release()
        self._go.acquire()
        self.paused_at = None


class InlineExecutor(Executor):
    """Runs what is submitted at once, on the thread that submits it."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Killed:
            raise
        except BaseException as error:
            future.set_exception(error)
        return future
