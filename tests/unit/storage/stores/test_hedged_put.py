import threading
from concurrent.futures import wait

import pytest

from kbroker import limits
from kbroker.clock import ManualClock
from kbroker.storage.stores.hedged_put import FIRST_SECONDS, HEDGES_SAVED_MAX, SAMPLES_MIN, SECONDS_MIN, HedgedStore
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import PreconditionFailed, StoreUnavailable
from kbroker.storage.stores.store_wrappers import StoreWrapper


class SlowStore(StoreWrapper):
    """Each PUT of a key does what the next of its scripts says: an event to wait for, then the PUT, or an error."""

    def __init__(self):
        super().__init__(MemoryStore())
        self.scripts = []
        self.asked = 0
        self.begun = threading.Semaphore(0)
        self.over = threading.Semaphore(0)
        self.on_last_wait = lambda: None  # called when no further request will be sent
        self._lock = threading.Lock()

    def put(self, key, body, **options):
        with self._lock:
            self.asked += 1
            gate, error = self.scripts.pop(0) if self.scripts else (None, None)
        self.begun.release()
        try:
            if gate is not None:
                assert gate.wait(20)
            if error is not None:
                raise error
            return super().put(key, body, **options)
        finally:
            self.over.release()


@pytest.fixture
def slow():
    return SlowStore()


@pytest.fixture
def hedged(slow):
    """A PUT takes too long once its request has begun, whatever the clock says."""

    def wait_for(attempts, seconds, *when):
        if seconds is not None:
            assert slow.begun.acquire(timeout=20)
            return set(), set(attempts)
        slow.on_last_wait()
        return wait(attempts, None, *when)

    store = HedgedStore(slow, ManualClock(0), 8, wait_for=wait_for)
    yield store
    store.close()


def open_gate():
    gate = threading.Event()
    gate.set()
    return gate


class Opener:
    """An open gate that opens another one when it is passed."""

    def __init__(self, gate):
        self._gate = gate

    def wait(self, timeout):
        self._gate.set()
        return True


def test_the_second_request_wins_and_the_first_is_refused_later(slow, hedged):
    held = threading.Event()
    slow.scripts = [(held, None), (open_gate(), None)]
    meta = hedged.put("k", b"body", if_none_match=True)
    assert slow.get("k", if_match=meta.etag) == b"body"
    assert (hedged.hedges, hedged.won, hedged.puts) == (1, 1, 1)
    slow.over.acquire(timeout=20)
    held.set()
    assert slow.over.acquire(timeout=20)  # refused; no caller waits for it
    assert slow.head("k").etag == meta.etag


def test_a_refusal_of_the_second_waits_for_the_first_which_made_the_object(slow, hedged):
    held = threading.Event()
    slow.scripts = [(held, None), (None, PreconditionFailed("it is there"))]
    answers = []
    caller = threading.Thread(target=lambda: answers.append(hedged.put("k", b"body", if_none_match=True)))
    caller.start()
    assert slow.over.acquire(timeout=20)  # the second was refused
    held.set()
    caller.join(20)
    assert answers[0].size == 4
    assert hedged.won == 0


@pytest.mark.parametrize("errors", [
    (StoreUnavailable("first"), PreconditionFailed("second")),
    (PreconditionFailed("first"), StoreUnavailable("second")),
])  # fmt: skip
def test_a_refusal_counts_more_than_an_unknown_outcome(slow, hedged, errors):
    """The caller then reads back what is there."""
    held = threading.Event()
    slow.scripts = [(held, errors[0]), (Opener(held), errors[1])]
    with pytest.raises(PreconditionFailed):
        hedged.put("k", b"body", if_none_match=True)


def test_only_small_bodies_that_create_a_key_are_sent_twice(slow, hedged):
    for body, options in ((b"x", {}), (bytes(limits.HEDGED_PUT_BYTES_MAX + 1), {"if_none_match": True})):
        hedged.put("k", body, **options) if not options else hedged.put("large", body, **options)
    assert (hedged.puts, slow.asked) == (0, 2)


def test_hedges_stay_within_their_budget(slow, hedged):
    for number in range(10):
        held = threading.Event()
        slow.scripts, slow.on_last_wait = [(held, None)], held.set
        hedged.put(f"k{number}", b"body", if_none_match=True)
    assert hedged.hedges == HEDGES_SAVED_MAX


def test_the_delay_of_a_hedge_follows_the_latencies():
    class Ticking(ManualClock):
        step = 0.1

        def monotonic(self):
            self.advance(self.step / 2)
            return super().monotonic()

    clock = Ticking(0)
    store = HedgedStore(MemoryStore(), clock, 2)
    for number in range(SAMPLES_MIN):
        assert store.wait_seconds() == FIRST_SECONDS
        store.put(f"k{number}", b"body", if_none_match=True)
    assert store.wait_seconds() == pytest.approx(0.1)  # twice the half step that each took
    clock.step = 0.001
    for number in range(64):
        store.put(f"l{number}", b"body", if_none_match=True)
    assert store.wait_seconds() == SECONDS_MIN
    store.close()
