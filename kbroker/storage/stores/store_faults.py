"""A store that fails on demand, for tests: before or after the effect, late, with damage, or in an outage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from kbroker.storage.stores.object_store import (
    Body,
    ObjectMeta,
    ObjectStore,
    StoreError,
    StoreUnavailable,
    UploadedPart,
    as_source,
    body_pieces,
)
from kbroker.storage.stores.store_wrappers import StoreWrapper

T = TypeVar("T")


class When(Enum):
    """Where in an operation a fault strikes."""

    BEFORE = "before"  # nothing happens, the error is raised
    AFTER = "after"  # it happens, and the error is raised: a success reported as a failure
    LATE = "late"  # the error is raised, and it happens when ``land`` is called: a request still on its way
    TRUNCATE = "truncate"  # a get returns its first half
    CORRUPT = "corrupt"  # a get returns one wrong byte
    OMIT = "omit"  # a listing that lags: this element is left out
    REPEAT = "repeat"  # a listing gives this element twice
    HOLD = "hold"  # waits for ``release`` (a network outage), then runs


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


class _Sending(Generic[T]):
    """A request with a body; ``keep_body`` copies it, for a request that lands after its sender has given it up."""

    def __init__(self, body: Body, send: Callable[[Body], T]) -> None:
        self._body = body
        self._send = send

    def __call__(self) -> T:
        return self._send(self._body)

    def keep_body(self) -> None:
        if not isinstance(self._body, bytes):
            self._body = b"".join(bytes(piece) for piece in body_pieces(self._body))


class FaultyStore(StoreWrapper):
    """Set ``outage`` for a store that answers everything with 503; script single faults with ``inject``.

    A subclass may choose the fault of each operation itself: ``choose``.
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.outage = False
        self.operations: list[tuple[str, str]] = []  # (operation, key) of every request, in order
        self.struck = 0  # faults so far
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._late: list[Callable[[], object]] = []
        self._repeat = False

    def inject(self, fault: Fault) -> Fault:
        """Appends a fault to those already scripted."""
        with self._lock:
            self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """Drops all scripted faults, and ends an outage."""
        with self._lock:
            self._faults.clear()
        self.outage = False

    def land(self) -> int:
        """Late requests arrive, in order; returns how many the store executed."""
        with self._lock:
            late, self._late = self._late, []
        taken = 0
        for request in late:
            try:
                request()
                taken += 1
            except StoreError:
                pass  # its condition no longer holds; no caller waits for the error
        return taken

    def choose(self, operation: str, key: str) -> Fault | None:
        """The fault that strikes this operation; None: it succeeds."""
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
        fault = self.choose(operation, key)
        if self.outage:
            raise StoreUnavailable(f"{key}: {operation}: 503 (outage)")
        return call() if fault is None else self._strike(fault, operation, key, call)

    def _strike(self, fault: Fault, operation: str, key: str, call: Callable[[], T]) -> T:
        self.struck += 1
        if fault.reached is not None:
            fault.reached.set()
        if fault.when is When.HOLD:
            assert fault.release is not None
            fault.release.wait()
            return call()
        if fault.when is When.BEFORE:
            raise fault.error(f"{key}: {operation} failed (injected)")
        if fault.when is When.LATE:
            if isinstance(call, _Sending):
                call.keep_body()
            with self._lock:
                self._late.append(call)
            raise fault.error(f"{key}: {operation} is on its way, but reported as failed (injected)")
        result = call()
        if fault.when is When.AFTER:
            raise fault.error(f"{key}: {operation} done, but reported as failed (injected)")
        if fault.when is When.OMIT:
            return call()
        self._repeat = fault.when is When.REPEAT
        return _damaged(result, fault.when)

    # -- operations with a body or a result to damage ------------------------------------------------------------

    def put(
        self,
        key: str,
        body: Body,
        *,
        if_none_match: bool = False,
        if_match: str | None = None,
        crc32c: int | None = None,
    ) -> ObjectMeta:
        def send(body: Body) -> ObjectMeta:
            return self._inner.put(key, body, if_none_match=if_none_match, if_match=if_match, crc32c=crc32c)

        return self._run("put", key, as_source(body).length, _Sending(body, send))

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, crc32c: int | None = None
    ) -> UploadedPart:
        def send(body: Body) -> UploadedPart:
            return self._inner.upload_part(key, upload_id, number, body, crc32c=crc32c)

        return self._run("upload_part", key, as_source(body).length, _Sending(body, send))

    def get_into(self, key: str, start: int, out: memoryview, if_match: str | None = None) -> int:
        def read() -> bytes:
            self._inner.get_into(key, start, out, if_match)
            return bytes(out)

        data = self._run("get", key, 0, read)
        out[: len(data)] = data
        return len(data)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectMeta]:
        for meta in super().list(prefix, start_after):
            yield meta
            if self._repeat:
                self._repeat = False
                yield meta


def _damaged(result: T, when: When) -> T:
    if not isinstance(result, bytes) or not result or when not in (When.TRUNCATE, When.CORRUPT):
        return result
    middle = len(result) // 2
    if when is When.TRUNCATE:
        return result[:middle]  # type: ignore[return-value]
    return result[:middle] + bytes([result[middle] ^ 0x40]) + result[middle + 1 :]  # type: ignore[return-value]
