"""The judge itself: each kind of fault is found, and a correct log passes."""

from __future__ import annotations

import pytest

from kbroker._fast.records.records import build_batch, iter_records
from tests.crash.ledger import Ledger, Origin, judge_partition, origin_of, value_of, verify_commits

LOG: list[Origin] = [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2)]


@pytest.fixture
def ledger() -> Ledger:
    """Producer a must be complete, b need not be; all of LOG was acknowledged but its second record."""
    ledger = Ledger(1)
    ledger.complete.add("a")
    assert ledger.take_numbers(0, "a", 3) == 0
    assert ledger.take_numbers(0, "b", 2) == 0
    for offset, (producer, number) in enumerate(LOG):
        if offset != 1:
            ledger.acknowledge(0, offset, producer, number, 1)
    return ledger


def judge(ledger: Ledger, origins: list[Origin], finished: bool = True) -> list[str]:
    return judge_partition(ledger, 0, ledger.told(0), origins, finished=finished)


def test_a_correct_log_passes(ledger: Ledger) -> None:
    assert judge(ledger, LOG) == []
    ledger.check()


@pytest.mark.parametrize(
    ("origins", "fault"),
    [
        (LOG[:-1], "acknowledged ('a', 2), now None"),
        ([LOG[2], *LOG[1:2], LOG[0], *LOG[3:]], "a/0 after 1"),
        ([*LOG, ("a", 2)], "a/2 after 2"),
        ([*LOG, ("a", 3)], "a/3 was never sent"),
        ([LOG[0], *LOG[2:]], "offset 2: acknowledged ('a', 1), now ('b', 1)"),
    ],
    ids=["lost", "out of order", "doubled", "invented", "moved"],
)
def test_each_fault_is_found(ledger: Ledger, origins: list[Origin], fault: str) -> None:
    assert any(fault in found for found in judge(ledger, origins, finished=False))


def test_a_refused_record_in_the_log_is_found(ledger: Ledger) -> None:
    ledger.refuse(0, "b", 1, 1)
    assert any("was refused, and appended" in fault for fault in judge(ledger, LOG))


def test_a_missing_record_of_a_complete_producer_is_found(ledger: Ledger) -> None:
    ledger.take_numbers(0, "a", 1)
    assert judge(ledger, LOG, finished=False) == []
    assert judge(ledger, LOG) == ["partition 0: 3 of 4 of a"]


def test_an_offset_acknowledged_twice_is_found(ledger: Ledger) -> None:
    ledger.acknowledge(0, 3, "a", 7, 1)
    with pytest.raises(AssertionError, match="acknowledged to"):
        ledger.check()


def test_an_offset_with_two_values_is_found(ledger: Ledger) -> None:
    ledger.observe(0, 1, ("b", 0))
    ledger.observe(0, 1, ("b", 1))
    with pytest.raises(AssertionError, match="returned"):
        ledger.check()


@pytest.mark.parametrize(("offset", "metadata"), [(4, "at 4"), (-1, ""), (11, "at 11"), (7, "at 6")])
def test_a_commit_that_went_back_is_found(offset: int, metadata: str) -> None:
    ledger = Ledger(1)
    for position in (5, 9, 10):
        ledger.commit_tried(0, position)
    ledger.commit_done(0, 5)
    verify_commits(ledger, {0: (5, "at 5")})
    verify_commits(ledger, {0: (10, "at 10")})
    with pytest.raises(AssertionError):
        verify_commits(ledger, {0: (offset, metadata)})


def test_changed_bytes_are_found() -> None:
    value = value_of("a", 0, 1000)
    good, bad = value, value[:-1] + b"!"
    for sent, key in ((good, b"a"), (bad, b"a"), (good, b"b")):
        (record,) = iter_records(build_batch([(key, sent, 0, [("from", b"a")])]))
        if (sent, key) == (good, b"a"):
            assert origin_of(0, record) == ("a", 1000)
        else:
            with pytest.raises(AssertionError):
                origin_of(0, record)
        with pytest.raises(AssertionError):
            origin_of(1, record)
