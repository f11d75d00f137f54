"""The bucket of a simulated cluster. A request is applied in one step of the scheduler and answered in another.

In between, and after a fault, the process does not know what became of it: a request may be lost, be applied with its
answer lost, or be applied long after its time-out.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any, NoReturn, Protocol

from kbroker.storage.stores.object_store import NotFound, ObjectMeta, PreconditionFailed, StoreUnavailable
from tests.simulation.cluster.tasks import Resume, running, wait

TIMED_OUT = StoreUnavailable("the store's answer did not come in time")


class Process(Protocol):
    """What makes requests: a broker from its start to its end."""

    @property
    def is_running(self) -> bool:
        """Answers are still wanted."""
        ...

    @property
    def is_paused(self) -> bool:
        """It takes no answer for now."""
        ...


class Request:
    """A request on its way. `done` gets the result, an exception for a failure; None: its process has given it up."""

    __slots__ = ("apply", "done", "is_applied", "process", "result")

    def __init__(self, process: Process, apply: Callable[[], Any], done: Resume | None) -> None:
        self.process, self.apply, self.done = process, apply, done
        self.is_applied = False
        self.result: Any = None


class Bucket:
    """The objects, and the requests under way. Objects of data are any value; those of the ledger are bytes."""

    is_conditional = True  # a planted bug switches it off

    def __init__(self, rng: Random, fault_rate: float) -> None:
        self.fault_rate = fault_rate
        self.lateness = 0.0  # how often one that its process has given up is put off, when its turn comes
        self.read_waits = 0.0  # share of reads of the ledger that wait for their answer
        self.objects: dict[str, Any] = {}
        self.requests: list[Request] = []
        self.on_created: Callable[[str, Any], None] = lambda key, body: None
        self.on_deleted: Callable[[str], None] = lambda key: None
        self._keys: list[str] = []
        self._rng = rng

    # -- what the store does -------------------------------------------------------------------------------------

    def create(self, key: str, body: Any) -> ObjectMeta:
        """A put with If-None-Match. Raises PreconditionFailed."""
        if key not in self.objects:
            insort(self._keys, key)
        elif self.is_conditional:
            raise PreconditionFailed(f"{key} exists")
        self.objects[key] = body
        self.on_created(key, body)
        return self.meta(key)

    def overwrite(self, key: str, body: Any, if_match: str | None) -> ObjectMeta:
        """A put, perhaps with If-Match. Raises PreconditionFailed."""
        if if_match is not None and (key not in self.objects or self.meta(key).etag != if_match):
            raise PreconditionFailed(f"{key} is another")
        if key not in self.objects:
            insort(self._keys, key)
        self.objects[key] = body
        return self.meta(key)

    def delete(self, key: str) -> None:
        """A missing one is no error."""
        if key in self.objects:
            del self.objects[key], self._keys[bisect_left(self._keys, key)]
            self.on_deleted(key)

    def get(self, key: str) -> Any:
        """Raises NotFound."""
        try:
            return self.objects[key]
        except KeyError:
            raise NotFound(f"{key} does not exist") from None

    def meta(self, key: str) -> ObjectMeta:
        """Raises NotFound."""
        body = self.get(key)
        return ObjectMeta(key, len(body), str(zlib.crc32(body)) if type(body) is bytes else "", None, 1)

    def list(self, prefix: str, start_after: str | None = None) -> list[str]:
        """Keys in order."""
        keys = self._keys
        first = bisect_left(keys, prefix if start_after is None else max(prefix, start_after + "\0"))
        found = []
        while first < len(keys) and keys[first].startswith(prefix):
            found.append(keys[first])
            first += 1
        return found

    # -- requests ------------------------------------------------------------------------------------------------

    def later(self, call: Callable[[], None]) -> None:
        """Makes a call of the scheduler's one of its next steps."""
        request = Request(ALWAYS, call, lambda result: call())
        request.is_applied = True
        self.requests.append(request)

    def step(self, place: int, is_healing: bool) -> None:
        """Applies a request, or answers one that was applied; either may fail, or the first come late."""
        request = self.requests[place]
        is_given_up = request.done is None
        if is_given_up and self.lateness and not is_healing and self._rng.random() < self.lateness:
            return
        if not request.is_applied:
            self._apply(request, is_healing)
            if request.done is not None:
                return
        if request.done is not None and request.process.is_paused:
            return
        self.requests[place] = self.requests[-1]
        self.requests.pop()
        if request.done is not None and request.process.is_running:
            request.done(request.result)

    def _apply(self, request: Request, is_healing: bool) -> None:
        request.is_applied = True
        rng = self._rng
        how = rng.randrange(3) if not is_healing and rng.random() < self.fault_rate else None
        if how == 0 and request.done is not None:
            self.requests.append(Request(request.process, request.apply, None))  # comes after its time-out
        elif how != 1:
            try:
                request.result = request.apply()
            except (PreconditionFailed, NotFound) as error:
                request.result = error
        if how is not None:
            request.result = TIMED_OUT

    def upload(self, process: Process, key: str, body: Any, done: Callable[[], None]) -> None:
        """Creates an object of data for a process, again until it is there: its key is of that process alone."""

        def answered(result: Any) -> None:
            if isinstance(result, StoreUnavailable) and key not in self.objects:
                self.upload(process, key, body, done)
            else:
                done()

        self.requests.append(Request(process, lambda: self.create(key, body), answered))

    def remove(self, process: Process, key: str) -> None:
        """Deletes an object for a process which does not wait for it."""
        self.requests.append(Request(process, lambda: self.delete(key), None))


