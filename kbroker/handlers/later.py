"""Answers that come later: one future made from another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from kbroker.coordinator.runtime.futures import when_all

ASKED_AT_ONCE = 1_000

T = TypeVar("T")
U = TypeVar("U")


def later(source: Future[T], build: Callable[[T], U]) -> Future[U]:
    """A future of build(result), built on the thread that completes `source`; errors of both pass through."""
    target: Future[U] = Future()

    def on_done(done: Future[T]) -> None:
        try:
            answer = build(done.result())
        except BaseException as error:  # belongs to the request that waits for `target`
            target.set_exception(error)
        else:
            target.set_result(answer)

    source.add_done_callback(on_done)
    return target


def all_of(sources: Sequence[Future[T]]) -> Future[list[T]]:
    """A future of all results, in order; the first error, by position, once all are done."""
    target: Future[list[T]] = Future()
    when_all(sources, lambda: _complete(target, sources))
    return target


def each(ask: Callable[[T], Future[U]], items: Sequence[T]) -> Future[list[U]]:
    """A future of what was answered for each item, in order, or of the first error.

    So many are asked for at a time: what whoever answers has to do for others comes between, and a request that names
    a million things is not a million futures.
    """
    target: Future[list[U]] = Future()
    results: list[U] = []
    parts = (items[first : first + ASKED_AT_ONCE] for first in range(0, len(items), ASKED_AT_ONCE))

    def go_on(answered: Future[list[U]] | None = None) -> None:
        try:
            if answered is not None:
                results.extend(answered.result())
            for part in parts:
                asked = all_of([ask(item) for item in part])
                if not asked.done():
                    asked.add_done_callback(go_on)
                    return
                results.extend(asked.result())
        except BaseException as error:  # belongs to whoever waits for `target`
            target.set_exception(error)
        else:
            target.set_result(results)

    go_on()
    return target


def _complete(target: Future[list[T]], sources: Sequence[Future[T]]) -> None:
    try:
        results = [source.result() for source in sources]
    except BaseException as error:  # belongs to whoever waits for `target`
        target.set_exception(error)
    else:
        target.set_result(results)
