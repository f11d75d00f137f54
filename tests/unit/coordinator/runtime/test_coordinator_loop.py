import threading

from kbroker.clock import ManualClock, SystemClock
from kbroker.coordinator.runtime.event_loop import EventLoop


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
    loop = EventLoop(ManualClock())
    keep = loop.call_later(1_000, lambda: None)
    for _ in range(10_000):
        loop.call_later(300, lambda: None).cancel()
    assert len(loop._timers) < 3_000
    assert keep.active
    assert any(entry[2] is keep for entry in loop._timers)


def test_a_failing_callback_does_not_stop_the_others() -> None:
    loop = EventLoop(ManualClock())
    done: list[int] = []

    def fail() -> None:
        raise RuntimeError("broken")

    loop.post(fail)
    loop.post(lambda: done.append(1))
    loop.run_pending()
    assert done == [1]


def test_thread_runs_posts_and_timers_and_stop_drains() -> None:
    loop = EventLoop(SystemClock())
    loop.start()
    ran = threading.Event()
    loop.post(lambda: loop.call_later(0, ran.set) and None)
    assert ran.wait(5)
    last = threading.Event()
    loop.post(last.set)
    loop.stop()
    assert last.is_set()


def test_a_timer_that_is_set_again_at_once_lets_what_is_posted_have_its_turn() -> None:
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
