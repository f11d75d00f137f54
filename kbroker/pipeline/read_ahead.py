"""Loads ranges of objects on a few threads, ahead of the decoder, in reused memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, Protocol, TypeVar

import numpy as np

from kbroker.limits import MIB

WINDOW_BYTES = 4 * MIB  # one GET, unless a single batch is larger
THREADS = 4
AHEAD_PARTS = 3, 8  # of a task's memory; the rest is for decompression and columns


def memory_bytes_for(room_bytes: int, range_bytes: int) -> int:
    """The task memory that leaves `room_bytes` to the decoder of a range of this length."""
    part, parts = AHEAD_PARTS
    return max(-(-room_bytes * parts // (parts - part)), room_bytes + range_bytes)


class Sized(Protocol):
    """A range to load."""

    @property
    def length(self) -> int: ...


P = ParamSpec("P")
T = TypeVar("T")
W = TypeVar("W", bound=Sized)
Load = Callable[[W, memoryview], memoryview]


class ReadAhead:
    """The loads of one task, in order. Not thread-safe; its own threads run the loads.

    At most `ahead_bytes` are loaded or loading at a time, or one larger range.
    """

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self.ahead_bytes = memory_bytes * AHEAD_PARTS[0] // AHEAD_PARTS[1]
        self.held_bytes = 0  # in ranges that are loading, loaded or in use
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="kbroker-read")
        self._free: list[memoryview] = []

    def close(self) -> None:
        """Cancels loads that have not started, and waits for the others."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def room_bytes(self, range_bytes: int) -> int:
        """What is left of the task's memory for the decoder of a range of this length."""
        return self._memory_bytes - max(self.ahead_bytes, range_bytes)

    def submit(self, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> Future[T]:
        """Runs a small load on one of the threads; no bound counts it."""
        return self._pool.submit(call, *args, **named)

    def run(self, ranges: Iterator[W], load: Load[W]) -> Iterator[tuple[W, memoryview]]:
        """Yields each range and the result of its `load`, which is valid until the next iteration.

        `load` fills the memory it is given and returns the valid part. An error of `ranges` is raised once all earlier
        ranges were yielded.
        """
        running: deque[tuple[W, memoryview, Future[memoryview]]] = deque()
        deferred: Exception | None = None
        following: W | None = None
        ended = False
        try:
            while True:
                while not ended:
                    try:
                        following = following if following is not None else next(ranges)
                    except StopIteration:
                        ended = True
                    except Exception as error:
                        deferred, ended = error, True
                    else:
                        if running and self.held_bytes + following.length > self.ahead_bytes:
                            break
                        running.append(self._begin(following, load))
                        following = None
                if not running:
                    break
                found, memory, future = running.popleft()
                try:
                    yield found, future.result()
                finally:
                    self._release(memory)
        finally:
            for _, memory, future in running:  # not reused: a load may still be filling it
                future.cancel()
                self.held_bytes -= len(memory)
        if deferred is not None:
            raise deferred

    def _begin(self, wanted: W, load: Load[W]) -> tuple[W, memoryview, Future[memoryview]]:
        memory = self._take(wanted.length)
        return wanted, memory, self._pool.submit(load, wanted, memory[: wanted.length])

    def _take(self, length: int) -> memoryview:
        usual = length <= WINDOW_BYTES
        memory = self._free.pop() if usual and self._free else _block(WINDOW_BYTES if usual else length)
        self.held_bytes += len(memory)
        return memory

    def _release(self, memory: memoryview) -> None:
        self.held_bytes -= len(memory)
        if len(memory) == WINDOW_BYTES:
            self._free.append(memory)


def _block(length: int) -> memoryview:
    return memoryview(np.empty(length, np.uint8))  # type: ignore[arg-type]
