"""Object stores that add one behaviour to another store: a key prefix, retries, measurement.

Order, outermost first: RetryingStore, CopiedObjects, MeteredStore (so that each attempt is counted), faults,
PrefixStore, the store.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from kbroker.clock import Clock, SystemClock
from kbroker.histogram import REQUEST_SECONDS, Buckets, Histogram
from kbroker.io_threads import assert_may_block
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.stores.object_store import (
    Body,
    NotFound,
    ObjectMeta,
    ObjectStore,
    PendingUpload,
    StoreError,
    StoreUnavailable,
    UploadedPart,
    as_source,
)
from kbroker.storage.stores.store_health import StoreHealth

T = TypeVar("T")

OK = "ok"  # the result of a request without an error


class KnownObjects(Protocol):
    """What the manifest says of stored objects, by full key."""

    def described(self, key: str, etag: str) -> tuple[int, int] | None:
        """Size and CRC-32C of the object if the manifest names it with this ETag."""
        ...

    def adopt_etag(self, key: str, etag: str, present: str) -> None:
        """The object that was named with `etag` has the ETag `present` in this store."""
        ...


class StoreWrapper:
    """Passes every operation on through ``_run``; subclasses override that, or single operations."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner

    def _run(self, operation: str, key: str, bytes_out: int, call: Callable[[], T]) -> T:
        """Runs one operation. ``bytes_out``: body bytes that it sends."""
        return call()

    def put(
        self,
        key: str,
        body: Body,
        *,
        if_none_match: bool = False,
        if_match: str | None = None,
        crc32c: int | None = None,
    ) -> ObjectMeta:
        return self._run(
            "put",
            key,
            as_source(body).length,
            lambda: self._inner.put(key, body, if_none_match=if_none_match, if_match=if_match, crc32c=crc32c),
        )

    def get(self, key: str, start: int | None = None, length: int | None = None, if_match: str | None = None) -> bytes:
        return self._run("get", key, 0, lambda: self._inner.get(key, start, length, if_match))

    def get_into(self, key: str, start: int, out: memoryview, if_match: str | None = None) -> int:
        return self._run("get", key, 0, lambda: self._inner.get_into(key, start, out, if_match))

    def head(self, key: str) -> ObjectMeta:
        return self._run("head", key, 0, lambda: self._inner.head(key))

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectMeta]:
        """One operation per element: a store fetches pages lazily, and any of them may fail."""
        metas = self._inner.list(prefix, start_after)
        while (meta := self._run("list", prefix, 0, lambda: next(metas, None))) is not None:
            yield meta

    def delete(self, keys: Iterable[str]) -> None:
        wanted = [*keys]
        if wanted:
            self._run("delete", wanted[0], 0, lambda: self._inner.delete(wanted))

    def create_multipart(self, key: str) -> str:
        return self._run("create_multipart", key, 0, lambda: self._inner.create_multipart(key))

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, crc32c: int | None = None
    ) -> UploadedPart:
        return self._run(
            "upload_part",
            key,
            as_source(body).length,
            lambda: self._inner.upload_part(key, upload_id, number, body, crc32c=crc32c),
        )

    def upload_part_copy(
        self,
        key: str,
        upload_id: str,
        number: int,
        source_key: str,
        start: int,
        length: int,
        *,
        if_match: str | None = None,
    ) -> UploadedPart:
        return self._run(
            "upload_part_copy",
            key,
            0,
            lambda: self._inner.upload_part_copy(key, upload_id, number, source_key, start, length, if_match=if_match),
        )

    def complete_multipart(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, if_none_match: bool = False
    ) -> ObjectMeta:
        return self._run(
            "complete_multipart",
            key,
            0,
            lambda: self._inner.complete_multipart(key, upload_id, parts, if_none_match=if_none_match),
        )

    def abort_multipart(self, key: str, upload_id: str) -> None:
        self._run("abort_multipart", key, 0, lambda: self._inner.abort_multipart(key, upload_id))

    def list_multipart(self, prefix: str) -> Iterator[PendingUpload]:
        return iter(self._run("list_multipart", prefix, 0, lambda: [*self._inner.list_multipart(prefix)]))

    def learn(self, known: KnownObjects) -> None:
        """Tells the wrapper that reads copied objects (CopiedObjects), if there is one, what the manifest names."""
        if isinstance(self._inner, StoreWrapper):
            self._inner.learn(known)

    def close(self) -> None:
        self._inner.close()


