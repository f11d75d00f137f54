"""The transaction coordinator: durability before answers, epochs, markers, restarts, time-outs, bounds."""

from __future__ import annotations

from collections import deque
from sys import getsizeof

import pytest

from kbroker._fast.wal.commit import FastAppendWait
from kbroker.coordinator.transaction.shard import IDS_SHARE
from kbroker.coordinator.transaction.state import (
    PARTITION_BYTES,
    TRANSACTION_BYTES,
    ProducerIdentity,
    Transaction,
    TransactionState,
)
from kbroker.errors import ErrorCode
from tests.unit.coordinator.transaction.transaction_fakes import A, B, C, CountedIds, MarkedPartitions, TransactionBench

NONE, FENCED, CONCURRENT = ErrorCode.NONE, ErrorCode.PRODUCER_FENCED, ErrorCode.CONCURRENT_TRANSACTIONS
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def state(bench: TransactionBench) -> str:
    return str(bench.describe().transaction_state)


# -- answers and durability --------------------------------------------------------------------------------------


def test_nothing_is_answered_before_it_is_durable() -> None:
    bench = TransactionBench().start()
    bench.log.hold = True
    init = bench.init_later()
    add = bench.add_later((1000, 0), A)
    again = bench.add_later((1000, 0), A)  # writes nothing, but rests on what is not durable
    verify = bench.verify_later((1000, 0), A)
    end = bench.end_later((1000, 0), True)
    assert not any(future.done() for future in (init, add, again, verify, end))
    assert bench.markers.asked == 0
    bench.log.release(1)
    bench.run()
    assert init.result(0) == ProducerIdentity(1000, 0)
    assert not add.done()
    bench.log.release(1)
    bench.run()
    assert (add.result(0), again.result(0), verify.result(0)) == (NONE, NONE, {A: NONE})
    assert not end.done()
    bench.log.release()
    bench.run()
    assert end.result(0).error is NONE
    assert bench.markers.at(A) == [(1000, 0, True)]


def test_end_is_answered_before_the_markers_are_written() -> None:
    bench = TransactionBench().start()
    producer = bench.init()[:2]
    bench.add(producer, A, B)
    bench.markers.hold = True
    assert bench.end(producer, True).error is NONE
    assert state(bench) == "PrepareCommit"
    bench.markers.release(1)
    bench.run()
    assert state(bench) == "PrepareCommit"
    bench.markers.release()
    bench.run()
    assert state(bench) == "CompleteCommit"
    assert bench.markers.at(A) == bench.markers.at(B) == [(*producer, True)]
    assert {marker.coordinator_epoch for _, marker in bench.markers.durable} == {7}
    assert bench.describe().topics == []


def test_append_that_fails_changes_nothing() -> None:
    bench = TransactionBench().start()
    producer = bench.init()[:2]
    bench.add(producer)
    bench.log.refuse_always = FastAppendWait()
    ended, fenced = bench.end_later(producer, True), bench.init_later()
    bench.advance(21)
    assert ended.result(0).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert fenced.result(0).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.log.refuse_always = None
    assert state(bench) == "Ongoing"
    assert bench.init().error is CONCURRENT
    # Fenced by one epoch, whatever was tried before.
    assert bench.markers.at(A) == [(1000, 1, False)]


def test_a_lost_append_fails_all_requests_that_depend_on_it() -> None:
    bench = TransactionBench().start()
    producer = bench.init()[:2]
    bench.add(producer)
    bench.log.hold = True
    end = bench.end_later(producer, True)
    bench.markers.hold = True
    waiting = bench.add_later(producer, B)  # for the end of the transaction
    bench.log.next_offset -= 1
    bench.log.release(error=ErrorCode.KAFKA_STORAGE_ERROR)
    bench.log.hold = False
    bench.run()
    assert end.result(0).error is ErrorCode.NOT_COORDINATOR
    assert waiting.result(0) is ErrorCode.NOT_COORDINATOR
    assert state(bench) == "Ongoing"
    assert bench.markers.asked == 0
    bench.markers.hold = False
    assert bench.end(producer, False).error is NONE
    assert bench.markers.at(A) == [(*producer, False)]


