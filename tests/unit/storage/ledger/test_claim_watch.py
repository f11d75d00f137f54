"""Checks of a claim continue while one hangs, and report a newer claim once."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from kbroker.storage.ledger import claim_watch
from kbroker.storage.ledger.claim_watch import LOOKS_MAX, ClaimWatch
from kbroker.storage.ledger.ownership import Superseded
from kbroker.storage.stores.object_store import StoreUnavailable
from tests.integration.until import until


class Answers:
    """A claim whose next looks do what the test says."""

    def __init__(self, *answers: Callable[[], None]) -> None:
        self._answers = list(answers)
        self._lock = threading.Lock()
        self.looks = 0

    def look(self) -> None:
        with self._lock:
            self.looks += 1
            answer = self._answers.pop(0) if self._answers else lambda: None
        answer()


def superseded() -> None:
    raise Superseded("epoch 1 was superseded")


def away() -> None:
    raise StoreUnavailable("no answer")


def broken() -> None:
    raise ZeroDivisionError


def test_a_newer_claim_is_reported_once_and_checks_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_watch, "LOOK_SECONDS", 0.01)
    told: list[Superseded] = []
    claim = Answers(away, broken, lambda: None, superseded, superseded)
    watch = ClaimWatch(claim, told.append)
    watch.start()
    until(lambda: told, "word of it")
    looks = claim.looks
    assert looks >= 4
    assert watch.begin_look()  # by hand: it finds the same
    until(lambda: claim.looks > looks, "another look")
    assert [str(error) for error in told] == ["epoch 1 was superseded"]


def test_a_check_that_hangs_does_not_delay_the_next() -> None:
    hang = threading.Event()
    told: list[Superseded] = []
    waits = [lambda: hang.wait(60) and None] * (LOOKS_MAX - 1)
    watch = ClaimWatch(Answers(*waits, superseded), told.append)  # type: ignore[arg-type]
    try:
        for _ in range(LOOKS_MAX):
            assert watch.begin_look()
        until(lambda: told, "word of it")
    finally:
        hang.set()


def test_checks_without_an_answer_are_bounded() -> None:
    hang = threading.Event()
    claim = Answers(*[lambda: hang.wait(60) and None] * LOOKS_MAX)  # type: ignore[list-item]
    watch = ClaimWatch(claim, pytest.fail)
    try:
        assert [watch.begin_look() for _ in range(LOOKS_MAX + 2)] == [True] * LOOKS_MAX + [False] * 2
    finally:
        hang.set()
    until(watch.begin_look, "room for another look")


def test_a_stopped_watch_reports_nothing() -> None:
    told: list[Superseded] = []
    entered, leave = threading.Event(), threading.Event()

    def late() -> None:
        entered.set()
        leave.wait(60)
        superseded()

    claim = Answers(late)
    watch = ClaimWatch(claim, told.append)
    watch.begin_look()
    assert entered.wait(60)
    watch.stop()
    leave.set()
    until(lambda: not any(thread.name == "claim-look" for thread in threading.enumerate()), "end of the look")
    assert told == []


def test_the_watch_continues_when_a_thread_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Superseded] = []
    watch = ClaimWatch(Answers(superseded), told.append)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as refused:
        refused.setattr(threading.Thread, "start", refuse)
        assert [watch.begin_look() for _ in range(LOOKS_MAX + 1)] == [False] * (LOOKS_MAX + 1)
    assert watch.begin_look()
    until(lambda: told, "word of it")