class PrefixStore(StoreWrapper):
    """Puts ``prefix`` ("" or ending in "/") before every key, and takes it off the keys that come back."""

    def __init__(self, inner: ObjectStore, prefix: str) -> None:
        super().__init__(inner)
        self._prefix = prefix

    def _own(self, meta: ObjectMeta) -> ObjectMeta:
        return meta._replace(key=meta.key[len(self._prefix) :])

    def put(
        self,
        key: str,
        body: Body,
        *,
        if_none_match: bool = False,
        if_match: str | None = None,
        crc32c: int | None = None,
    ) -> ObjectMeta:
        full = self._prefix + key
        return self._own(self._inner.put(full, body, if_none_match=if_none_match, if_match=if_match, crc32c=crc32c))

    def get(self, key: str, start: int | None = None, length: int | None = None, if_match: str | None = None) -> bytes:
        return self._inner.get(self._prefix + key, start, length, if_match)

    def get_into(self, key: str, start: int, out: memoryview, if_match: str | None = None) -> int:
        return self._inner.get_into(self._prefix + key, start, out, if_match)

    def head(self, key: str) -> ObjectMeta:
        return self._own(self._inner.head(self._prefix + key))

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectMeta]:
        after = None if start_after is None else self._prefix + start_after
        return map(self._own, self._inner.list(self._prefix + prefix, after))

    def delete(self, keys: Iterable[str]) -> None:
        self._inner.delete([self._prefix + key for key in keys])

    def create_multipart(self, key: str) -> str:
        return self._inner.create_multipart(self._prefix + key)

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, crc32c: int | None = None
    ) -> UploadedPart:
        return self._inner.upload_part(self._prefix + key, upload_id, number, body, crc32c=crc32c)

    def upload_part_copy(
        self,
        key: str,
        upload_id: str,
        number: int,
        source_key: str,
        start: int,
        length: int,
        *,
        if_match: str | None = None,
    ) -> UploadedPart:
        return self._inner.upload_part_copy(
            self._prefix + key, upload_id, number, self._prefix + source_key, start, length, if_match=if_match
        )

    def complete_multipart(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, if_none_match: bool = False
    ) -> ObjectMeta:
        full = self._prefix + key
        return self._own(self._inner.complete_multipart(full, upload_id, parts, if_none_match=if_none_match))

    def abort_multipart(self, key: str, upload_id: str) -> None:
        self._inner.abort_multipart(self._prefix + key, upload_id)

    def list_multipart(self, prefix: str) -> Iterator[PendingUpload]:
        for upload in self._inner.list_multipart(self._prefix + prefix):
            yield upload._replace(key=upload.key[len(self._prefix) :])


class RetryingStore(StoreWrapper):
    """Retries on StoreUnavailable, except conditional writes: only the caller can find out what those did.

    A retried ``create_multipart`` may leave an unknown upload: a bucket's lifecycle rule for incomplete uploads removes
    it.
    """

    def __init__(self, inner: ObjectStore, retries: RetryPolicy) -> None:
        super().__init__(inner)
        self._retries = retries

    def within(self, deadline_s: float | None) -> RetryingStore:
        """The same store with another deadline per operation; None: until cancelled."""
        return RetryingStore(self._inner, dataclasses.replace(self._retries, deadline_s=deadline_s))

    def _run(self, operation: str, key: str, bytes_out: int, call: Callable[[], T]) -> T:
        assert_may_block()
        failure: StoreUnavailable | None = None
        for _ in self._retries.attempts():
            try:
                return call()
            except StoreUnavailable as error:
                failure = error
        assert failure is not None
        raise failure

    def put(
        self,
        key: str,
        body: Body,
        *,
        if_none_match: bool = False,
        if_match: str | None = None,
        crc32c: int | None = None,
    ) -> ObjectMeta:
        if if_none_match or if_match is not None:
            return self._inner.put(key, body, if_none_match=if_none_match, if_match=if_match, crc32c=crc32c)
        return super().put(key, body, crc32c=crc32c)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectMeta]:
        """A retry continues after the last key."""
        metas = self._inner.list(prefix, start_after)
        broken = False

        def step() -> ObjectMeta | None:
            nonlocal metas, broken
            if broken:
                metas, broken = self._inner.list(prefix, start_after), False
            try:
                return next(metas, None)
            except StoreUnavailable:
                broken = True  # an iterator that raised has ended
                raise

        while (meta := self._run("list", prefix, 0, step)) is not None:
            start_after = meta.key
            yield meta

    def complete_multipart(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, if_none_match: bool = False
    ) -> ObjectMeta:
        """A retry that finds no upload checks whether an earlier attempt has created the object."""
        if if_none_match:
            return self._inner.complete_multipart(key, upload_id, parts, if_none_match=True)
        unknown = False

        def attempt() -> ObjectMeta:
            nonlocal unknown
            try:
                return self._inner.complete_multipart(key, upload_id, parts)
            except StoreUnavailable:
                unknown = True
                raise
            except NotFound:
                if not unknown:
                    raise
                meta = self._inner.head(key)
                if meta.size != sum(part.size for part in parts):
                    raise
                return meta

        return self._run("complete_multipart", key, 0, attempt)


