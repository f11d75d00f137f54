"""Hedged PUTs: a second, identical request for a PUT that takes much longer than usual.

Only for a PUT that creates a key (``if_none_match``) with one body: of two such requests at most one makes the object,
and the bytes are the same either way. The other is refused, now or after the caller has its answer, because the key
exists. So a hedge adds no key and no orphan, and overwrites nothing. (A request that arrives after the object was
merged and deleted makes an orphan, as any abandoned request may; the sweep of orphans finds it.)
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from kbroker import limits
from kbroker.clock import Clock
from kbroker.storage.stores.object_store import Body, ObjectMeta, ObjectStore, PreconditionFailed, as_source
from kbroker.storage.stores.store_wrappers import StoreWrapper

SAMPLES = 64  # newest latencies that are kept
SAMPLES_MIN = 16
FIRST_SECONDS = 1.0  # delay of a hedge until SAMPLES_MIN are known
SECONDS_MIN = 0.05
USUAL_SHARE = 0.95  # percentile of the latencies that counts as usual
USUAL_TIMES = 2.0  # times the usual latency is much longer
HEDGE_SHARE = 0.05  # of the PUTs may be sent twice, so that a slow store is not given twice the work
HEDGES_SAVED_MAX = 4.0


class HedgedStore(StoreWrapper):
    """Thread-safe. A PUT that may be hedged runs on a pool thread; the caller waits for the first answer that counts.

    `wait_for` is concurrent.futures.wait; tests replace it.
    """

    def __init__(
        self,
        inner: ObjectStore,
        clock: Clock,
        threads: int,
        *,
        wait_for: Callable[..., Any] = wait,
    ) -> None:
        super().__init__(inner)
        self.puts = 0
        self.hedges = 0
        self.won = 0  # by the second request
        self._clock = clock
        self._wait_for = wait_for
        self._lock = threading.Lock()
        self._took: deque[float] = deque(maxlen=SAMPLES)
        self._saved = HEDGES_SAVED_MAX  # budget of hedges
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="hedged-put")

    def put(
        self,
        key: str,
        body: Body,
        *,
        if_none_match: bool = False,
        if_match: str | None = None,
        crc32c: int | None = None,
    ) -> ObjectMeta:
        """As ObjectStore.put; a PUT that creates a key may be sent twice."""

        def request() -> ObjectMeta:
            return self._inner.put(key, body, if_none_match=if_none_match, if_match=if_match, crc32c=crc32c)

        if not if_none_match or as_source(body).length > limits.HEDGED_PUT_BYTES_MAX:
            return request()
        return self._hedged(request)

    def wait_seconds(self) -> float:
        """How long a PUT may take before it is sent again."""
        with self._lock:
            if len(self._took) < SAMPLES_MIN:
                return FIRST_SECONDS
            usual = sorted(self._took)[int(USUAL_SHARE * len(self._took))]
        return max(USUAL_TIMES * usual, SECONDS_MIN)

    def close(self) -> None:
        """Requests whose answers are not awaited end by themselves. The owner of the inner store closes that."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _hedged(self, request: Callable[[], ObjectMeta]) -> ObjectMeta:
        started = self._clock.monotonic()
        attempts = [self._pool.submit(request)]
        _, pending = self._wait_for(attempts, self.wait_seconds())
        if pending and self._may_hedge():
            attempts.append(self._pool.submit(request))
        meta = self._first_answer(attempts)
        with self._lock:
            self.puts += 1
            self._saved = min(self._saved + HEDGE_SHARE, HEDGES_SAVED_MAX)
            self._took.append(self._clock.monotonic() - started)
        return meta

    def _may_hedge(self) -> bool:
        with self._lock:
            if self._saved < 1.0:
                return False
            self._saved -= 1.0
            self.hedges += 1
            return True

    def _first_answer(self, attempts: list[Future[ObjectMeta]]) -> ObjectMeta:
        """The first success. An error counts when no attempt is left: a refusal may follow from the other's success."""
        pending = set(attempts)
        while pending:
            done, pending = self._wait_for(pending, None, FIRST_COMPLETED)
            for attempt in done:
                if attempt.exception() is None:
                    with self._lock:
                        self.won += attempt is not attempts[0]
                    return attempt.result()
        errors = [attempt.exception() for attempt in attempts]
        refusals = [error for error in errors if isinstance(error, PreconditionFailed)]
        error = (refusals or errors)[0]
        assert error is not None
        raise error
