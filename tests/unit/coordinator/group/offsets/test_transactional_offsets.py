"""Offsets committed in transactions: invisible until COMMIT, in log order with plain commits, fenced and guarded."""

from concurrent.futures import Future

import pytest

from kbroker._fast.wal.commit import FastAppendWait
from kbroker.coordinator.group.requests import Leaver
from kbroker.coordinator.runtime import snapshot as shard_snapshot
from kbroker.errors import ErrorCode
from tests.unit.coordinator.coordinator_fakes import Bench, answered

UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT
DAY = 86_400.0


def both(bench: Bench) -> tuple[Bench, Bench]:
    """The coordinator as it is, and as it is after a restart."""
    return bench, bench.restarted()


# -- visibility --------------------------------------------------------------------------------------------------


def test_pending_offsets_are_invisible_until_commit() -> None:
    bench = Bench().start()
    assert bench.commit(1).result(0) == 0
    assert bench.commit_in_transaction(7).result(0) == 0
    for each in both(bench):
        assert each.committed() == 1
        assert each.stable_offset() is UNSTABLE
        assert each.stable_offset(partition=1) is None
        assert each.end().result(0) == 0
        assert each.committed() == each.stable_offset() == 7
        assert each.restarted().committed() == 7


def test_aborted_offsets_are_dropped() -> None:
    bench = Bench().start()
    bench.commit(1)
    bench.commit_in_transaction(7)
    for each in both(bench):
        each.end(commit=False)
        assert each.stable_offset() == 1
        assert each.restarted().stable_offset() == 1


def test_a_group_is_created_by_a_commit_in_a_transaction() -> None:
    bench = Bench().start()
    bench.commit_in_transaction(7)
    for each in both(bench):
        assert (each.state(), each.committed(), each.stable_offset()) == ("Empty", None, UNSTABLE)
        assert each.all_offsets() == {}
        assert each.fetch_all(stable=True) == {("t", 0): UNSTABLE}
        each.end()
        assert each.all_offsets() == {("t", 0): 7}
        assert each.coordinator.counts.offsets == 1


def test_group_that_only_an_aborted_transaction_named_is_gone() -> None:
    bench = Bench().start()
    bench.commit_in_transaction(7)
    bench.end(commit=False)
    for each in both(bench):
        assert each.state() == "Dead"
        assert each.coordinator.counts.groups == 0


def test_later_plain_commit_wins_over_the_transaction() -> None:
    bench = Bench().start()
    bench.commit_in_transaction(7)
    bench.commit(3)
    for each in both(bench):
        assert each.committed() == 3
        assert each.stable_offset() is UNSTABLE
        each.end()
        assert each.stable_offset() == 3


def test_transaction_after_a_plain_commit_wins() -> None:
    bench = Bench().start()
    bench.commit_in_transaction(7)
    bench.commit(3)
    bench.commit_in_transaction(8)
    for each in both(bench):
        each.end()
        assert each.stable_offset() == 8


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_of_two_transactions_the_later_record_wins_whichever_ends_first(order: tuple[int, int]) -> None:
    bench = Bench().start()
    bench.commit_in_transaction(10, producer=1)
    bench.commit_in_transaction(20, producer=2)
    for each in both(bench):
        each.end(order[0])
        assert each.stable_offset() is UNSTABLE
        each.end(order[1])
        assert each.stable_offset() == 20


def test_later_transaction_aborted_leaves_the_earlier_one() -> None:
    bench = Bench().start()
    bench.commit_in_transaction(10, producer=1)
    bench.commit_in_transaction(20, producer=2)
    bench.end(2, commit=False)
    for each in both(bench):
        each.end(1)
        assert each.stable_offset() == 10


def test_fetch_waits_for_the_durable_marker() -> None:
    bench = Bench().start()
    bench.commit_in_transaction(7)
    bench.log.hold = True
    ending, fetching = bench.end(), bench.fetch(stable=True)
    assert not ending.done()
    assert not fetching.done()
    bench.log.release()
    bench.run()
    assert ending.result(0) == 0
    assert fetching.result(0)[0][1][0][1].offset == 7


# -- markers -----------------------------------------------------------------------------------------------------


def test_marker_may_be_repeated() -> None:
    bench = Bench().start()
    bench.commit_in_transaction(7)
    assert [bench.end().result(0) for _ in range(2)] == [0, 0]
    bench.commit(9)
    assert bench.end().result(0) == 0
    for each in both(bench):
        assert each.stable_offset() == 9


