"""Futures made from futures. Callbacks run on the thread that completes the source."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

CALLS_AT_ONCE = 1_000

T = TypeVar("T")
U = TypeVar("U")


def completed(result: T) -> Future[T]:
    """A future that is done."""
    done: Future[T] = Future()
    done.set_result(result)
    return done


def map_future(source: Future[T], build: Callable[[T], U]) -> Future[U]:
    """A future of build(result); errors of both pass through."""
    target: Future[U] = Future()
    source.add_done_callback(lambda done: _settle(target, lambda: build(done.result())))
    return target


def chain_future(source: Future[T], start: Callable[[T], Future[U]]) -> Future[U]:
    """A future of the result of the future that start(result) returns; errors of all three pass through."""
    target: Future[U] = Future()

    def on_done(done: Future[T]) -> None:
        try:
            started = start(done.result())
        except BaseException as error:  # the request that waits for `target` gets it
            target.set_exception(error)
        else:
            started.add_done_callback(lambda ended: _settle(target, ended.result))

    source.add_done_callback(on_done)
    return target


def gather(sources: Sequence[Future[T]]) -> Future[list[T]]:
    """A future of all results, in order, or of the first error by position. Done when all sources are."""
    return map_future(_all_done(sources), lambda _: [source.result() for source in sources])


def gather_errors(sources: Sequence[Future[Any]]) -> Future[list[BaseException | None]]:
    """A future of the error of each source, in order; None for one that succeeded."""
    return map_future(_all_done(sources), lambda _: [source.exception() for source in sources])


def map_each(call: Callable[[T], Future[U]], items: Sequence[T]) -> Future[list[U]]:
    """A future of the result of `call` for each item, in order, or of the first error.

    At most CALLS_AT_ONCE calls are pending: between them the callee serves other requests, and a request that names
    a million things does not make a million futures.
    """
    target: Future[list[U]] = Future()
    results: list[U] = []
    parts = (items[first : first + CALLS_AT_ONCE] for first in range(0, len(items), CALLS_AT_ONCE))

    def advance(answered: Future[list[U]] | None = None) -> None:
        try:
            if answered is not None:
                results.extend(answered.result())
            for part in parts:
                pending = gather([call(item) for item in part])
                if not pending.done():
                    pending.add_done_callback(advance)
                    return
                results.extend(pending.result())
        except BaseException as error:  # the request that waits for `target` gets it
            target.set_exception(error)
        else:
            target.set_result(results)

    advance()
    return target


def _settle(target: Future[T], answer: Callable[[], T]) -> None:
    """Completes `target` with what `answer` returns or raises."""
    try:
        result = answer()
    except BaseException as error:  # the request that waits for `target` gets it
        target.set_exception(error)
    else:
        target.set_result(result)


def _all_done(sources: Sequence[Future[Any]]) -> Future[None]:
    """A future that is done when all sources are, failed ones included."""
    target: Future[None] = Future()
    lock = threading.Lock()
    remaining = len(sources)

    def one_done(_: Future[Any]) -> None:
        nonlocal remaining
        with lock:
            remaining -= 1
            last = remaining == 0
        if last:
            target.set_result(None)

    if not sources:
        target.set_result(None)
    for source in sources:
        source.add_done_callback(one_done)
    return target