class StoreRequestSink(Protocol):
    """Where measurements go; called from many threads."""

    def observe(self, operation: str, seconds: float, bytes_out: int, bytes_in: int, error: str | None) -> None: ...


class RequestTotals(NamedTuple):
    """Sums of one kind of operation."""

    results: Mapping[str, int]  # requests by OK or the name of the error's class
    seconds: Buckets
    bytes_out: int
    bytes_in: int

    @property
    def requests(self) -> int:
        return sum(self.results.values())


class _Operation:
    """What StoreCounters knows of one kind of operation."""

    __slots__ = ("bytes_in", "bytes_out", "results", "seconds")

    def __init__(self) -> None:
        self.results: Counter[str] = Counter()
        self.seconds = Histogram(REQUEST_SECONDS)
        self.bytes_out = 0
        self.bytes_in = 0


class StoreCounters:
    """A StoreRequestSink that sums. Listings count each element's wait, as one request per listing."""

    def __init__(self, health: StoreHealth | None = None) -> None:
        self.retries = 0
        self._health = health
        self._lock = threading.Lock()
        self._operations: dict[str, _Operation] = {}

    def observe(self, operation: str, seconds: float, bytes_out: int, bytes_in: int, error: str | None) -> None:
        with self._lock:
            sums = self._operations.setdefault(operation, _Operation())
            sums.results[error or OK] += 1
            sums.seconds.add(seconds)
            sums.bytes_out += bytes_out
            sums.bytes_in += bytes_in
        if self._health is not None:
            self._health.note(operation, error)

    def note_retry(self) -> None:
        """A request is about to be sent again."""
        with self._lock:
            self.retries += 1

    def totals(self) -> dict[str, RequestTotals]:
        """A copy of the sums by operation."""
        with self._lock:
            return {
                operation: RequestTotals(sums.results.copy(), sums.seconds.buckets(), sums.bytes_out, sums.bytes_in)
                for operation, sums in self._operations.items()
            }


class MeteredStore(StoreWrapper):
    """Reports every operation to a sink: kind, seconds, body bytes, error class."""

    def __init__(self, inner: ObjectStore, sink: StoreRequestSink, clock: Clock | None = None) -> None:
        super().__init__(inner)
        self._sink = sink
        self._clock = clock or SystemClock()

    def _run(self, operation: str, key: str, bytes_out: int, call: Callable[[], T]) -> T:
        started = self._clock.monotonic()
        try:
            result = call()
        except StoreError as error:
            # NotFound is an answer, the usual one to a look for a newer claim.
            failed = None if isinstance(error, NotFound) else type(error).__name__
            self._sink.observe(operation, self._clock.monotonic() - started, bytes_out, 0, failed)
            raise
        bytes_in = 0
        if operation == "get":
            bytes_in = len(result) if isinstance(result, bytes) else result if isinstance(result, int) else 0
        self._sink.observe(operation, self._clock.monotonic() - started, bytes_out, bytes_in, None)
        return result

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectMeta]:
        """Counted once per listing; only the time inside the store is measured, not the caller's between elements."""
        seconds, failed = 0.0, None
        metas = self._inner.list(prefix, start_after)
        try:
            while True:
                started = self._clock.monotonic()
                try:
                    meta = next(metas, None)
                except StoreError as error:
                    failed = type(error).__name__
                    raise
                finally:
                    seconds += self._clock.monotonic() - started
                if meta is None:
                    return
                yield meta
        finally:
            self._sink.observe("list", seconds, 0, 0, failed)
