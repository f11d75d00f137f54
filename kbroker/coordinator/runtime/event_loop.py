"""The coordinator's one thread: a queue of operations and a heap of timers.

Only the thread that runs the loop changes coordinator state, so the state has no locks. Other threads may read single
values of it and postpone timers. Tests run the loop by hand (`run_pending`) with a manual clock and no thread.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from kbroker._fast.base.invariant import DEBUG_BUILD
from kbroker.clock import Clock

logger = logging.getLogger(__name__)

Callback = Callable[[], object]  # the result is ignored
Method = TypeVar("Method", bound=Callable[..., Any])

_COMPACT_ABOVE = 1_024  # cancelled timers kept in the heap before it is rebuilt without them
_IDLE_WAIT_SECONDS = 3_600.0


def loop_thread_only(method: Method) -> Method:
    """Marks a method of a loop, or of an object with `loop` or `_loop`: the debug build asserts the thread."""
    return asserting_thread(method) if DEBUG_BUILD else method


def asserting_thread(method: Method) -> Method:
    """The method, which raises AssertionError if its object's loop has a thread and another one calls it."""

    @wraps(method)
    def asserting(self: Any, *args: Any, **keywords: Any) -> Any:
        loop = self if isinstance(self, EventLoop) else self.loop if hasattr(self, "loop") else self._loop
        assert loop.is_current, f"{method.__qualname__} was called by {threading.current_thread().name}"
        return method(self, *args, **keywords)

    return asserting  # type: ignore[return-value]


class Timer:
    """One scheduled call, in `owned`, if given, while it is active. Loop thread only, except `postpone`."""

    __slots__ = ("_loop", "_owned", "callback", "cancelled", "deadline", "queued_deadline")

    def __init__(self, loop: EventLoop, deadline: float, callback: Callback, owned: set[Timer] | None = None) -> None:
        self._loop = loop
        self._owned = owned
        self.callback: Callback | None = callback
        if owned is not None:
            owned.add(self)
        self.cancelled = False  # also set after it fired: an operation that queued since then checks it
        self.deadline = deadline  # monotonic seconds
        self.queued_deadline = deadline  # its place in the heap; never later than `deadline`

    @property
    def active(self) -> bool:
        """True until it fired or was cancelled."""
        return self.callback is not None

    @loop_thread_only
    def cancel(self) -> None:
        """Prevents it from firing."""
        self.cancelled = True
        if self.end() is not None:
            self._loop.note_cancelled()

    def end(self) -> Callback | None:
        """Makes it inactive; returns what it was to call, None if it was inactive."""
        callback, self.callback = self.callback, None
        if self._owned is not None:
            self._owned.discard(self)
        return callback

    def postpone(self, delay_seconds: float) -> bool:
        """Moves the deadline to `delay_seconds` from now; False if it is not active or would move closer.

        Any thread. Only a number changes: a heartbeat must not cost a heap operation. A timer that is about to fire
        may miss it.
        """
        deadline = self._loop.monotonic() + delay_seconds
        if self.callback is None or deadline < self.queued_deadline:
            return False
        self.deadline = deadline
        return True


class EventLoop:
    """Runs posted callbacks in order, and timers when they are due."""

    def __init__(self, clock: Clock, name: str = "group-coordinator") -> None:
        self._clock = clock
        self._name = name
        self._queue: queue.SimpleQueue[Callback | None] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, Timer]] = []
        self._sequence = itertools.count()
        self._cancelled = 0
        self._thread: threading.Thread | None = None

    def monotonic(self) -> float:
        """The loop's time, in seconds."""
        return self._clock.monotonic()

    def post(self, callback: Callback) -> None:
        """Queues `callback` for the loop thread. Any thread."""
        self._queue.put(callback)

    @property
    def is_current(self) -> bool:
        """True on the loop's thread, and on all while it has none: then the loop is run by hand. Any thread."""
        return self._thread is None or self._thread is threading.current_thread()

    @property
    def queue_length(self) -> int:
        """Callbacks that were posted and have not run yet. Any thread."""
        return self._queue.qsize()

    @property
    def timer_count(self) -> int:
        """Timers that are kept; some of them may be cancelled. Any thread."""
        return len(self._timers)

    @loop_thread_only
    def call_later(self, delay_seconds: float, callback: Callback, owned: set[Timer] | None = None) -> Timer:
        """Schedules `callback`. The timer is in `owned` until it fires or is cancelled. Loop thread only."""
        timer = Timer(self, self.monotonic() + delay_seconds, callback, owned)
        self._push(timer)
        return timer

    def start(self) -> None:
        """Starts the thread."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Runs what was posted before this call, then ends the thread. Timers are dropped."""
        if self._thread is None:
            self.run_pending()
            return
        self._queue.put(None)
        self._thread.join()
        self._thread = None

    def run_pending(self) -> None:
        """Runs all that is posted or due now, and what that posts or makes due in turn. For tests and for stop."""
        while True:
            try:
                callback = self._queue.get_nowait()
            except queue.Empty:
                if not self._run_due_timer(self.monotonic()):
                    return
                continue
            if callback is not None:
                self._call(callback)

    def note_cancelled(self) -> None:
        """A timer was cancelled: drops cancelled timers when they are most of the heap."""
        self._cancelled += 1
        if self._cancelled > _COMPACT_ABOVE and self._cancelled * 2 > len(self._timers):
            self._timers = [entry for entry in self._timers if entry[2].callback is not None]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def _run(self) -> None:
        while True:
            now = self.monotonic()
            while self._run_due_timer(now):  # not the timers that they set: posted callbacks come first
                pass
            try:
                callback = self._queue.get(timeout=self.seconds_to_next_timer())
            except queue.Empty:
                continue
            if callback is None:
                return
            self._call(callback)

    def seconds_to_next_timer(self) -> float:
        """The time until the next timer is due, at most as long as a thread can wait."""
        if not self._timers:
            return _IDLE_WAIT_SECONDS
        return min(max(0.0, self._timers[0][0] - self.monotonic()), threading.TIMEOUT_MAX)

    def _push(self, timer: Timer) -> None:
        deadline = timer.deadline  # read once: another thread may postpone it
        timer.queued_deadline = deadline
        heapq.heappush(self._timers, (deadline, next(self._sequence), timer))

    def _run_due_timer(self, now: float) -> bool:
        """Runs one timer that is due at `now`, or requeues a postponed one. False if none is due."""
        if not self._timers or self._timers[0][0] > now:
            return False
        timer = heapq.heappop(self._timers)[2]
        callback = timer.callback
        if callback is None:
            self._cancelled = max(0, self._cancelled - 1)
        elif timer.deadline > now:
            self._push(timer)
        else:
            timer.end()
            self._call(callback)
        return True

    def _call(self, callback: Callback) -> None:
        try:
            callback()
        except Exception:
            # A bug in one operation must not end the thread that serves every group.
            logger.exception("coordinator operation failed")