def test_marker_of_an_older_epoch_is_fenced() -> None:
    bench = Bench().start()
    bench.commit_in_transaction(7, epoch=3)
    assert bench.end(epoch=2).result(0) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert bench.stable_offset() is UNSTABLE
    assert bench.end(epoch=4).result(0) == 0
    assert bench.stable_offset() == 7


def test_marker_waits_for_the_load() -> None:
    before = Bench().start()
    before.commit_in_transaction(7)
    after = Bench([log.restarted() for log in before.logs])
    after.executor.hold = True
    after.start()
    ending = after.end()
    assert not ending.done()
    after.executor.run()
    after.run()
    assert ending.result(0) == 0
    assert after.stable_offset() == 7


def test_a_marker_for_a_missing_partition_is_refused() -> None:
    bench = Bench(has_topic=False).start()
    assert bench.end().result(0) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench = Bench().start()
    assert bench.end(partition=1).result(0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert bench.end(partition=-1).result(0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    bench.resign(1)
    assert bench.end().result(0) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    bench.coordinator.stop()
    assert bench.end().result(0) == ErrorCode.NOT_LEADER_OR_FOLLOWER


# -- fencing and verification ------------------------------------------------------------------------------------


def test_batch_of_an_older_epoch_is_fenced() -> None:
    bench = Bench().start()
    bench.commit_in_transaction(7, epoch=3)
    assert bench.commit_in_transaction(8, epoch=2).result(0) == ErrorCode.INVALID_PRODUCER_EPOCH
    bench.end(epoch=3)
    assert bench.stable_offset() == 7


def test_verified_once_per_transaction() -> None:
    bench = Bench(offsets_topic_partitions=4).start()
    (partition,) = {3}  # of "g"
    for offset in range(3):
        bench.commit_in_transaction(offset)
    assert bench.verified == [(1, 0, partition)]
    bench.end(partition=partition)
    bench.commit_in_transaction(5)
    assert bench.verified == [(1, 0, partition)] * 2
    after = bench.restarted(offsets_topic_partitions=4)
    assert after.commit_in_transaction(6).result(0) == 0
    assert after.verified == []


def test_refused_verification_is_the_answer() -> None:
    bench = Bench().start()
    bench.verification = lambda: answered(ErrorCode.TRANSACTION_ABORTABLE)
    assert bench.commit_in_transaction(7).result(0) == ErrorCode.TRANSACTION_ABORTABLE
    broken: Future[ErrorCode] = Future()
    broken.set_exception(RuntimeError("broken"))
    bench.verification = lambda: broken
    assert bench.commit_in_transaction(7).result(0) == ErrorCode.UNKNOWN_SERVER_ERROR
    assert bench.coordinator.counts.groups == 0
    assert len(bench.coordinator.shards.runtimes[0].shard.guards) == 0


def test_commit_that_comes_after_its_marker_is_refused() -> None:
    bench = Bench().start()
    verifying: Future[ErrorCode] = Future()
    bench.verification = lambda: verifying
    committing = bench.commit_in_transaction(7)
    bench.end(commit=False)
    verifying.set_result(ErrorCode.NONE)
    bench.run()
    assert committing.result(0) == ErrorCode.INVALID_TXN_STATE
    assert bench.stable_offset() is None


def test_verification_of_a_later_epoch_fences_the_waiting_one() -> None:
    bench = Bench().start()
    answers: list[Future[ErrorCode]] = []

    def verify() -> Future[ErrorCode]:
        answers.append(Future())
        return answers[-1]

    bench.verification = verify
    old, new = bench.commit_in_transaction(1, epoch=0), bench.commit_in_transaction(2, epoch=1)
    assert bench.commit_in_transaction(3, epoch=0).result(0) == ErrorCode.INVALID_PRODUCER_EPOCH
    for answer in answers:
        answer.set_result(ErrorCode.NONE)
    bench.run()
    assert (old.result(0), new.result(0)) == (ErrorCode.INVALID_PRODUCER_EPOCH, 0)
    bench.end(epoch=1)
    assert bench.stable_offset() == 2


def test_two_commits_that_wait_for_one_verification_both_go_on() -> None:
    bench = Bench().start()
    verifying: Future[ErrorCode] = Future()
    bench.verification = lambda: verifying
    commits = [bench.commit_in_transaction(partition, partition=partition) for partition in range(2)]
    verifying.set_result(ErrorCode.NONE)
    bench.run()
    assert [commit.result(0) for commit in commits] == [0, 0]
    bench.end()
    assert bench.all_offsets() == {("t", 0): 0, ("t", 1): 1}


def test_a_commit_is_refused_if_the_shard_reloads_during_its_verification() -> None:
    bench = Bench().start()
    verifying: Future[ErrorCode] = Future()
    bench.verification = lambda: verifying
    committing = bench.commit_in_transaction(7)
    bench.log.hold = True
    bench.commit(1)
    bench.log.release(error=ErrorCode.KAFKA_STORAGE_ERROR)
    bench.log.hold = False
    bench.run()
    verifying.set_result(ErrorCode.NONE)
    bench.run()
    assert committing.result(0) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert bench.stable_offset() is None


def test_a_failed_append_rolls_the_pending_offset_back() -> None:
    bench = Bench().start()
    bench.log.hold = True
    committing = bench.commit_in_transaction(7)
    bench.log.release(error=ErrorCode.KAFKA_STORAGE_ERROR)
    bench.log.hold = False
    bench.run()
    assert committing.result(0) == ErrorCode.NOT_COORDINATOR
    assert bench.stable_offset() is None


def test_a_marker_without_space_is_retried_in_order() -> None:
    bench = Bench().start()
    bench.commit_in_transaction(7)
    bench.log.refusals.append(FastAppendWait())
    ending, committing = bench.end(), bench.commit_in_transaction(8, producer=2)
    assert not ending.done()
    bench.advance(0.1)
    assert (ending.result(0), committing.result(0)) == (0, 0)
    assert bench.committed() == 7


# -- membership --------------------------------------------------------------------------------------------------


def test_member_and_generation_are_checked_when_given() -> None:
    bench = Bench().start()
    generation, (member, _) = bench.stable(2, instances=["a", "b"])
    assert bench.commit_in_transaction(generation=generation, member_id=member).result(0) == 0
    assert bench.commit_in_transaction(generation=-1).result(0) == 0
    instance = next(m.group_instance_id for m in bench.describe().members if m.member_id == member)
    for expected, named in [
        (ErrorCode.ILLEGAL_GENERATION, {"generation": generation + 1, "member_id": member}),
        (ErrorCode.ILLEGAL_GENERATION, {"generation": -1, "member_id": member}),
        (ErrorCode.UNKNOWN_MEMBER_ID, {"generation": generation, "member_id": "other"}),
        (ErrorCode.UNKNOWN_MEMBER_ID, {"generation": generation, "member_id": ""}),
        (ErrorCode.FENCED_INSTANCE_ID, {"generation": generation, "member_id": "other", "instance": instance}),
    ]:
        assert bench.commit_in_transaction(**named).result(0) == expected  # type: ignore[arg-type]


def test_unknown_group() -> None:
    bench = Bench(groups_max=1).start()
    assert bench.commit_in_transaction(generation=3, member_id="m").result(0) == ErrorCode.ILLEGAL_GENERATION
    assert bench.commit_in_transaction(group="").result(0) == ErrorCode.INVALID_GROUP_ID
    assert bench.commit_in_transaction(group="a").result(0) == 0
    assert bench.commit_in_transaction(group="b").result(0) == ErrorCode.POLICY_VIOLATION


def test_transaction_goes_on_while_a_rebalance_completes() -> None:
    bench = Bench().start()
    generation, (member,) = bench.stable()
    bench.join(member, protocols=[("range", b"changed")])
    assert bench.state() == "CompletingRebalance"
    assert bench.commit(generation=generation + 1, member_id=member).result(0) == ErrorCode.REBALANCE_IN_PROGRESS
    assert bench.commit_in_transaction(generation=generation + 1, member_id=member).result(0) == 0


# -- deletion and expiry -----------------------------------------------------------------------------------------


def test_deleting_offsets_deletes_pending_ones() -> None:
    bench = Bench().start()
    bench.commit(1)
    bench.commit_in_transaction(7)
    bench.commit_in_transaction(8, partition=1)
    assert bench.delete_offsets(("t", 0)) == {("t", 0): 0}
    for each in both(bench):
        assert each.stable_offset() is None
        each.end()
        assert each.all_offsets() == {("t", 1): 8}


def test_deleting_a_group_deletes_its_pending_offsets() -> None:
    bench = Bench().start()
    _, (member,) = bench.stable()
    bench.leave(Leaver(member))
    bench.commit_in_transaction(7)
    assert bench.delete() == 0
    for each in both(bench):
        assert each.end().result(0) == 0
        assert (each.state(), each.coordinator.counts.groups) == ("Dead", 0)


def test_deleting_a_topic_deletes_its_pending_offsets() -> None:
    bench = Bench().start()
    bench.commit_in_transaction(7, topic="t")
    bench.commit_in_transaction(8, topic="u")
    bench.coordinator.on_topic_deleted("t")
    bench.run()
    for each in both(bench):
        each.end()
        assert each.all_offsets() == {("u", 0): 8}


def test_pending_offsets_of_a_topic_deleted_while_down_are_deleted() -> None:
    bench = Bench().start()
    bench.commit_in_transaction(7, topic="t")
    bench.deleted_topics.add("t")
    after = bench.restarted()
    after.end()
    assert after.all_offsets() == {}


def test_nothing_expires_while_a_transaction_is_open() -> None:
    bench = Bench().start()
    bench.commit(1)
    bench.commit(2, partition=1)
    bench.commit_in_transaction(7)
    bench.advance(8 * DAY)
    assert bench.all_offsets() == {("t", 0): 1}
    bench.end(commit=False)
    assert bench.all_offsets() == {("t", 0): 1}
    bench.advance(700)
    assert bench.state() == "Dead"
    assert bench.restarted().state() == "Dead"


def test_an_emptied_group_is_kept_while_a_transaction_is_open() -> None:
    bench = Bench().start()
    _, (member,) = bench.stable()
    bench.leave(Leaver(member))
    bench.commit_in_transaction(7)
    bench.advance(601)
    for each in both(bench):
        assert each.describe().protocol_type == "consumer"
        each.end()
        assert each.committed() == 7


def test_published_offset_expires_from_its_commit() -> None:
    bench = Bench().start()
    bench.commit_in_transaction(7)
    bench.advance(6 * DAY)
    bench.end()
    bench.advance(700)
    assert bench.committed() == 7
    bench.advance(DAY)
    assert bench.committed() is None


# -- snapshots ---------------------------------------------------------------------------------------------------


def test_snapshot_waits_for_the_transactions_of_its_keys() -> None:
    bench = Bench(snapshot_min_records=100).start()
    bench.commit(1, partition=1)
    bench.commit_in_transaction(7, partition=1)
    for offset in range(150):
        bench.commit(offset)
    assert bench.log.start_offset == 0
    written = bench.log.next_offset
    bench.end()
    assert bench.log.start_offset > 100
    assert bench.log.next_offset == written + 2  # the marker, and what waited for it
    for each in both(bench):
        assert each.all_offsets() == {("t", 0): 149, ("t", 1): 7}


def test_aborted_transaction_lets_the_snapshot_write_what_was_before() -> None:
    bench = Bench(snapshot_min_records=100).start()
    bench.commit(1, partition=1)
    bench.commit_in_transaction(7, partition=1)
    bench.commit_in_transaction(7, partition=2)
    for offset in range(150):
        bench.commit(offset)
    bench.end(commit=False)
    assert bench.log.start_offset > 100
    assert bench.restarted().all_offsets() == {("t", 0): 149, ("t", 1): 1}


def test_the_snapshot_waits_for_transactions_that_began_after_its_start() -> None:
    bench = Bench(snapshot_min_records=100).start()
    bench.commit(1, partition=1)
    bench.commit_in_transaction(5, producer=1, partition=1)
    for offset in range(150):
        bench.commit(offset)
    bench.commit_in_transaction(6, producer=2, partition=1)
    bench.end(1, commit=False)
    assert bench.log.start_offset == 0
    bench.end(2)
    assert bench.log.start_offset > 100
    assert bench.restarted().all_offsets() == {("t", 0): 149, ("t", 1): 6}


def test_snapshot_is_written_between_two_transactions_that_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next transaction's commit is already queued when the marker is appended."""
    monkeypatch.setattr(shard_snapshot, "_SLICE_RECORDS", 1)
    bench = Bench(snapshot_min_records=100).start()
    bench.commit_in_transaction(1, partition=1)
    for offset in range(150):
        bench.commit(offset)
    bench.log.refusals.append(FastAppendWait())
    bench.end()
    for offset in range(2, 5):
        bench.commit_in_transaction(offset, partition=1, epoch=offset)
    bench.advance(1)
    assert bench.log.start_offset > 100
    for each in both(bench):
        assert each.committed(partition=1) == 1
        each.end(epoch=4)
        assert each.all_offsets() == {("t", 0): 149, ("t", 1): 4}


def test_loaded_shard_that_is_due_counts_what_is_pending() -> None:
    bench = Bench(snapshot_min_records=1_000_000).start()
    for partition in range(30):
        bench.commit_in_transaction(7, partition=partition)
    for offset in range(50):
        bench.commit(offset, topic="u")
    after = bench.restarted(snapshot_min_records=10)
    assert after.log.start_offset == 0  # 80 records, 31 live: not due
    after.end()
    assert after.all_offsets() == {("t", partition): 7 for partition in range(30)} | {("u", 0): 49}
