"""Answers that come later: one future made from another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

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
    lock = threading.Lock()
    left = len(sources)

    def on_done(_: Future[T]) -> None:
        nonlocal left
        with lock:
            left -= 1
            last = left == 0
        if last:
            _complete(target, sources)

    if not sources:
        target.set_result([])
    for source in sources:
        source.add_done_callback(on_done)
    return target


def _complete(target: Future[list[T]], sources: Sequence[Future[T]]) -> None:
    try:
        results = [source.result() for source in sources]
    except BaseException as error:  # belongs to whoever waits for `target`
        target.set_exception(error)
    else:
        target.set_result(results)
