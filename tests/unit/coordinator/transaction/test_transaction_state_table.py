"""Every request in every state of a transactional id, with every epoch that matters."""

from __future__ import annotations

import pytest

from kbroker.coordinator.transaction.state import ProducerIdentity, Transaction, TransactionState
from kbroker.errors import ErrorCode
from tests.unit.coordinator.transaction.transaction_fakes import A, B, TransactionBench

NONE, FENCED, CONCURRENT = ErrorCode.NONE, ErrorCode.PRODUCER_FENCED, ErrorCode.CONCURRENT_TRANSACTIONS
BAD_STATE, NO_MAPPING = ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING
NOT_IN_IT = ErrorCode.TRANSACTION_ABORTABLE

EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
STATES = [EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT]

PRODUCER_ID, EPOCH = 77, 5
CURRENT, RETRY, OLD, FUTURE = EPOCH, EPOCH - 1, EPOCH - 2, EPOCH + 1


def bench_in(state: TransactionState) -> TransactionBench:
    """A started coordinator whose id "x" is in `state`, with epoch 4 as the previous one."""
    bench = TransactionBench()
    bench.markers.hold = True
    has_partitions = state in (ONGOING, PREPARE_COMMIT, PREPARE_ABORT)
    bench.given(
        Transaction(
            producer_id=PRODUCER_ID,
            producer_epoch=EPOCH,
            timeout_ms=60_000,
            state=state,
            last_update_ms=bench.clock.now_ms(),
            partitions=frozenset({A}) if has_partitions else frozenset(),
            start_ms=-1 if state is EMPTY else bench.clock.now_ms(),
            previous_producer_id=PRODUCER_ID,
            last_producer_epoch=RETRY,
        )
    )
    return bench.start()


def outcome(bench: TransactionBench, answer: ProducerIdentity) -> tuple[ErrorCode, TransactionState, int]:
    """(error, state, epoch) after a request; the answer names an identity if and only if it is a success."""
    transaction = bench.now()
    assert transaction is not None
    assert (answer.producer_id >= 0) == (answer.error is NONE)
    return answer.error, transaction.state, transaction.producer_epoch


# -- EndTxn ------------------------------------------------------------------------------------------------------

