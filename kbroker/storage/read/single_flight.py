"""Single flight: concurrent calls with one key share one execution and its outcome."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlight(Generic[K, V]):
    """Thread-safe. Its lock protects the table of running calls only and is not held while one runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[K, Future[V]] = {}

    def do(self, key: K, call: Callable[[], V]) -> V:
        """The result of `call`, or of the running call with this key. Raises what that raises."""
        with self._lock:
            running = self._running.get(key)
            if running is None:
                mine: Future[V] = Future()
                self._running[key] = mine
        if running is not None:
            return running.result()
        try:
            result = call()
        except BaseException as error:
            self._forget(key)
            mine.set_exception(error)
            raise
        self._forget(key)
        mine.set_result(result)
        return result

    def _forget(self, key: K) -> None:
        with self._lock:
            del self._running[key]
