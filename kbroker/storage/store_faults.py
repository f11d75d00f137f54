"""A store that fails on demand, for tests: before or after the effect, late, truncated, or all of it for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from kbroker.storage.object_store import ObjectStore, StoreUnavailable
from kbroker.storage.store_wrappers import StoreWrapper

T = TypeVar("T")


class When(Enum):
    """Where in an operation a fault strikes."""

    BEFORE = "before"  # nothing happens, the error is raised
    AFTER = "after"  # it happens, and the error is raised all the same: a success reported as failure
    TRUNCATE = "truncate"  # a get returns its first half
    HOLD = "hold"  # waits for ``release`` (an outage of the network), then goes on


@dataclass(slots=True)
class Fault:
    """One scripted fault; the first that matches is used, ``times`` times."""

    operation: str = "*"  # as StoreWrapper names it, or "*"
    when: When = When.BEFORE
    key_part: str = ""  # only keys that contain this
    times: int = 1
    skip: int = 0  # matching operations that pass first
    error: Callable[[str], Exception] = StoreUnavailable
    release: threading.Event | None = None  # HOLD: waits for this
    reached: threading.Event | None = None  # set when the fault strikes


class FaultyStore(StoreWrapper):
    """Set ``outage`` for a store that answers nothing but 503; script single faults with ``inject``."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.outage = False
        self.operations: list[tuple[str, str]] = []  # (operation, key) of all that was asked, in order
        self._lock = threading.Lock()
        self._faults: list[Fault] = []

    def inject(self, fault: Fault) -> Fault:
        """Adds a fault behind those already scripted."""
        with self._lock:
            self._faults.append(fault)
        return fault

    def _take(self, operation: str, key: str) -> Fault | None:
        with self._lock:
            self.operations.append((operation, key))
            for fault in self._faults:
                if fault.times <= 0 or fault.operation not in ("*", operation) or fault.key_part not in key:
                    continue
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                return fault
        return None

    def _run(self, operation: str, key: str, bytes_out: int, call: Callable[[], T]) -> T:
        fault = self._take(operation, key)
        if self.outage:
            raise StoreUnavailable(f"{key}: {operation}: 503 (outage)")
        if fault is None:
            return call()
        if fault.reached is not None:
            fault.reached.set()
        if fault.when is When.HOLD:
            assert fault.release is not None
            fault.release.wait()
            return call()
        if fault.when is When.BEFORE:
            raise fault.error(f"{key}: {operation} failed (injected)")
        result = call()
        if fault.when is When.AFTER:
            raise fault.error(f"{key}: {operation} done, but reported as failed (injected)")
        if isinstance(result, bytes):
            return result[: len(result) // 2]  # type: ignore[return-value]
        return result
