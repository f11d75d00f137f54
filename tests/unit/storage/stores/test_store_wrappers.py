"""Retries, measurement, faults and the start probe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kbroker.clock import ManualClock
from kbroker.errors import StartError
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import (
    PART_BYTES_MIN,
    BytesBody,
    NotFound,
    PreconditionFailed,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)
from kbroker.storage.stores.store_faults import Fault, FaultyStore, When
from kbroker.storage.stores.store_probe import probe
from kbroker.storage.stores.store_wrappers import MeteredStore, RetryingStore, StoreCounters


class Waits:
    """An injected wait that advances a clock, and can be cancelled at the n-th call."""

    def __init__(self, cancel_at: int | None = None) -> None:
        self.clock = ManualClock()
        self.pauses: list[float] = []
        self._cancel_at = cancel_at

    def __call__(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.clock.advance(seconds)
        return len(self.pauses) == self._cancel_at

    def retries(self, deadline_s: float | None, draw: Callable[[], float] = lambda: 1.0) -> RetryPolicy:
        return RetryPolicy(deadline_s, 0.1, 10.0, self.clock, self, draw)


# -- retries ---------------------------------------------------------------------------------------------------------


def test_waits_double_up_to_the_cap_and_end_at_the_deadline() -> None:
    waits = Waits()
    attempts = list(waits.retries(60.0).attempts())
    assert waits.pauses[:8] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0])
    assert sum(waits.pauses) == pytest.approx(60.0)
    assert len(attempts) == len(waits.pauses) + 1


def test_waits_are_drawn_over_the_whole_span() -> None:
    waits = Waits(cancel_at=3)
    draws = iter([0.0, 0.5, 0.25])
    assert list(waits.retries(None, lambda: next(draws)).attempts()) == [0, 1, 2]
    assert waits.pauses == pytest.approx([0.0, 0.1, 0.1])


def test_cancellation_ends_the_wait() -> None:
    waits = Waits(cancel_at=2)
    store = FaultyStore(MemoryStore())
    store.outage = True
    with pytest.raises(StoreUnavailable):
        RetryingStore(store, waits.retries(None)).head("k")
    assert len(store.operations) == 2


def test_retries_outlast_a_storm_of_503() -> None:
    store = FaultyStore(MemoryStore())
    retrying = RetryingStore(store, Waits().retries(600.0))
    for operation in ("put", "get", "head", "list", "delete", "create_multipart", "upload_part", "complete_multipart"):
        store.inject(Fault(operation, times=5))
    retrying.put("k", BytesBody(b"abc"))
    assert retrying.get("k", 1, 1) == b"b"
    out = memoryview(bytearray(2))
    assert retrying.get_into("k", 1, out) == 2
    assert retrying.head("k").size == 3
    assert [meta.key for meta in retrying.list("")] == ["k"]
    upload = retrying.create_multipart("m")
    part = retrying.upload_part("m", upload, 1, b"xyz")
    assert retrying.complete_multipart("m", upload, [part]).size == 3
    retrying.delete(["k", "m"])
    assert list(retrying.list("")) == []


def test_a_retried_listing_continues_after_the_last_key() -> None:
    store = FaultyStore(MemoryStore())
    keys = [f"k{i}" for i in range(10)]
    for key in keys:
        store.put(key, b"")
    for _ in range(3):
        store.inject(Fault("list", skip=2, times=2))
    assert [meta.key for meta in RetryingStore(store, Waits().retries(60.0)).list("k")] == keys


def test_conditional_writes_are_never_retried() -> None:
    for options in ({"if_none_match": True}, {"if_match": "memory-1"}):
        store = FaultyStore(MemoryStore())
        store.inject(Fault("put", When.AFTER if "if_none_match" in options else When.BEFORE))
        with pytest.raises(StoreUnavailable):
            RetryingStore(store, Waits().retries(60.0)).put("k", b"", **options)  # type: ignore[arg-type]
        assert store.operations == [("put", "k")]


@pytest.mark.parametrize("error", [StoreDenied, NotFound, StoreError, PreconditionFailed])
def test_only_unavailability_is_retried(error: type[StoreError]) -> None:
    store = FaultyStore(MemoryStore())
    store.inject(Fault("*", error=error))
    with pytest.raises(error):
        RetryingStore(store, Waits().retries(60.0)).put("k", b"")
    assert len(store.operations) == 1


def test_a_completed_upload_whose_answer_was_lost_is_found() -> None:
    store = FaultyStore(MemoryStore())
    retrying = RetryingStore(store, Waits().retries(60.0))
    upload = retrying.create_multipart("m")
    parts = [retrying.upload_part("m", upload, number, bytes(size)) for number, size in ((1, PART_BYTES_MIN), (2, 7))]
    store.inject(Fault("complete_multipart", When.AFTER))
    assert retrying.complete_multipart("m", upload, parts).size == PART_BYTES_MIN + 7
    with pytest.raises(NotFound):
        retrying.complete_multipart("m", "no-upload", parts)


def test_another_deadline_for_the_same_store() -> None:
    waits = Waits()
    store = FaultyStore(MemoryStore())
    store.outage = True
    with pytest.raises(StoreUnavailable):
        RetryingStore(store, waits.retries(None)).within(3.0).head("k")
    assert sum(waits.pauses) == pytest.approx(3.0)


# -- measurement, faults ---------------------------------------------------------------------------------------------


def test_requests_bytes_seconds_and_errors_are_counted() -> None:
    counters, clock = StoreCounters(), ManualClock()

    class Slow(MemoryStore):
        def put(self, *arguments: Any, **options: Any) -> Any:
            clock.advance(0.25)
            return super().put(*arguments, **options)

    store = MeteredStore(Slow(), counters, clock)
    down = FaultyStore(MemoryStore())
    down.outage = True
    store.put("a", b"12345")
    store.put("b", BytesBody(b"123"))
    store.get("a", 1, 2)
    store.get_into("a", 0, memoryview(bytearray(4)))
    list(store.list(""))
    with pytest.raises(NotFound):
        store.head("zzz")  # an answer like any other
    with pytest.raises(StoreUnavailable):
        MeteredStore(down, counters, clock).head("a")
    totals = counters.totals()
    assert (totals["put"].results, totals["put"].bytes_out, totals["put"].seconds.total) == ({"ok": 2}, 8, 0.5)
    assert dict(zip(totals["put"].seconds.bounds, totals["put"].seconds.counts, strict=False))[0.25] == 2
    assert (totals["get"].requests, totals["get"].bytes_in) == (2, 6)
    assert totals["list"].requests == 1
    assert totals["head"].results == {"ok": 1, "StoreUnavailable": 1}


def test_faults_strike_where_and_as_often_as_scripted() -> None:
    inner = MemoryStore()
    store = FaultyStore(inner)
    store.inject(Fault("put", When.AFTER, key_part="b", skip=1, times=2))
    store.inject(Fault("get", When.TRUNCATE))
    for key in ("a", "b1"):
        store.put(key, b"1234")
    for key in ("b2", "b3"):
        with pytest.raises(StoreUnavailable):
            store.put(key, b"1234")
    store.put("b4", b"1234")
    assert [meta.key for meta in inner.list("")] == ["a", "b1", "b2", "b3", "b4"]
    assert (store.get("a"), store.get("a")) == (b"12", b"1234")


# -- the probe -------------------------------------------------------------------------------------------------------


def test_a_good_store_passes_the_probe_with_seven_requests_and_no_objects_left() -> None:
    inner = MemoryStore()
    store = FaultyStore(inner)
    assert probe(store, "root/")
    assert len([operation for operation, _ in store.operations if operation != "list"]) == 6
    assert all(key.startswith("root/_probe/") for _, key in store.operations)
    assert list(inner.list("")) == []


def test_a_store_that_does_not_check_what_it_stores_passes_and_is_known() -> None:
    class Careless(MemoryStore):
        def put(self, key: str, body: Any, **options: Any) -> Any:
            options.pop("crc32c", None)
            return super().put(key, body, **options)

    store = Careless()
    assert not probe(store, "root/")
    assert list(store.list("")) == []


def test_a_wrong_crc_that_is_refused_in_some_other_way_says_nothing() -> None:
    store = FaultyStore(MemoryStore())
    store.inject(Fault("put", key_part="-crc", error=StoreError))
    assert not probe(store, "root/")


@pytest.mark.parametrize("lost", ["if_none_match", "if_match"])
def test_a_store_that_ignores_conditions_is_refused(lost: str) -> None:
    class Careless(MemoryStore):
        def put(self, key: str, body: Any, **options: Any) -> Any:
            options.pop(lost, None)
            return super().put(key, body, **options)

    store = Careless()
    with pytest.raises(StartError, match="If-None-Match" if lost == "if_none_match" else "If-Match"):
        probe(store, "root/")
    assert list(store.list("")) == []


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (StoreDenied, "check credentials"),
        (StoreUnavailable, "cannot be reached"),
        (StoreError, "not usable"),
    ],
)
@pytest.mark.parametrize("operation", ["put", "get", "list", "delete"])
def test_a_failed_probe_is_explained_in_one_line(error: type[StoreError], text: str, operation: str) -> None:
    store = FaultyStore(MemoryStore())
    store.inject(Fault(operation, error=error))
    with pytest.raises(StartError, match=text) as caught:
        probe(store, "root/")
    assert "\n" not in str(caught.value)


def test_a_store_that_lists_or_returns_something_else_is_refused() -> None:
    store = FaultyStore(MemoryStore())
    store.inject(Fault("get", When.TRUNCATE))
    with pytest.raises(StartError, match="does not return the bytes"):
        probe(store, "root/")

    class Blind(MemoryStore):
        def list(self, prefix: str, start_after: str | None = None) -> Any:
            return iter(())

    with pytest.raises(StartError, match="does not list"):
        probe(Blind(), "root/")
