"""Operations of simulated processes that wait: each is a greenlet, which stops where it waits for the store or a lock.

Exactly one greenlet runs at a time, until it waits or ends, so a history is decided by its seed alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

Resume = Callable[[Any], None]  # called with the result; an exception is raised where the operation waits


class Task(greenlet):
    """An operation in progress. An exception that ends it is raised in the scheduler's step that resumed it."""

    def __init__(self, work: Callable[[], Any], main: greenlet) -> None:
        super().__init__(work, main)

    def resume(self, result: Any) -> None:
        """Continues it from the scheduler, to its next wait or its end. Nothing happens when it has ended."""
        if not self.dead:
            self.switch(result)

    def kill(self) -> None:
        """Its process has died: it does not continue."""
        if self:
            self.throw(GreenletExit)


def running() -> Task | None:
    """The operation that runs now; None: the scheduler."""
    current = getcurrent()
    return current if isinstance(current, Task) else None


def wait(enqueue: Callable[[Resume], None]) -> Any:
    """Others run until the function that `enqueue` gets is called. Only in an operation."""
    task = running()
    assert task is not None, "the scheduler itself would wait"
    enqueue(task.resume)
    result = task.parent.switch()
    if isinstance(result, BaseException):
        raise result
    return result


class Lock:
    """Takes the place of threading.Lock in modules that hold one during requests: a waiting operation lets others run.

    Those that wait get it in the order in which they came, each in a step of the scheduler.
    """

    later: Callable[[Callable[[], None]], None]  # of the running history: makes a call a step of the scheduler

    def __init__(self) -> None:
        self._held = False
        self._waiting: list[Resume] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As of a lock; a time-out never comes."""
        if self._held:
            if not blocking:
                return False
            wait(self._waiting.append)  # `release` leaves it held, for this operation
        self._held = True
        return True

    def release(self) -> None:
        """As of a lock."""
        if self._waiting:
            resume = self._waiting.pop(0)
            Lock.later(lambda: resume(None))
        else:
            self._held = False

    def locked(self) -> bool:
        """As of a lock."""
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