def test_stop_answers_all() -> None:
    bench = TransactionBench().start()
    producer = bench.init()[:2]
    bench.add(producer)
    bench.markers.hold = True
    bench.end(producer, True)
    waiting = bench.add_later(producer, B)
    bench.coordinator.stop()
    assert waiting.result(0) is ErrorCode.NOT_COORDINATOR
    assert bench.init_later().result(0).error is ErrorCode.NOT_COORDINATOR
    assert bench.verify_later(producer, A).result(0) == {A: ErrorCode.NOT_COORDINATOR}
    assert bench.list() is ErrorCode.NOT_COORDINATOR


def test_topic_is_created_by_the_first_producer_only() -> None:
    bench = TransactionBench(has_topic=False).start()
    assert bench.verify((1, 0)) == {A: ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert bench.list() == []
    assert not bench.state_topic.exists
    assert bench.init() == ProducerIdentity(1000, 0)
    assert bench.state_topic.exists


def test_locate_creates_the_topic() -> None:
    bench = TransactionBench(has_topic=False).start()
    located = bench.coordinator.locate()
    bench.run()
    assert located.result(0) is NONE
    assert bench.state_topic.exists


def test_requests_to_a_loading_transaction_shard_are_refused() -> None:
    bench = TransactionBench().start()
    producer = bench.init()[:2]
    after = TransactionBench([bench.log.restarted()])
    after.executor.hold = True
    after.start()
    assert after.init().error is LOADING
    assert after.end(producer, True).error is LOADING
    assert after.verify(producer, A, B, add=True) == {A: LOADING, B: LOADING}
    assert after.describe().error_code == LOADING
    assert after.list() is LOADING
    after.executor.run()
    after.run()
    assert after.add(producer) is NONE


# -- fencing -----------------------------------------------------------------------------------------------------


def test_new_producer_ends_the_open_transaction_of_the_old_one() -> None:
    bench = TransactionBench().start()
    zombie = bench.init()[:2]
    bench.add(zombie, A)
    bench.markers.hold = True
    assert bench.init() == ProducerIdentity(error=CONCURRENT)
    # Durable and fenced at once, before the markers.
    assert bench.add(zombie, B) is FENCED
    assert bench.end(zombie, True).error is FENCED
    assert bench.end(zombie, False, version=2).error is CONCURRENT
    bench = bench.restarted()
    assert bench.now().state is TransactionState.PREPARE_ABORT  # type: ignore[union-attr]
    bench.markers.release()
    bench.run()
    # Not a lost answer: no producer has got the epoch above the zombie's.
    assert bench.end(zombie, False, version=2).error is FENCED
    assert bench.init(zombie).error is FENCED
    assert bench.init() == ProducerIdentity(1000, 2)
    assert bench.markers.at(A)[-1] == (1000, 1, False)


def test_expected_epoch_guards_an_open_transaction() -> None:
    bench = TransactionBench().start()
    old = bench.init()[:2]
    new = bench.init()[:2]
    bench.add(new)
    assert bench.init(old).error is FENCED
    assert state(bench) == "Ongoing"
    assert bench.init(new).error is CONCURRENT
    assert state(bench) == "CompleteAbort"


def test_lost_answers_are_repeated_also_after_a_restart() -> None:
    bench = TransactionBench().start()
    first = bench.init()[:2]
    second = bench.init(first)
    assert second == ProducerIdentity(1000, 1)
    for _ in range(2):
        assert bench.init(first) == second
        bench = bench.restarted()
    bench.add(second[:2])
    third = bench.end(second[:2], True, version=2)
    assert third == ProducerIdentity(1000, 2)
    bench = bench.restarted()
    assert bench.end(second[:2], True, version=2) == third
    assert bench.init(second[:2]) == third
    # Once another instance has asked, none gets it again.
    bench.init()
    assert bench.init(second[:2]).error is FENCED
    assert bench.init(third[:2]).error is FENCED


def test_retries_of_the_decision_while_markers_are_written() -> None:
    bench = TransactionBench().start()
    producer = bench.init()[:2]
    bench.add(producer)
    bench.markers.hold = True
    granted = bench.end(producer, True, version=2)
    assert granted == ProducerIdentity(1000, 1)
    assert bench.end(producer, True, version=2).error is CONCURRENT
    assert bench.end(producer, False, version=2).error is CONCURRENT
    assert bench.init().error is CONCURRENT
    bench = bench.restarted()
    assert bench.end(producer, True, version=2).error is CONCURRENT
    bench.markers.release()
    bench.run()
    assert bench.end(producer, True, version=2) == granted
    assert bench.end(producer, False, version=2).error is ErrorCode.INVALID_TXN_STATE
    assert bench.markers.at(A) == [(1000, 1, True)]  # under the new epoch: it fences what comes late


# -- the end of the epochs ---------------------------------------------------------------------------------------


def at_epoch(epoch: int, state: TransactionState = TransactionState.EMPTY, **fields: object) -> TransactionBench:
    bench = TransactionBench(ids=CountedIds(2000))
    bench.given(Transaction(50, epoch, 60_000, state, bench.clock.now_ms(), **fields))  # type: ignore[arg-type]
    return bench.start()


def test_last_epoch_but_one() -> None:
    bench = at_epoch(32_765)
    assert bench.init() == ProducerIdentity(50, 32_766)
    assert bench.init() == ProducerIdentity(2000, 0)
    assert bench.init() == ProducerIdentity(2000, 1)


def test_new_id_for_the_holder_of_the_last_epoch_is_returned_again() -> None:
    bench = at_epoch(32_766)
    assert bench.init((50, 32_766)) == ProducerIdentity(2000, 0)
    for _ in range(2):
        assert bench.init((50, 32_766)) == ProducerIdentity(2000, 0)
        bench = bench.restarted()
    assert bench.init((50, 32_765)).error is FENCED
    assert bench.ids.next == 2001


def test_fencing_the_holder_of_the_last_epoch() -> None:
    bench = at_epoch(32_766)
    assert bench.add((50, 32_766)) is NONE
    assert bench.init().error is CONCURRENT
    assert bench.markers.at(A) == [(50, 32_767, False)]
    # That epoch fences, and no producer has it.
    assert bench.add((50, 32_767)) is FENCED
    assert bench.end((50, 32_767), False, version=2).error is FENCED
    assert bench.end((50, 32_767), False).error is FENCED
    assert bench.init((50, 32_766)).error is FENCED
    assert bench.init() == ProducerIdentity(2000, 0)


@pytest.mark.parametrize("commit", [True, False])
def test_transaction_under_the_last_epoch(commit: bool) -> None:
    bench = at_epoch(32_766)
    bench.add((50, 32_766))
    bench.markers.hold = True
    granted = bench.end((50, 32_766), commit, version=2)
    assert granted == ProducerIdentity(2000, 0)
    assert bench.end((50, 32_766), commit, version=2).error is CONCURRENT
    bench = bench.restarted()
    bench.markers.release()
    bench.run()
    assert bench.markers.at(A) == [(50, 32_767, commit)]
    assert bench.end((50, 32_766), commit, version=2) == granted
    assert bench.end((50, 32_766), not commit, version=2).error is ErrorCode.INVALID_TXN_STATE
    assert bench.init((50, 32_766)) == granted
    assert bench.add((2000, 0)) is NONE
    assert bench.end((50, 32_766), commit, version=2).error in (ErrorCode.INVALID_PRODUCER_ID_MAPPING, FENCED)


def test_next_transaction_under_a_new_id_waits_for_the_end_of_the_last() -> None:
    bench = at_epoch(32_766)
    bench.add((50, 32_766))
    bench.markers.hold = True
    granted = bench.end((50, 32_766), True, version=2)[:2]
    assert granted == (2000, 0)
    verified = bench.verify_later(granted, B)
    assert verified.result(0) == {B: CONCURRENT}
    assert bench.init(granted).error is CONCURRENT
    waiting = bench.verify_later(granted, B, add=True)
    assert not waiting.done()
    bench.markers.release()
    bench.run()
    assert waiting.result(0) == {B: NONE}
    assert bench.end(granted, True, version=2) == ProducerIdentity(2000, 1)


def test_version_1_ends_under_the_last_epoch_as_under_any() -> None:
    bench = at_epoch(32_766)
    bench.add((50, 32_766))
    assert bench.end((50, 32_766), True).error is NONE
    assert bench.markers.at(A) == [(50, 32_766, True)]
    assert bench.add((50, 32_766)) is NONE


# -- producer ids ------------------------------------------------------------------------------------------------


def test_a_request_waits_for_producer_ids() -> None:
    bench = TransactionBench().start()
    bench.ids.dry = True
    first, second = bench.init_later(), bench.init_later(id="y")
    assert not first.done()
    bench.ids.claim()
    bench.run()
    assert {first.result(0), second.result(0)} == {ProducerIdentity(1000, 0), ProducerIdentity(1001, 0)}


def test_a_request_fails_when_no_producer_ids_can_be_claimed() -> None:
    bench = TransactionBench().start()
    bench.ids.dry = True
    future = bench.init_later()
    bench.ids.claim(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    bench.run()
    assert future.result(0) == ProducerIdentity(error=LOADING)
    assert bench.now() is None


def test_end_under_the_last_epoch_waits_for_a_producer_id() -> None:
    bench = at_epoch(32_766)
    bench.add((50, 32_766))
    bench.ids.dry = True
    future = bench.end_later((50, 32_766), True, version=2)
    assert state(bench) == "Ongoing"
    bench.ids.claim()
    bench.run()
    assert future.result(0) == ProducerIdentity(2000, 0)


# -- partitions --------------------------------------------------------------------------------------------------


def test_partitions_are_kept_over_a_restart() -> None:
    bench = TransactionBench().start()
    producer = bench.init()[:2]
    bench.add(producer, A)
    bench.advance(1)
    bench.verify(producer, B, C, add=True)
    before = bench.describe()
    bench = bench.restarted()
    assert bench.describe() == before
    assert [(topic.topic, topic.partitions) for topic in before.topics] == [("t", [0, 1]), ("u", [0])]
    assert before.transaction_start_time_ms == bench.clock.now_ms() - 1000
    assert bench.verify(producer, A, ("t", 9)) == {A: NONE, ("t", 9): ErrorCode.TRANSACTION_ABORTABLE}


def test_too_many_partitions_are_refused() -> None:
    bench = TransactionBench(partitions_max=2).start()
    producer = bench.init()[:2]
    assert bench.add(producer, A, B) is NONE
    assert bench.add(producer, C) is ErrorCode.POLICY_VIOLATION
    assert bench.end(producer, True).error is NONE
    assert bench.markers.at(C) == []


def test_ids_and_partitions_are_bounded_by_memory_each() -> None:
    """Ids live for days; they leave room for the partitions of transactions."""
    most = 4 * PARTITION_BYTES  # one partition, and two ids
    assert most * IDS_SHARE <= 2 * (TRANSACTION_BYTES + getsizeof("a"))
    bench = TransactionBench(bytes_max=most, state_log_partitions=4).start()
    producer = bench.init(id="a")[:2]
    assert [bench.init(id=id).error for id in "bc"] == [NONE, ErrorCode.POLICY_VIOLATION]
    assert bench.add(producer, A, id="a") is NONE
    assert bench.add(producer, B, id="a") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    held = bench.coordinator.memory_bytes
    assert bench.restarted().coordinator.memory_bytes == held
    assert bench.end(producer, True, id="a").error is NONE
    assert bench.coordinator.memory_bytes == held - PARTITION_BYTES
    assert bench.add(producer, B, id="a") is NONE


def test_next_transaction_waits_for_the_end_of_the_last() -> None:
    bench = TransactionBench().start()
    producer = bench.init()[:2]
    bench.add(producer, A)
    bench.markers.hold = True
    bench.end(producer, True)
    waiting = [bench.add_later(producer, B), bench.verify_later(producer, C, add=True)]
    verified = bench.verify_later(producer, B)
    assert verified.result(0) == {B: CONCURRENT}
    assert not any(future.done() for future in waiting)
    bench.markers.release()
    bench.run()
    assert [future.result(0) for future in waiting] == [NONE, {C: NONE}]
    assert bench.now().partitions == {B, C}  # type: ignore[union-attr]
    bench.markers.hold = True
    bench.end(producer, False)
    late = bench.add_later(producer, A)
    bench.advance(0.2)
    assert late.result(0) is CONCURRENT
    bench.markers.release()
    bench.run()
    assert state(bench) == "CompleteAbort"


# -- markers -----------------------------------------------------------------------------------------------------


def committed(bench: TransactionBench, *partitions: tuple[str, int]) -> None:
    producer = bench.init()[:2]
    bench.add(producer, *partitions)
    assert bench.end(producer, True).error is NONE


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    ],
)
def test_a_failed_marker_is_retried(error: ErrorCode) -> None:
    bench = TransactionBench().start()
    bench.markers.errors[B] = deque([error] * 4)
    committed(bench, A, B)
    assert state(bench) == "PrepareCommit"
    bench.advance(1)
    assert state(bench) == "CompleteCommit"
    assert (len(bench.markers.at(A)), len(bench.markers.at(B))) == (1, 1)
    assert bench.markers.asked == 6


