"""What /readyz says of several parts."""

from __future__ import annotations

from kbroker.admin.readiness import OK, Readiness, State


def test_nothing_to_check_is_ready() -> None:
    assert Readiness().report() == (True, {"ready": True})


def test_a_part_that_stops_no_producer_leaves_the_broker_ready() -> None:
    readiness = Readiness()
    readiness.add("store", lambda: State("unavailable since 2026-01-02T03:04:05Z"))
    readiness.add("log", lambda: OK)
    expected = {"ready": True, "store": "unavailable since 2026-01-02T03:04:05Z", "log": "ok"}
    assert readiness.report() == (True, expected)


def test_one_part_that_stops_producers_makes_the_broker_unready() -> None:
    readiness = Readiness()
    readiness.add("store", lambda: OK)
    readiness.add("log", lambda: State("appends wait for room", can_produce=False))
    assert readiness.report() == (False, {"ready": False, "store": "ok", "log": "appends wait for room"})
