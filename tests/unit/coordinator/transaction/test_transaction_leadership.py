"""Transactions whose coordinator resigns and is elected again."""

from __future__ import annotations

from collections import deque

import pytest

from kbroker.coordinator.runtime.result import Marker
from kbroker.coordinator.transaction.marker_answers import counts_as_written, is_passing
from kbroker.errors import ErrorCode
from tests.unit.coordinator.transaction.transaction_fakes import A, B, C, TransactionBench

NOT_COORDINATOR = ErrorCode.NOT_COORDINATOR
HOUR = 3_600.0


def committing(bench: TransactionBench) -> tuple[int, int]:
    """A producer whose transaction is decided; no marker is durable."""
    producer = bench.init()[:2]
    bench.add(producer, A, B, C)
    bench.markers.hold = True
    bench.end(producer, True)
    return producer


def epochs_of(bench: TransactionBench) -> list[int]:
    return [marker.coordinator_epoch for _, marker in bench.markers.durable]


def test_a_resignation_refuses_producers() -> None:
    bench = TransactionBench().start()
    producer = bench.init()[:2]
    bench.resign(7)
    assert bench.init().error is NOT_COORDINATOR
    assert bench.add(producer) is NOT_COORDINATOR
    assert bench.end(producer, True).error is NOT_COORDINATOR
    assert bench.verify(producer) == {A: NOT_COORDINATOR}
    assert bench.describe().error_code is NOT_COORDINATOR
    assert bench.list() == []
    assert (bench.coordinator.transactional_ids, bench.coordinator.memory_bytes) == (0, 0)


def test_a_resignation_answers_a_request_that_waits_for_markers() -> None:
    bench = TransactionBench().start()
    producer = committing(bench)
    waiting = bench.add_later(producer, A)
    assert not waiting.done()
    bench.resign(7)
    assert waiting.result(0) is NOT_COORDINATOR


def test_a_request_that_waits_for_a_producer_id_is_refused_after_a_resignation() -> None:
    bench = TransactionBench().start()
    bench.ids.dry = True
    waiting = bench.init_later()
    bench.resign(7)
    bench.ids.claim()
    bench.run()
    assert waiting.result(0).error is NOT_COORDINATOR


def test_open_transactions_are_not_timed_out_where_they_are_not_led() -> None:
    bench = TransactionBench().start()
    producer = bench.init(timeout_ms=1_000)[:2]
    bench.add(producer)
    bench.resign(7)
    written = bench.log.next_offset
    bench.advance(HOUR)
    assert bench.log.next_offset == written
    assert bench.markers.asked == 0
    bench.elect(8)
    bench.advance(60)
    assert bench.describe().transaction_state == "CompleteAbort"
    assert epochs_of(bench) == [8]


def test_no_marker_is_retried_after_a_resignation() -> None:
    bench = TransactionBench().start()
    for partition in (A, B, C):
        bench.markers.errors[partition] = deque([ErrorCode.NOT_LEADER_OR_FOLLOWER] * 100)
    committing(bench)
    bench.resign(7)
    asked = bench.markers.asked
    bench.advance(HOUR)
    assert bench.markers.asked == asked
    assert bench.coordinator.unfinished == 0


def test_the_next_leadership_writes_all_markers_under_its_epoch() -> None:
    bench = TransactionBench().start()
    committing(bench)
    bench.resign(7)
    written = bench.log.next_offset
    bench.markers.release()  # those of before, under way at the resignation
    bench.run()
    assert epochs_of(bench) == [7, 7, 7]
    assert bench.log.next_offset == written, "their answers complete nothing"
    bench.elect(9)
    bench.markers.release()
    bench.run()
    assert epochs_of(bench) == [7, 7, 7, 9, 9, 9]
    assert bench.describe().transaction_state == "CompleteCommit"


def test_markers_of_an_earlier_leadership_complete_nothing() -> None:
    bench = TransactionBench().start()
    committing(bench)
    bench.resign(7)
    bench.elect(9)
    bench.markers.release(3)
    bench.run()
    assert epochs_of(bench) == [7, 7, 7]
    assert bench.describe().transaction_state == "PrepareCommit"
    bench.markers.release()
    bench.run()
    assert bench.describe().transaction_state == "CompleteCommit"


def test_operators_may_use_any_epoch_up_to_the_newest() -> None:
    bench = TransactionBench().start()
    bench.resign(7)
    bench.elect(9)
    marker = bench.coordinator.write_markers

    def write(epoch: int) -> ErrorCode:
        (answer,) = marker([(A, Marker(5, 0, epoch, False))])
        return answer.result(0)

    assert write(9) is ErrorCode.NONE
    assert write(10) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert write(8) is ErrorCode.TRANSACTION_COORDINATOR_FENCED, "the partition has seen a later one"


# -- absent partitions -------------------------------------------------------------------------------------------


def test_a_marker_counts_as_written_by_absence_only_if_the_own_copy_says_that_the_topic_was_deleted() -> None:
    bench = TransactionBench().start()
    bench.markers.missing = {B}  # its leader's copy is older than the topic
    producer = bench.init()[:2]
    bench.add(producer, A, B)
    bench.end(producer, True)
    bench.advance(30)
    assert bench.describe().transaction_state == "PrepareCommit"
    bench.markers.missing.clear()
    bench.advance(6)
    assert bench.describe().transaction_state == "CompleteCommit"
    assert bench.markers.at(B) == [(1000, 0, True)]


def test_a_deleted_partition_needs_no_marker() -> None:
    bench = TransactionBench().start()
    bench.markers.missing = {B}
    producer = bench.init()[:2]
    bench.add(producer, A, B)
    bench.end(producer, True)
    bench.markers.deleted = {B}
    bench.advance(6)
    assert bench.describe().transaction_state == "CompleteCommit"
    assert bench.markers.at(B) == []


@pytest.mark.parametrize("error", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID])
def test_absence_is_judged_by_the_own_copy(error: ErrorCode) -> None:
    assert counts_as_written(error, lambda: True)
    assert not counts_as_written(error, lambda: False)
    assert is_passing(error)


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (ErrorCode.NONE, True),
        (ErrorCode.INVALID_PRODUCER_EPOCH, True),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, False),
        (ErrorCode.TRANSACTION_COORDINATOR_FENCED, False),
        (ErrorCode.UNKNOWN_SERVER_ERROR, False),
    ],
)
def test_other_answers_do_not_depend_on_a_deletion(error: ErrorCode, ends: bool) -> None:
    for deleted in (True, False):
        assert counts_as_written(error, lambda deleted=deleted: deleted) is ends  # type: ignore[misc]