def test_marker_retries_back_off() -> None:
    bench = TransactionBench().start()
    bench.markers.errors[A] = deque([ErrorCode.NOT_ENOUGH_REPLICAS] * 1000)
    committed(bench, A)
    bench.advance(60)
    assert 10 < bench.markers.asked < 40
    bench.markers.errors.clear()
    bench.advance(5)
    assert state(bench) == "CompleteCommit"


def test_a_marker_for_a_deleted_partition_counts_as_written() -> None:
    bench = TransactionBench().start()
    bench.markers.missing = bench.markers.deleted = {B}
    bench.markers.errors[C] = deque([ErrorCode.INVALID_PRODUCER_EPOCH])
    committed(bench, A, B, C)
    assert state(bench) == "CompleteCommit"
    assert bench.markers.asked == 3


def test_a_marker_that_could_not_be_written_is_retried() -> None:
    raises = [RuntimeError("broken")]

    class Broken(MarkedPartitions):
        def write(self, *arguments: object) -> object:  # type: ignore[override]
            if raises:
                raise raises.pop()
            return super().write(*arguments)  # type: ignore[arg-type]

    bench = TransactionBench(markers=Broken()).start()
    committed(bench, A)
    assert state(bench) == "PrepareCommit"
    bench.advance(1)
    assert state(bench) == "CompleteCommit"


