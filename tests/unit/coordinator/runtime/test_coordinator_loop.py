import threading
from concurrent.futures import Future

import pytest

from kbroker.clock import ManualClock, SystemClock
from kbroker.coordinator.runtime.event_loop import EventLoop, asserting_thread


def test_postponed_timer_fires_once_at_the_new_time() -> None:
    clock = ManualClock()
    loop = EventLoop(clock)
    fired: list[float] = []
    timer = loop.call_later(10, lambda: fired.append(clock.monotonic()))
    clock.advance(9)
    assert timer.postpone(10)
    clock.advance(9)
    loop.run_pending()
    assert not fired
    clock.advance(1)
    loop.run_pending()
    assert len(fired) == 1
    assert not timer.active
    assert not timer.postpone(10)


def test_timer_cannot_be_moved_closer() -> None:
    loop = EventLoop(ManualClock())
    timer = loop.call_later(10, lambda: None)
    assert not timer.postpone(5)
    assert timer.deadline - loop.monotonic() == 10


def test_cancelled_timers_do_not_pile_up() -> None:
    clock = ManualClock()
    loop = EventLoop(clock)
    fired: list[int] = []
    loop.call_later(1_000, lambda: fired.append(1))
    for _ in range(10_000):
        loop.call_later(300, lambda: None).cancel()
    assert loop.timer_count < 3_000
    clock.advance(1_000)
    loop.run_pending()
    assert fired == [1]


def test_a_failing_callback_does_not_stop_the_others() -> None:
    loop = EventLoop(ManualClock())
    done: list[int] = []

    def fail() -> None:
        raise RuntimeError("broken")

    loop.post(fail)
    loop.post(lambda: done.append(1))
    loop.run_pending()
    assert done == [1]


def test_the_thread_runs_callbacks_and_timers_and_stop_drains_the_queue() -> None:
    loop = EventLoop(SystemClock())
    loop.start()
    ran = threading.Event()
    loop.post(lambda: loop.call_later(0, ran.set) and None)
    assert ran.wait(5)
    last = threading.Event()
    loop.post(last.set)
    loop.stop()
    assert last.is_set()


def test_a_timer_that_sets_itself_again_does_not_starve_posted_callbacks() -> None:
    loop = EventLoop(SystemClock())
    stopped = threading.Event()

    def again() -> None:
        if not stopped.is_set():
            loop.call_later(0, again)

    loop.post(again)
    loop.start()
    ran = threading.Event()
    loop.post(ran.set)
    answered = ran.wait(5)
    stopped.set()
    loop.stop()
    assert answered


def test_a_timer_that_is_never_due_leaves_the_thread_alive() -> None:
    loop = EventLoop(SystemClock())
    loop.call_later((2**63 - 1) / 1000, lambda: None)  # offsets.retention.check.interval.ms at its highest
    loop.start()
    for _ in range(2):  # after the second one the thread has waited for the timer
        ran = threading.Event()
        loop.post(ran.set)
        assert ran.wait(5)
    loop.stop()


def test_the_debug_build_finds_calls_on_a_wrong_thread() -> None:
    class Owner:
        def __init__(self) -> None:
            self.loop = EventLoop(SystemClock())

        @asserting_thread
        def call(self) -> bool:
            return True

    owner = Owner()
    assert owner.call()  # the loop is run by hand
    owner.loop.start()
    with pytest.raises(AssertionError, match="MainThread"):
        owner.call()
    called: Future[bool] = Future()
    owner.loop.post(lambda: called.set_result(owner.call()))
    assert called.result(5)
    owner.loop.stop()
    assert owner.call()
