"""Futures made from futures: results, errors, and how many calls are pending."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from kbroker.futures import CALLS_AT_ONCE, chain_future, completed, gather, gather_errors, map_each, map_future


def test_errors_pass_through() -> None:
    source: Future[int] = Future()
    doubled = map_future(source, lambda value: value * 2)
    broken = map_future(source, lambda value: value / 0)
    source.set_result(4)
    assert doubled.result(0) == 8
    with pytest.raises(ZeroDivisionError):
        broken.result(0)
    failed: Future[int] = Future()
    joined = gather([source, failed])
    errors = gather_errors([source, failed])
    assert not joined.done()
    error = KeyError("x")
    failed.set_exception(error)
    with pytest.raises(KeyError):
        joined.result(0)
    assert errors.result(0) == [None, error]
    assert gather([]).result(0) == []


def test_a_chain_ends_with_the_second_result_or_the_first_error() -> None:
    first: Future[int] = Future()
    second: Future[str] = Future()
    chained = chain_future(first, lambda _: second)
    broken = chain_future(first, lambda value: completed(value / 0))
    first.set_result(1)
    assert not chained.done()
    second.set_result("x")
    assert chained.result(0) == "x"
    failed: Future[int] = Future()
    failed.set_exception(KeyError("x"))
    for chain, error in [
        (broken, ZeroDivisionError),
        (chain_future(failed, completed), KeyError),
        (chain_future(completed(1), lambda _: failed), KeyError),
    ]:
        with pytest.raises(error):
            chain.result(0)


def test_a_bounded_number_of_calls_is_pending() -> None:
    waiting: list[Future[int]] = []

    def call(_: int) -> Future[int]:
        waiting.append(Future())
        return waiting[-1]

    answers = map_each(call, range(2 * CALLS_AT_ONCE + 1))
    asked = 0
    for part in (CALLS_AT_ONCE, CALLS_AT_ONCE, 1):
        assert len(waiting) == part
        assert not answers.done()
        futures, waiting[:] = list(waiting), []
        for future in futures:
            future.set_result(asked)
            asked += 1
    assert answers.result(0) == list(range(2 * CALLS_AT_ONCE + 1))


def test_calls_that_complete_at_once_need_no_stack_and_the_first_error_wins() -> None:
    done: Future[int] = Future()
    done.set_result(1)
    pending: Future[int] = Future()

    def call(item: int) -> Future[int]:
        if item == CALLS_AT_ONCE:
            raise ZeroDivisionError
        return done if item else pending

    many = [1] * (1_500 * CALLS_AT_ONCE)  # more parts than the stack has frames for
    assert map_each(call, many).result(0) == many
    assert map_each(call, []).result(0) == []
    failing = map_each(call, range(CALLS_AT_ONCE + 1))
    assert not failing.done()
    pending.set_result(1)
    with pytest.raises(ZeroDivisionError):
        failing.result(0)