@pytest.mark.parametrize("durable_markers", [0, 1, 2, 3])
def test_a_restart_resumes_the_markers(durable_markers: int) -> None:
    bench = TransactionBench().start()
    bench.markers.hold = True
    committed(bench, A, B, C)
    bench.markers.release(durable_markers)
    bench.log.hold = True  # Complete* is never durable
    bench.run()
    after = bench.restarted()
    assert state(after) == "PrepareCommit"
    after.markers.release()
    after.run()
    assert state(after) == "CompleteCommit"
    for partition in (A, B, C):
        assert set(after.markers.at(partition)) == {(1000, 0, True)}
    assert [marker.coordinator_epoch for _, marker in after.markers.durable[-3:]] == [8, 8, 8]


def test_a_failed_completion_is_retried() -> None:
    bench = TransactionBench().start()
    producer = bench.init()[:2]
    bench.add(producer)
    bench.markers.hold = True
    bench.end(producer, True)
    bench.log.refuse_always = FastAppendWait()
    bench.markers.release()
    bench.advance(30)
    assert bench.now().state is TransactionState.PREPARE_COMMIT  # type: ignore[union-attr]
    bench.log.refuse_always = None
    bench.advance(11)
    assert state(bench) == "CompleteCommit"
    assert len(bench.markers.durable) == 1