# Version 1: only the current epoch may; (state, commit) -> (error, state after)
END_1 = {
    (EMPTY, True): (BAD_STATE, EMPTY),
    (EMPTY, False): (BAD_STATE, EMPTY),
    (ONGOING, True): (NONE, PREPARE_COMMIT),
    (ONGOING, False): (NONE, PREPARE_ABORT),
    (PREPARE_COMMIT, True): (CONCURRENT, PREPARE_COMMIT),
    (PREPARE_COMMIT, False): (CONCURRENT, PREPARE_COMMIT),
    (PREPARE_ABORT, True): (CONCURRENT, PREPARE_ABORT),
    (PREPARE_ABORT, False): (CONCURRENT, PREPARE_ABORT),
    (COMPLETE_COMMIT, True): (NONE, COMPLETE_COMMIT),
    (COMPLETE_COMMIT, False): (BAD_STATE, COMPLETE_COMMIT),
    (COMPLETE_ABORT, True): (BAD_STATE, COMPLETE_ABORT),
    (COMPLETE_ABORT, False): (NONE, COMPLETE_ABORT),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("epoch", [CURRENT, RETRY, OLD, FUTURE])
def test_end_version_1(state: TransactionState, commit: bool, epoch: int) -> None:
    bench = bench_in(state)
    answer = bench.end((PRODUCER_ID, epoch), commit)
    expected = (*END_1[state, commit], EPOCH) if epoch == CURRENT else (FENCED, state, EPOCH)
    assert outcome(bench, answer) == expected


# Version 2: (state, commit, epoch) -> (error, state after, epoch after); the epoch of the answer is the one after.
# An abort of nothing has no partitions to tell, so it is complete at once. While markers are written, all wait.
NEXT = EPOCH + 1
END_2 = {
    (EMPTY, True, CURRENT): (BAD_STATE, EMPTY, EPOCH),
    (EMPTY, False, CURRENT): (NONE, COMPLETE_ABORT, NEXT),
    (EMPTY, True, RETRY): (FENCED, EMPTY, EPOCH),
    (EMPTY, False, RETRY): (FENCED, EMPTY, EPOCH),
    (ONGOING, True, CURRENT): (NONE, PREPARE_COMMIT, NEXT),
    (ONGOING, False, CURRENT): (NONE, PREPARE_ABORT, NEXT),
    (ONGOING, True, RETRY): (FENCED, ONGOING, EPOCH),
    (ONGOING, False, RETRY): (FENCED, ONGOING, EPOCH),
    (COMPLETE_COMMIT, True, CURRENT): (BAD_STATE, COMPLETE_COMMIT, EPOCH),
    (COMPLETE_COMMIT, False, CURRENT): (NONE, COMPLETE_ABORT, NEXT),
    (COMPLETE_COMMIT, True, RETRY): (NONE, COMPLETE_COMMIT, EPOCH),
    (COMPLETE_COMMIT, False, RETRY): (BAD_STATE, COMPLETE_COMMIT, EPOCH),
    (COMPLETE_ABORT, True, CURRENT): (BAD_STATE, COMPLETE_ABORT, EPOCH),
    (COMPLETE_ABORT, False, CURRENT): (NONE, COMPLETE_ABORT, NEXT),
    (COMPLETE_ABORT, True, RETRY): (BAD_STATE, COMPLETE_ABORT, EPOCH),
    (COMPLETE_ABORT, False, RETRY): (NONE, COMPLETE_ABORT, EPOCH),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("epoch", [CURRENT, RETRY, OLD, FUTURE])
def test_end_version_2(state: TransactionState, commit: bool, epoch: int) -> None:
    bench = bench_in(state)
    answer = bench.end((PRODUCER_ID, epoch), commit, version=2)
    other = CONCURRENT if state in (PREPARE_COMMIT, PREPARE_ABORT) else FENCED
    expected = END_2.get((state, commit, epoch), (other, state, EPOCH))
    assert outcome(bench, answer) == expected
    if not answer.error:
        assert answer == ProducerIdentity(PRODUCER_ID, expected[2])


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("version", [0, 2])
def test_an_end_by_another_producer_id_is_refused(state: TransactionState, version: int) -> None:
    bench = bench_in(state)
    being_completed = version == 2 and state in (PREPARE_COMMIT, PREPARE_ABORT)
    expected = CONCURRENT if being_completed else NO_MAPPING
    assert bench.end((PRODUCER_ID + 1, EPOCH), True, version=version).error is expected


@pytest.mark.parametrize("state", [PREPARE_COMMIT, PREPARE_ABORT])
def test_abort_of_an_empty_transaction_waits_for_the_markers_of_the_one_before(state: TransactionState) -> None:
    bench = bench_in(state)
    answer = bench.end_later((PRODUCER_ID, EPOCH), False, version=2)
    assert not answer.done()
    bench.markers.release()
    bench.run()
    assert outcome(bench, answer.result(0)) == (NONE, COMPLETE_ABORT, NEXT)


# -- AddPartitionsToTxn and verification -------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("epoch", [CURRENT, RETRY, OLD, FUTURE])
def test_add_and_verify(state: TransactionState, epoch: int) -> None:
    if epoch != CURRENT:
        error = FENCED
    elif state in (PREPARE_COMMIT, PREPARE_ABORT):
        error = CONCURRENT
    else:
        error = NONE
    verified = bench_in(state).verify((PRODUCER_ID, epoch), A, B)
    in_it = NONE if state is ONGOING else NOT_IN_IT
    assert verified == ({A: error, B: error} if error else {A: in_it, B: NOT_IN_IT})

    for ask in ("add", "verify"):
        bench = bench_in(state)
        if ask == "add":
            future = bench.add_later((PRODUCER_ID, epoch), A, B)
        else:
            future = bench.verify_later((PRODUCER_ID, epoch), A, B, add=True)
        bench.advance(0.11)  # it waits so long for a transaction that is being completed
        assert future.result(0) == (error if ask == "add" else {A: error, B: error})
        after = bench.now()
        assert after is not None
        assert after.partitions == (frozenset({A, B}) if not error else bench_in(state).now().partitions)  # type: ignore[union-attr]
        assert after.state is (ONGOING if not error else state)
        assert after.producer_epoch == EPOCH


@pytest.mark.parametrize("state", STATES)
def test_an_addition_by_another_producer_id_is_refused(state: TransactionState) -> None:
    bench = bench_in(state)
    assert bench.add((PRODUCER_ID + 1, EPOCH)) is NO_MAPPING
    assert bench.verify((PRODUCER_ID + 1, EPOCH)) == {A: NO_MAPPING}


# -- InitProducerId ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("expected", [None, CURRENT, RETRY, OLD, FUTURE])
def test_init(state: TransactionState, expected: int | None) -> None:
    bench = bench_in(state)
    answer = bench.init(None if expected is None else (PRODUCER_ID, expected))
    if state in (PREPARE_COMMIT, PREPARE_ABORT):
        assert outcome(bench, answer) == (CONCURRENT, state, EPOCH)
    elif state is ONGOING:
        if expected in (None, CURRENT):
            assert outcome(bench, answer) == (CONCURRENT, PREPARE_ABORT, EPOCH + 1)
        else:
            assert outcome(bench, answer) == (FENCED, ONGOING, EPOCH)
    elif expected in (None, CURRENT):
        assert outcome(bench, answer) == (NONE, EMPTY, EPOCH + 1)
        assert answer == ProducerIdentity(PRODUCER_ID, EPOCH + 1)
    elif expected == RETRY:
        assert outcome(bench, answer) == (NONE, EMPTY, EPOCH)
        assert answer == ProducerIdentity(PRODUCER_ID, EPOCH)
    else:
        assert outcome(bench, answer) == (FENCED, state, EPOCH)


@pytest.mark.parametrize("state", STATES)
def test_init_by_another_producer_id_is_fenced(state: TransactionState) -> None:
    bench = bench_in(state)
    assert outcome(bench, bench.init((PRODUCER_ID + 1, EPOCH))) == (FENCED, state, EPOCH)


def test_an_unknown_transactional_id_is_refused() -> None:
    bench = TransactionBench().start()
    assert bench.end((PRODUCER_ID, EPOCH), True).error is NO_MAPPING
    assert bench.end((PRODUCER_ID, EPOCH), True, version=2).error is NO_MAPPING
    assert bench.add((PRODUCER_ID, EPOCH)) is NO_MAPPING
    assert bench.verify((PRODUCER_ID, EPOCH)) == {A: NO_MAPPING}
    assert bench.init((PRODUCER_ID, EPOCH)) == ProducerIdentity(1000, 0)  # it had expired
