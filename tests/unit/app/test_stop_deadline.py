"""The deadline of a stop, and the steps that take longer."""

from __future__ import annotations

import threading

import pytest

from kbroker.app import stop_deadline
from kbroker.app.stop_deadline import StopDeadline
from kbroker.clock import ManualClock
from tests.integration.until import until


def test_the_deadline_counts_from_the_first_begin() -> None:
    clock = ManualClock()
    deadline = StopDeadline(30.0, clock)
    clock.advance(100)
    assert deadline.left_seconds == 30.0
    deadline.begin()
    clock.advance(10)
    deadline.begin()
    assert deadline.left_seconds == 20.0
    clock.advance(100)
    assert deadline.left_seconds == 0.0


def test_a_second_signal_leaves_no_time() -> None:
    deadline = StopDeadline(30.0, ManualClock())
    deadline.begin()
    deadline.end_now()
    assert deadline.left_seconds == 0.0


def test_steps_run_in_parallel(caplog: pytest.LogCaptureFixture) -> None:
    deadline = StopDeadline(3600.0, ManualClock())
    barrier = threading.Barrier(3)
    assert deadline.run(*[lambda: barrier.wait(60)] * 3)
    assert not deadline.run(lambda: 1 // 0, lambda: None)
    assert "ZeroDivisionError" in caplog.text
    assert deadline.run()


def test_a_hanging_step_is_abandoned_at_the_second_signal() -> None:
    clock, hang, entered = ManualClock(), threading.Event(), threading.Event()
    deadline = StopDeadline(3600.0, clock)
    results: list[bool] = []

    def step() -> None:
        entered.set()
        hang.wait(60)

    running = threading.Thread(target=lambda: results.append(deadline.run(step)))
    running.start()
    assert entered.wait(60)
    clock.advance(stop_deadline.STEP_SECONDS_MIN + 1)
    deadline.end_now()
    running.join(60)
    assert results == [False]
    hang.set()


def test_a_step_after_the_deadline_still_gets_a_little_time() -> None:
    deadline = StopDeadline(3600.0, ManualClock())
    deadline.end_now()
    done = threading.Event()
    assert deadline.run(done.set)
    assert done.is_set()


def test_waiting_for_a_step_ends_with_the_step() -> None:
    deadline = StopDeadline(3600.0, ManualClock())
    go = threading.Event()
    results: list[bool] = []
    running = threading.Thread(target=lambda: results.append(deadline.run(lambda: go.wait(60))))
    running.start()
    until(lambda: any(thread.name == "kbroker-stop" for thread in threading.enumerate()), "the step")
    assert results == []
    go.set()
    running.join(60)
    assert results == [True]