# -- time --------------------------------------------------------------------------------------------------------


def test_a_transaction_open_too_long_is_aborted() -> None:
    bench = TransactionBench().start()
    producer = bench.init(timeout_ms=15_000)[:2]
    bench.add(producer, A)
    bench.advance(14)
    bench.add(producer, B)  # does not restart it
    assert state(bench) == "Ongoing"
    bench.advance(7)
    assert state(bench) == "CompleteAbort"
    assert bench.markers.at(A) == bench.markers.at(B) == [(1000, 1, False)]
    assert bench.end(producer, True).error is FENCED
    assert bench.init(producer) == bench.init(producer) == ProducerIdentity(1000, 1)  # it may go on
    assert bench.init() == ProducerIdentity(1000, 2)
    assert bench.init(producer).error is FENCED  # another instance has taken its place


@pytest.mark.parametrize(("commit", "error"), [(False, NONE), (True, ErrorCode.INVALID_TXN_STATE)])
def test_a_producer_whose_transaction_timed_out_aborts_and_goes_on(commit: bool, error: ErrorCode) -> None:
    bench = TransactionBench().start()
    producer = bench.init(timeout_ms=15_000)[:2]
    bench.add(producer)
    bench.advance(21)
    ended = bench.end(producer, commit, version=2)
    assert ended.error is error
    if not commit:
        following = (ended.producer_id, ended.producer_epoch)
        assert following == (1000, 1)
        assert bench.add(following) is NONE
        assert bench.end(following, True, version=2).error is NONE