class _Always:
    is_running = True
    is_paused = False


ALWAYS = _Always()


class BrokerStore:
    """The ObjectStore of one process, for the ledger: writes wait, reads wait now and then."""

    def __init__(self, bucket: Bucket, process: Process, rng: Random) -> None:
        self._bucket, self._process, self._rng = bucket, process, rng

    def _request(self, apply: Callable[[], Any]) -> Any:
        requests = self._bucket.requests
        return wait(lambda resume: requests.append(Request(self._process, apply, resume)))

    def _read(self, apply: Callable[[], Any]) -> Any:
        waits = self._bucket.read_waits
        if waits and running() is not None and self._rng.random() < waits:
            return self._request(apply)
        return apply()

    def put(
        self,
        key: str,
        body: Any,
        *,
        if_none_match: bool = False,
        if_match: str | None = None,
        crc32c: int | None = None,
    ) -> ObjectMeta:
        """Of the ledger all puts are creations, but for checkpoints and the release of a claim."""
        if if_none_match:
            return self._request(lambda: self._bucket.create(key, body))
        assert if_match is not None or "/checkpoint-" in key, f"{key} is put without a condition"
        return self._request(lambda: self._bucket.overwrite(key, body, if_match))

    def get(self, key: str, start: int | None = None, length: int | None = None, if_match: str | None = None) -> Any:
        """The whole object."""
        return self._read(lambda: self._bucket.get(key))

    def head(self, key: str) -> ObjectMeta:
        """Size alone."""
        return self._read(lambda: self._bucket.meta(key))

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectMeta]:
        """Of one moment."""
        keys = self._read(lambda: self._bucket.list(prefix, start_after))
        return (ObjectMeta(key, 1, "", None, 1) for key in keys)

    def delete(self, keys: Iterable[str]) -> None:
        """All in one step."""

        def apply() -> None:
            for key in wanted:
                self._bucket.delete(key)

        wanted = [*keys]
        self._request(apply)

    def _absent(self, *_: Any, **__: Any) -> NoReturn:
        raise AssertionError("the ledger has no such requests")

    get_into = create_multipart = upload_part = upload_part_copy = complete_multipart = abort_multipart = _absent
    list_multipart = _absent

    def close(self) -> None:
        """Nothing to close."""
