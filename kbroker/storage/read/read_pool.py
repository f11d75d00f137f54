"""Threads for blocking reads: partitions take turns, and demand comes before read-ahead.

A read that a client waits for is *demand*: partitions take turns, and one partition has at most half of the threads.
Read-*ahead* starts only while no demand is queued, on at most half of the threads, and leaves one free for the next
demand.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
_Work = tuple[Future[Any], Callable[[], Any]]


class _FairQueue:
    """A queue per owner; owners in the order of their turns."""

    def __init__(self) -> None:
        self.length = 0
        self._queues: OrderedDict[Hashable, deque[_Work]] = OrderedDict()

    def add(self, owner: Hashable, work: _Work) -> None:
        self._queues.setdefault(owner, deque()).append(work)
        self.length += 1

    def take(self, allowed: Callable[[Hashable], bool]) -> tuple[Hashable, _Work] | None:
        """The oldest call of the first allowed owner, which then moves to the end."""
        owner = next((owner for owner in self._queues if allowed(owner)), None)
        if owner is None:
            return None
        queue = self._queues[owner]
        work = queue.popleft()
        if queue:
            self._queues.move_to_end(owner)
        else:
            del self._queues[owner]
        self.length -= 1
        return owner, work

    def clear(self) -> list[_Work]:
        dropped = [work for queue in self._queues.values() for work in queue]
        self._queues.clear()
        self.length = 0
        return dropped


class ReadPool:
    """Daemon threads, started on demand. One lock protects the queues and counts; no call runs under it."""

    def __init__(self, threads: int, name: str = "kbroker-cold-read") -> None:
        self._threads_max = max(1, threads)
        self._owner_max = self._ahead_max = max(1, self._threads_max // 2)
        self._name = name
        self._lock = threading.Lock()
        self._work_added = threading.Condition(self._lock)
        self._demand = _FairQueue()
        self._ahead = _FairQueue()
        self._running: Counter[Hashable] = Counter()  # demand, by owner
        self._running_total = 0
        self._ahead_running = 0
        self._threads = 0
        self._idle = 0
        self._closed = False

    @property
    def ahead_waiting(self) -> int:
        """Queued read-ahead calls."""
        return self._ahead.length

    def submit(self, owner: Hashable, call: Callable[[], T]) -> Future[T]:
        """Queues a demand call. Raises RuntimeError after `close`."""
        return self._add(self._demand, owner, call)

    def submit_ahead(self, owner: Hashable, call: Callable[[], T]) -> Future[T]:
        """Queues a read-ahead call. Raises RuntimeError after `close`."""
        return self._add(self._ahead, owner, call)

    def close(self) -> None:
        """Cancels queued calls; running ones end by themselves."""
        with self._lock:
            self._closed = True
            dropped = self._demand.clear() + self._ahead.clear()
            self._work_added.notify_all()
        for future, _ in dropped:
            future.cancel()

    def _add(self, turns: _FairQueue, owner: Hashable, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the pool is closed")
            turns.add(owner, (future, call))
            if self._idle:
                self._idle -= 1
                self._work_added.notify()
            elif self._threads < self._threads_max:
                self._threads += 1
                name = f"{self._name}_{self._threads}"
                threading.Thread(target=self._run, name=name, daemon=True).start()
        return future

    def _run(self) -> None:
        while True:
            with self._lock:
                while (taken := self._take_locked()) is None:
                    if self._closed:
                        return
                    self._idle += 1
                    self._work_added.wait()
            owner, (future, call), ahead = taken
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
            del future, call  # do not keep their memory until the next call
            with self._lock:
                self._ended_locked(owner, ahead)

    def _take_locked(self) -> tuple[Hashable, _Work, bool] | None:
        if (found := self._demand.take(self._may_run)) is not None:
            self._running[found[0]] += 1
            self._running_total += 1
            return (*found, False)
        room = self._threads_max - 1 or 1
        if self._ahead_running >= self._ahead_max or self._running_total + self._ahead_running >= room:
            return None
        if (found := self._ahead.take(lambda _: True)) is not None:
            self._ahead_running += 1
            return (*found, True)
        return None

    def _may_run(self, owner: Hashable) -> bool:
        return self._running[owner] < self._owner_max

    def _ended_locked(self, owner: Hashable, ahead: bool) -> None:
        if ahead:
            self._ahead_running -= 1
            return
        self._running_total -= 1
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]