def test_a_producer_that_asks_for_a_new_epoch_in_a_transaction_gets_it_at_the_next_try() -> None:
    bench = TransactionBench().start()
    producer = bench.init()[:2]
    bench.add(producer)
    assert bench.init(producer).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert bench.init(producer) == bench.init(producer) == ProducerIdentity(1000, 1)
    assert state(bench) == "Empty"


def test_the_time_out_counts_over_a_restart() -> None:
    bench = TransactionBench().start()
    producer = bench.init(timeout_ms=15_000)[:2]
    bench.add(producer)
    bench.advance(9)
    bench = bench.restarted()
    bench.advance(10.1)
    assert state(bench) == "CompleteAbort"


def test_unused_ids_expire() -> None:
    bench = TransactionBench(id_expiration_ms=7_000_000).start()
    bench.init(id="empty")
    for id in ("open", "ended", "stuck"):
        producer = bench.init(id=id, timeout_ms=900_000)[:2]
        bench.add(producer, id=id)
    bench.end(producer := (bench.now("ended").producer_id, 0), True, id="ended")  # type: ignore[union-attr]
    bench.markers.hold = True
    bench.end((bench.now("stuck").producer_id, 0), True, id="stuck")  # type: ignore[union-attr]
    bench.advance(3_600)
    assert bench.add(producer, id="ended") is NONE
    bench.markers.hold = False
    assert bench.end(producer, True, id="ended").error is NONE
    bench.advance(3_601)
    listed = {each.transactional_id for each in bench.list()}
    assert "empty" not in listed
    assert {"ended", "stuck"} <= listed
    assert {each.transactional_id for each in bench.restarted().list()} == listed
    assert bench.describe("empty").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert bench.init(id="empty").producer_epoch == 0


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_time_out_out_of_bounds_is_refused(timeout_ms: int) -> None:
    bench = TransactionBench().start()
    assert bench.init(timeout_ms=timeout_ms).error is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert bench.now() is None


def test_too_many_transactional_ids_are_refused() -> None:
    bench = TransactionBench(transactional_ids_max=2, state_log_partitions=4).start()
    assert bench.init(id="a").error is NONE
    assert bench.init(id="b").error is NONE
    assert bench.init(id="c").error is ErrorCode.POLICY_VIOLATION
    assert bench.init(id="a").error is NONE


# -- administration ----------------------------------------------------------------------------------------------


def test_list_filters() -> None:
    bench = TransactionBench(state_log_partitions=4).start()
    for id in ("a", "b"):
        producer = bench.init(id=id)[:2]
    bench.add(producer, id="b")
    bench.advance(5)

    def ids(**filters: object) -> list[str]:
        return sorted(each.transactional_id for each in bench.list(**filters))

    assert ids() == ["a", "b"]
    assert ids(states=frozenset({TransactionState.ONGOING})) == ["b"]
    assert ids(states=frozenset()) == []
    assert ids(producer_ids=frozenset({1000})) == ["a"]
    assert ids(open_longer_than_ms=4_999) == ["b"]
    assert ids(open_longer_than_ms=5_000) == []
    assert ids(matches_id=lambda id: id == "a") == ["a"]


def test_a_snapshot_keeps_all_transactions() -> None:
    bench = TransactionBench(snapshot_min_records=20, snapshot_min_bytes=1).start()
    producers = {id: bench.init(id=id)[:2] for id in ("a", "b", "c")}
    bench.add(producers["b"], A, id="b")
    for _ in range(50):
        bench.add(producers["a"], A, id="a")
        bench.end(producers["a"], True, id="a")
    assert bench.log.start_offset > 0
    before = [bench.describe(id) for id in producers]
    assert [bench.restarted().describe(id) for id in producers] == before
