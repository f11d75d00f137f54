"""Answers that come later: one future made from another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from kbroker.coordinator.futures import when_all

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


def _complete(target: Future[list[T]], sources: Sequence[Future[T]]) -> None:
    try:
        results = [source.result() for source in sources]
    except BaseException as error:  # belongs to whoever waits for `target`
        target.set_exception(error)
    else:
        target.set_result(results)
