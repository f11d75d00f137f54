"""The threads of cold reads: turns of partitions, and reading ahead that gives way."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import pytest

from kbroker.storage.read.read_pool import ReadPool


class Call:
    """A call that waits to be released; records its start."""

    def __init__(self, name: object, begun: list[object]) -> None:
        self.name = name
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self._order = begun

    def __call__(self) -> object:
        self._order.append(self.name)
        self.begun.set()
        assert self.go_on.wait(20)
        return self.name


class Pool:
    def __init__(self, threads: int) -> None:
        self.pool = ReadPool(threads)
        self.order: list[object] = []
        self.calls: list[Call] = []

    def demand(self, owner: str, name: object = None):
        return self._add(self.pool.submit, owner, name)

    def ahead(self, owner: str, name: object = None):
        return self._add(self.pool.submit_ahead, owner, name)

    def _add(self, submit, owner: str, name: object):
        call = Call(name or owner, self.order)
        self.calls.append(call)
        call.future = submit(owner, call)
        return call

    def finish(self) -> None:
        for call in self.calls:
            call.go_on.set()
        for call in self.calls:
            assert call.future.result(20) == call.name
        self.pool.close()


def test_results_and_errors_are_returned() -> None:
    pool = ReadPool(2)
    assert pool.submit("a", lambda: 7).result(20) == 7
    with pytest.raises(ZeroDivisionError):
        pool.submit("a", lambda: 1 / 0).result(20)
    pool.close()
    with pytest.raises(RuntimeError):
        pool.submit("a", lambda: 7)


def test_one_partition_has_at_most_half_of_the_threads() -> None:
    """A consumer with a hundred places in one partition does not hold up another's first read."""
    made = Pool(4)
    greedy = [made.demand("greedy") for _ in range(100)]
    assert greedy[0].begun.wait(20)
    assert greedy[1].begun.wait(20)
    other = made.demand("other")
    assert other.begun.wait(20)
    assert made.order.count("greedy") == 2
    made.finish()
    assert len(made.order) == 101


def test_partitions_take_turns() -> None:
    made = Pool(1)
    first = made.demand("a", "a1")
    assert first.begun.wait(20)
    for name in ("a2", "a3", "b1", "b2", "c1"):
        made.demand(name[0], name)
    made.finish()
    assert made.order == ["a1", "a2", "b1", "c1", "a3", "b2"]


def test_read_ahead_starts_only_without_queued_demand() -> None:
    made = Pool(1)
    first = made.demand("a", "first")
    assert first.begun.wait(20)
    made.ahead("a", "ahead")
    made.demand("a", "second")
    made.demand("b", "third")
    assert made.pool.ahead_waiting == 1
    made.finish()
    assert made.order == ["first", "second", "third", "ahead"]


def test_reading_ahead_leaves_threads_to_demand() -> None:
    made = Pool(4)
    ahead = [made.ahead("a", f"ahead{n}") for n in range(10)]
    assert ahead[0].begun.wait(20)
    assert ahead[1].begun.wait(20)
    demand = [made.demand(owner) for owner in "bc"]
    for call in demand:
        assert call.begun.wait(20)
    assert made.order.count("b") == made.order.count("c") == 1
    assert len(made.order) == 4  # two ahead, two demanded
    made.finish()
    assert len(made.order) == 12


def test_the_last_free_thread_is_not_for_reading_ahead() -> None:
    made = Pool(4)
    demand = [made.demand(owner) for owner in "bcd"]
    for call in demand:
        assert call.begun.wait(20)
    made.ahead("a", "ahead")
    late = made.demand("e")
    assert late.begun.wait(20)
    assert "ahead" not in made.order
    made.finish()
    assert made.order[-1] == "ahead"


def test_closing_cancels_queued_calls() -> None:
    made = Pool(1)
    running = made.demand("a", "running")
    assert running.begun.wait(20)
    waiting, ahead = made.demand("a", "waiting"), made.ahead("a", "ahead")
    made.pool.close()
    running.go_on.set()
    assert running.future.result(20) == "running"
    for call in (waiting, ahead):
        with pytest.raises(CancelledError):
            call.future.result(20)
    assert made.order == ["running"]
