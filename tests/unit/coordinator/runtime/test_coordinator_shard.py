"""Loading, durability, failing appends, snapshots and restarts of a shard."""

import pytest

from kbroker._fast.records.records import build_batch
from kbroker._fast.wal.commit import FastAppendWait, FastKafkaError
from kbroker.clock import SystemClock
from kbroker.coordinator.group.config import GroupConfig
from kbroker.coordinator.group.coordinator import GroupCoordinator
from kbroker.coordinator.group.offsets.state import OffsetAndMetadata, OffsetRecord
from kbroker.coordinator.group.records import encode_record
from kbroker.coordinator.group.requests import CommitRequest, FetchRequest, JoinRequest, Leaver
from kbroker.coordinator.runtime import snapshot as shard_snapshot
from kbroker.coordinator.runtime.shard_runtime import ShardState
from kbroker.errors import CorruptionError, ErrorCode
from kbroker.protocol.apis.groups.k12_heartbeat import HeartbeatRequest
from tests.unit.coordinator.coordinator_fakes import Bench, HandExecutor, MemoryLog, MemoryTopic


def state(bench: Bench) -> ShardState:
    return bench.coordinator.shards.runtimes[0].state


def loading(bench: Bench) -> tuple[Bench, HandExecutor]:
    """A restart that has not loaded yet."""
    after = Bench([log.restarted() for log in bench.logs])
    after.executor.hold = True
    after.start()
    return after, after.executor


# -- topic creation ----------------------------------------------------------------------------------------------


def test_without_the_topic_groups_are_empty_and_nothing_is_created() -> None:
    bench = Bench(has_topic=False).start()
    assert bench.committed() is None
    assert bench.list_groups() == []
    assert bench.heartbeat("m", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.describe().group_state == "Dead"
    assert bench.delete() == ErrorCode.GROUP_ID_NOT_FOUND
    assert bench.offsets_topic.creations == 0


def test_the_first_write_creates_the_topic_once() -> None:
    bench = Bench(has_topic=False).start()
    bench.executor.hold = True
    located = bench.coordinator.locate()
    commit, join = bench.commit(3), bench.join()
    assert not located.done()
    bench.executor.run()
    bench.run()
    assert located.result(0) == commit.result(0) == 0
    bench.advance(3.1)
    assert join.result(0).error_code == 0
    assert bench.offsets_topic.creations == 1


def test_requests_are_refused_while_the_topic_cannot_be_created() -> None:
    bench = Bench(has_topic=False).start()

    def fail() -> None:
        raise OSError("store away")

    create = bench.offsets_topic.create
    bench.offsets_topic.create = fail  # type: ignore[method-assign]
    assert bench.commit().result(0) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.join().result(0).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    located = bench.coordinator.locate()
    bench.run()
    assert located.result(0) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.offsets_topic.create = create  # type: ignore[method-assign]
    assert bench.commit().result(0) == 0


# -- loading -----------------------------------------------------------------------------------------------------


def test_a_loading_shard_answers_load_in_progress() -> None:
    bench = Bench().start()
    generation, (member,) = bench.stable()
    after, executor = loading(bench)
    in_progress = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert after.join(member).result(0).error_code == in_progress
    assert after.sync(member, generation).result(0).error_code == in_progress
    assert after.commit().result(0) == in_progress
    assert after.fetch().result(0) == in_progress
    assert after.describe().error_code == in_progress
    assert after.delete() == in_progress
    assert after.list_groups() == in_progress
    assert after.leave(Leaver(member)).error_code == in_progress
    assert after.heartbeat(member, generation) == 0
    executor.run()
    after.run()
    assert after.heartbeat(member, generation) == 0
    assert after.state() == "Stable"


def test_topic_deletion_waits_for_the_load() -> None:
    bench = Bench().start()
    bench.commit(1)
    after, executor = loading(bench)
    done = after.coordinator.on_topic_deleted("t")
    after.run()
    assert not done.done()
    executor.run()
    after.run()
    assert done.done()
    assert after.committed() is None


def test_members_go_on_after_a_restart_with_a_new_session() -> None:
    bench = Bench().start()
    generation, ids = bench.stable(3)
    bench.commit(9, generation=generation, member_id=ids[0])
    bench.advance(9)
    after = bench.restarted()
    after.advance(9)
    assert [after.heartbeat(member, generation) for member in ids] == [0, 0, 0]
    assert after.sync(ids[2], generation).result(0).assignment == b"of " + ids[2].encode()
    assert after.commit(10, generation=generation, member_id=ids[1]).result(0) == 0
    assert after.coordinator.counts.members == 3
    after.advance(10.1)
    assert after.state() == "Empty"


def test_a_rebalance_cut_off_by_a_restart_leaves_the_last_synced_generation() -> None:
    bench = Bench().start()
    generation, ids = bench.stable(2)
    bench.join(ids[0])
    bench.join(ids[1])  # completing, nothing durable
    after = bench.restarted()
    assert after.state() == "Stable"
    assert after.heartbeat(ids[0], generation + 1) == ErrorCode.ILLEGAL_GENERATION
    assert after.heartbeat(ids[0], generation) == 0


def test_a_failed_load_is_retried() -> None:
    bench = Bench().start()
    bench.commit(4)
    after = Bench([bench.log.restarted()])

    def fail() -> None:
        raise CorruptionError("unreadable")

    after.log.on_read = fail
    after.start()
    assert state(after) is ShardState.LOADING
    after.advance(0.6)
    assert after.log.reads == 2
    assert after.commit().result(0) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    after.log.on_read = lambda: None
    after.advance(1.1)
    assert after.committed() == 4


def test_unknown_records_are_skipped() -> None:
    bench = Bench().start()
    bench.commit(4)
    for key, value in [
        (b"\x00\x03\x00\x01g", b"x"),  # a type of the newer group protocols
        (b"", None),
        (b"\x00\x01\x00", b"x"),  # too short
        (b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x00", b"\x00\x63junk"),  # value version 99
        (None, b"x"),
    ]:
        bench.log.append(build_batch([(key, value, 0, None)]), 0, lambda error: None)
    assert bench.restarted().committed() == 4


# -- failing appends ---------------------------------------------------------------------------------------------


def test_refused_append_changes_nothing() -> None:
    bench = Bench().start()
    bench.commit(1)
    for code, told in [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ]:
        bench.log.refusals.append(FastKafkaError(int(code), "no"))
        assert bench.commit(2).result(0) == told
        assert bench.committed() == 1


def test_refused_sync_answers_all_members_and_rebalances() -> None:
    bench = Bench().start()
    futures = [bench.join() for _ in range(2)]
    bench.advance(6.1)
    leader = futures[0].result(0).leader
    follower = next(f.result(0).member_id for f in futures if f.result(0).member_id != leader)
    waiting = bench.sync(follower, 1)
    bench.log.refusals.append(FastKafkaError(int(ErrorCode.NOT_ENOUGH_REPLICAS), "no"))
    failed = bench.sync(leader, 1, {leader: b"x", follower: b"y"})
    assert failed.result(0).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert waiting.result(0).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.state() == "PreparingRebalance"


def test_append_waits_for_space_and_later_operations_queue_after_it() -> None:
    bench = Bench().start()
    bench.commit(1)
    bench.log.refuse_always = FastAppendWait()
    first, second, fetch = bench.commit(2), bench.commit(3), bench.fetch()
    bench.advance(1)
    assert not first.done()
    assert not fetch.done()
    bench.log.refuse_always = None
    bench.advance(0.2)
    assert first.result(0) == second.result(0) == 0
    assert fetch.result(0)[0][1][0][1].offset == 3


def test_an_append_without_space_times_out() -> None:
    bench = Bench(append_timeout_ms=5_000).start()
    bench.commit(1)
    bench.log.refuse_always = FastAppendWait()
    first, fetch = bench.commit(2), bench.fetch()
    bench.advance(5.2)
    assert first.result(0) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert fetch.result(0)[0][1][0][1].offset == 1


def test_append_that_fails_later_rolls_back_to_what_is_durable() -> None:
    bench = Bench().start()
    generation, ids = bench.stable(2)
    bench.commit(1, generation=generation, member_id=ids[0])
    parked = bench.join(ids[0])
    bench.log.hold = True
    first = bench.commit(2, generation=generation, member_id=ids[1])
    second = bench.commit(3, generation=generation, member_id=ids[1])
    fetch = bench.fetch()
    bench.log.release(error=int(ErrorCode.KAFKA_STORAGE_ERROR))
    bench.log.hold = False
    bench.run()
    assert first.result(0) == second.result(0) == fetch.result(0) == ErrorCode.NOT_COORDINATOR
    assert parked.result(0).error_code == ErrorCode.NOT_COORDINATOR
    assert bench.committed() == 1
    assert bench.state() == "Stable"
    assert [bench.heartbeat(member, generation) for member in ids] == [0, 0]


def test_sync_is_answered_when_durable_and_not_if_the_group_went_on() -> None:
    bench = Bench().start()
    futures = [bench.join() for _ in range(2)]
    bench.advance(6.1)
    leader = futures[0].result(0).leader
    follower = next(f.result(0).member_id for f in futures if f.result(0).member_id != leader)
    bench.log.hold = True
    syncing = bench.sync(leader, 1, {leader: b"x", follower: b"y"})
    assert not syncing.done()
    bench.join(follower, protocols=[("range", b"changed")])
    assert syncing.result(0).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    bench.log.release()
    bench.run()
    assert bench.state() == "PreparingRebalance"


def test_a_stop_answers_waiting_requests() -> None:
    bench = Bench().start()
    _, ids = bench.stable(2)
    parked = bench.join(ids[0])
    bench.log.hold = True
    bench.coordinator.stop()
    assert parked.result(0).error_code == ErrorCode.NOT_COORDINATOR
    assert bench.coordinator.locate().result(0) == ErrorCode.NOT_COORDINATOR
    assert bench.commit().result(0) == ErrorCode.NOT_COORDINATOR


# -- snapshots ---------------------------------------------------------------------------------------------------


def test_log_stays_bounded_and_a_restart_sees_the_same() -> None:
    bench = Bench(snapshot_min_bytes=20_000, snapshot_min_records=100).start()
    generation, ids = bench.stable(2)
    for offset in range(2_000):
        commit = bench.commit(offset, partition=offset % 5, metadata="m" * 50, generation=generation, member_id=ids[0])
        assert commit.result(0) == 0
        assert bench.log.live_bytes < 40_000
    expected = {("t", partition): 1_995 + partition for partition in range(5)}
    for each in (bench, bench.restarted()):
        assert each.all_offsets() == expected
        assert each.heartbeat(ids[1], generation) == 0
    assert bench.log.start_offset > 0


def test_restart_in_the_middle_of_a_snapshot() -> None:
    bench = Bench(snapshot_min_records=200, snapshot_batch_bytes=300).start()
    for offset in range(200):
        bench.commit(offset, partition=offset % 50)
    assert bench.log.start_offset == 0
    bench.log.hold = True
    bench.commit(200, partition=0)  # starts it
    expected = {("t", partition): 150 + partition for partition in range(1, 50)} | {("t", 0): 200}
    restarts = 0
    bench.log.release(1)
    bench.run()
    while bench.log.waiting:
        assert bench.log.start_offset == 0
        assert bench.restarted().all_offsets() == expected
        restarts += 1
        bench.log.release(1)
        bench.run()
    assert restarts > 5
    assert bench.log.start_offset == 201
    assert bench.restarted().all_offsets() == expected


def test_commits_during_a_snapshot_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_snapshot, "_SLICE_RECORDS", 1)
    bench = Bench(snapshot_min_records=200).start()
    for offset in range(200):
        bench.commit(offset, partition=offset % 20)
    written: dict[tuple[str, int], int] = {("t", offset % 20): offset for offset in range(200)}
    changes = iter([(partition % 20, 1_000 + partition) for partition in range(0, 70, 7)])

    def change() -> None:
        for partition, offset in changes:
            written["t", partition] = offset
            request = CommitRequest("g", -1, "", None, 9, -1, [("t", partition, offset, -1, "")])
            bench.coordinator.commit_offsets(request)
            bench.coordinator.loop.post(change)
            return

    bench.coordinator.loop.post(change)
    bench.run()
    assert bench.log.start_offset > 0
    assert bench.log.next_offset - bench.log.start_offset > 20
    assert bench.all_offsets() == written
    assert bench.restarted().all_offsets() == written


@pytest.mark.parametrize("live", [0, 3])
def test_a_group_created_before_the_first_slice_is_kept(live: int) -> None:
    """A snapshot begins with a commit; the next commit, of a new group, is already queued."""
    bench = Bench(snapshot_min_records=100).start()
    for partition in range(live):
        bench.commit(1, partition=partition, group="live")
    while bench.log.next_offset + (0 if live else 1) < 100:
        bench.commit(1)
    if not live:
        bench.coordinator.delete_group("g")
    for group in ("g", "new"):
        bench.coordinator.commit_offsets(CommitRequest(group, -1, "", None, 9, -1, [("t", 0, 7, -1, "")]))
    bench.run()
    assert bench.log.start_offset > 90
    assert [bench.restarted().committed(group=group) for group in ("g", "new")] == [7, 7]


def test_snapshot_of_nothing_empties_the_log() -> None:
    bench = Bench(snapshot_min_records=100).start()
    for offset in range(51):
        bench.commit(offset)
        bench.delete()
    assert bench.log.start_offset > 90
    assert bench.restarted().coordinator.counts.groups == 0


def test_a_failed_advance_of_the_log_start_is_retried() -> None:
    bench = Bench(snapshot_min_records=100).start()
    advance, calls = bench.log.advance_start, []

    def fail(offset: int) -> None:
        calls.append(offset)
        raise OSError("away")

    bench.log.advance_start = fail  # type: ignore[method-assign]
    for offset in range(150):
        bench.commit(offset)
    assert len(calls) == 1
    bench.log.advance_start = advance  # type: ignore[method-assign]
    bench.advance(10.1)
    bench.commit(150)
    assert bench.log.start_offset > 100
    assert bench.restarted().committed() == 150


def test_large_decision_is_cut_into_batches() -> None:
    bench = Bench(snapshot_batch_bytes=1_000).start()
    for partition in range(100):
        bench.commit(1, partition=partition)
    before = len(bench.log.batches)
    assert bench.delete() == 0
    assert len(bench.log.batches) - before > 1
    assert all(len(batch) < 2_500 for _, batch in bench.log.batches)
    assert bench.restarted().coordinator.counts.offsets == 0


def test_a_decision_appended_in_part_is_reloaded_from_the_log() -> None:
    bench = Bench(snapshot_batch_bytes=1_000, append_timeout_ms=5_000).start()
    for partition in range(100):
        bench.commit(1, partition=partition)
    append = bench.log.append

    def refuse(*_: object) -> int:
        raise FastAppendWait

    def only_the_first(*what: object) -> int:
        bench.log.append = refuse  # type: ignore[method-assign]
        return append(*what)  # type: ignore[arg-type]

    bench.log.append = only_the_first  # type: ignore[method-assign]
    deleted = bench.coordinator.delete_group("g")
    bench.advance(5.5)
    assert deleted.result(0) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.log.append = append  # type: ignore[method-assign]
    left = bench.all_offsets()
    assert 0 < len(left) < 100
    assert left == bench.restarted().all_offsets()


def test_empty_log_needs_no_worker() -> None:
    bench = Bench([MemoryLog()])
    bench.executor.hold = True
    bench.start()
    assert state(bench) is ShardState.ACTIVE


def test_late_durability_of_an_older_generation_releases_no_sync() -> None:
    bench = Bench().start()
    futures = [bench.join() for _ in range(2)]
    bench.advance(6.1)
    leader = futures[0].result(0).leader
    follower = next(f.result(0).member_id for f in futures if f.result(0).member_id != leader)
    bench.log.hold = True
    bench.sync(leader, 1, {leader: b"old", follower: b"old"})
    bench.join(leader, protocols=[("range", b"changed")])
    assert bench.join(follower).result(0).generation_id == 2
    waiting = bench.sync(follower, 2)
    bench.log.release()
    bench.run()
    assert not waiting.done()
    assert bench.state() == "CompletingRebalance"


def test_members_that_do_not_come_back_after_a_restart_expire() -> None:
    bench = Bench().start()
    bench.stable(2)
    after = bench.restarted()
    after.advance(9.9)
    assert after.state() == "Stable"
    after.advance(0.2)
    assert after.state() == "Empty"


def test_records_below_the_log_start_are_not_replayed() -> None:
    bench = Bench().start()
    records = [encode_record(OffsetRecord("g", "t", p, OffsetAndMetadata(p))) for p in range(4)]
    bench.log.append(build_batch([(key, value, 0, None) for key, value in records]), 0, lambda error: None)
    bench.log.advance_start(2)
    assert bench.restarted().all_offsets() == {("t", 2): 2, ("t", 3): 3}


def test_a_coordinator_serves_requests_on_its_own_threads() -> None:
    logs = [MemoryLog() for _ in range(50)]
    coordinator = GroupCoordinator(
        GroupConfig(initial_rebalance_delay_ms=0),
        SystemClock(),
        topic=MemoryTopic(logs),
        topic_exists=lambda topic, partition: True,
        deleted_topics=frozenset,
    )
    coordinator.start()
    join = JoinRequest("g", "", None, "c", "/h", 10_000, 60_000, "consumer", [("range", b"")], False, False)
    assert coordinator.join_group(join).result(10).generation_id == 1
    commits = [CommitRequest(f"s{i}", -1, "", None, 9, -1, [("t", 0, i, -1, "")]) for i in range(100)]
    assert [f.result(10) for f in [coordinator.commit_offsets(commit) for commit in commits]] == [0] * 100
    fetched = coordinator.fetch_offsets(FetchRequest("s7", None)).result(10)
    assert not isinstance(fetched, ErrorCode)
    committed = fetched[0][1][0][1]
    assert committed is not None
    assert committed.offset == 7
    coordinator.stop()
    assert coordinator.commit_offsets(commits[0]).result(0) == ErrorCode.NOT_COORDINATOR


def test_values_too_long_for_the_record_layout_are_refused() -> None:
    bench = Bench().start()
    long = "g" * 40_000
    assert bench.commit(group=long).result(0) == ErrorCode.UNKNOWN_SERVER_ERROR
    joined = bench.join(group=long)
    bench.advance(3.1)
    member = joined.result(0).member_id
    assert bench.sync(member, 1, {member: b"x"}, group=long).result(0).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert bench.log.next_offset == 0
    assert bench.commit(3).result(0) == 0


def test_every_request_after_a_blocked_write_is_answered_in_time() -> None:
    bench = Bench(append_timeout_ms=5_000).start()
    bench.commit(1)
    bench.log.refuse_always = FastAppendWait()
    first = [bench.commit(offset) for offset in range(2, 40)]
    bench.advance(3)
    second = [bench.commit(offset) for offset in range(40, 80)]
    fetch = bench.fetch()
    bench.advance(2.5)  # each alone would wait five seconds after the one before
    assert {commit.result(0) for commit in first} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert not any(commit.done() for commit in second)
    bench.advance(3)
    assert {commit.result(0) for commit in second} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert fetch.done()
    bench.log.refuse_always = None
    bench.advance(1)
    assert bench.commit(99).result(0) == 0
    assert bench.committed() == 99


def test_a_blocked_shard_queues_a_bounded_number_of_requests() -> None:
    bench = Bench(backlog_max=10).start()
    bench.commit(1)
    bench.log.refuse_always = FastAppendWait()
    waiting = [bench.commit(offset) for offset in range(2, 13)]  # one is the write that waits
    assert not any(commit.done() for commit in waiting)
    assert bench.commit(13).result(0) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.coordinator.shards.runtimes[0].queue_length == 10
    assert bench.coordinator.shards.runtimes[0].refused == 1
    bench.log.refuse_always = None
    bench.advance(0.2)
    assert {commit.result(0) for commit in waiting} == {0}
    assert bench.committed() == 12


def test_a_full_queue_keeps_the_coordinators_own_operations() -> None:
    bench = Bench(append_timeout_ms=5_000, backlog_max=1).start()
    generation, ids = bench.stable(1, session_ms=10_000)
    bench.log.refuse_always = FastAppendWait()
    bench.advance(9)
    blocked, queued = bench.commit(2, group="other"), bench.commit(3, group="other")
    bench.advance(20)  # the member's session ends meanwhile
    assert blocked.done()
    assert queued.done()
    bench.log.refuse_always = None
    bench.advance(1)
    assert bench.heartbeat(ids[0], generation) == ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_of_a_deleted_topic_are_dropped_however_long_the_log_is_full() -> None:
    bench = Bench(append_timeout_ms=5_000).start()
    bench.commit(1)
    bench.log.refuse_always = FastAppendWait()
    bench.deleted_topics.add("t")
    deleted = bench.coordinator.on_topic_deleted("t")
    bench.advance(60)
    assert not deleted.done()
    refused = bench.commit(2, topic="u")
    bench.advance(6)
    assert refused.result(0) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.log.refuse_always = None
    bench.advance(1)
    assert deleted.done()
    bench.deleted_topics.discard("t")
    assert bench.committed() is None
    assert bench.restarted().committed() is None


def test_changes_found_by_a_load_are_written_however_long_the_log_is_full() -> None:
    before = Bench(append_timeout_ms=5_000).start()
    before.commit(1)
    after = Bench([before.log.restarted()], append_timeout_ms=5_000)
    after.deleted_topics.add("t")
    after.log.refuse_always = FastAppendWait()
    after.start()
    after.advance(60)
    after.log.refuse_always = None
    after.advance(1)
    after.deleted_topics.discard("t")
    assert after.committed() is None


def test_a_session_expiry_queued_after_a_heartbeat_was_renewed_by_it() -> None:
    bench = Bench().start()
    generation, (member,) = bench.stable(1, session_ms=10_000)
    bench.advance(9)
    bench.log.refuse_always = FastAppendWait()
    bench.commit(2, group="other")
    heartbeat = bench.coordinator.heartbeat(HeartbeatRequest(group_id="g", generation_id=generation, member_id=member))
    bench.advance(1.5)  # the member's session ends meanwhile
    bench.log.refuse_always = None
    bench.advance(0.2)
    assert heartbeat.result(0).error_code == 0
    assert bench.heartbeat(member, generation) == 0
    bench.advance(10.1)
    assert bench.heartbeat(member, generation) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_timer_cancelled_while_its_operation_is_queued_runs_nothing() -> None:
    bench = Bench().start()
    runs: list[str] = []
    shard = bench.coordinator.shards.runtimes[0].shard
    kept, cancelled = (shard.schedule(1_000, lambda name=name: runs.append(name)) for name in ("kept", "cancelled"))
    bench.log.refuse_always = FastAppendWait()
    bench.commit(2)
    bench.advance(1.5)
    assert not kept.active
    assert not cancelled.active
    cancelled.cancel()
    assert not runs
    bench.log.refuse_always = None
    bench.advance(0.2)
    assert runs == ["kept"]


def test_a_queued_timer_of_the_previous_rebalance_does_not_end_the_next() -> None:
    bench = Bench().start()
    generation, (leader, other) = bench.stable(2, session_ms=30_000, rebalance_ms=20_000)
    asked = {"session_ms": 30_000, "rebalance_ms": 20_000}
    bench.join(leader, **asked)
    bench.advance(19)
    bench.log.refuse_always = FastAppendWait()
    bench.commit(2, group="other")
    last = bench.join(other, **asked)  # ends the rebalance when it has its turn; the leader begins the next one
    bench.join(leader, protocols=[("range", b"changed")], **asked)
    bench.advance(1.5)  # the time of the first rebalance is up meanwhile
    bench.log.refuse_always = None
    bench.advance(0.2)
    assert last.result(0).generation_id == generation + 1
    assert bench.state() == "PreparingRebalance"
    assert bench.heartbeat(other, generation + 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert bench.join(other, **asked).result(0).generation_id == generation + 2


def test_requests_that_wait_for_a_load_are_bounded() -> None:
    bench = Bench(backlog_max=2)
    bench.executor.hold = True
    bench.log.append(build_batch([(b"\0\1", b"", 0, None)]), 0, lambda error: None)
    bench.start()
    markers = [bench.end(7) for _ in range(3)]
    assert [marker.done() for marker in markers] == [False, False, True]
    assert markers[2].result(0) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    bench.executor.hold = False
    bench.executor.run()
    bench.run()
    assert [marker.result(0) for marker in markers[:2]] == [0, 0]


def test_requests_time_out_while_a_load_keeps_failing() -> None:
    bench = Bench(append_timeout_ms=3_000)
    bench.log.append(build_batch([(b"\0\1", b"", 0, None)]), 0, lambda error: None)
    bench.log.on_read = lambda: (_ for _ in ()).throw(OSError("away"))
    bench.start()
    marker = bench.end(7)
    bench.advance(2)
    assert not marker.done()
    bench.advance(8)
    assert marker.result(0) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_requests_that_waited_for_a_load_come_before_the_snapshot() -> None:
    before = Bench(snapshot_min_records=1_000_000).start()
    for offset in range(100):
        before.commit(offset)
    after = before.restarted(snapshot_min_records=50)
    end = after.log.next_offset
    after.advance(9)
    assert after.committed() == 99
    assert after.log.next_offset == end
    after.advance(2)
    assert after.log.next_offset > end  # nothing was written meanwhile, and still it was taken
    assert after.log.start_offset == end
    assert after.restarted().committed() == 99


def test_an_unknown_newest_record_falls_back_to_the_previous_one() -> None:
    bench = Bench().start()
    bench.commit(7)
    key, _ = encode_record(OffsetRecord("g", "t", 0, OffsetAndMetadata(1)))
    bench.log.append(build_batch([(key, b"\0\x7f of a later version", 0, None)]), 0, lambda error: None)
    bench.log.append(build_batch([(b"\0\x63 of a later version", b"", 0, None)]), 0, lambda error: None)
    assert bench.restarted().committed() == 7


def test_a_load_counts_its_records() -> None:
    bench = Bench().start()
    for offset in range(5):
        bench.commit(offset)
    runtime = bench.restarted().coordinator.shards.runtimes[0]
    assert runtime.loaded_records == 5
    assert runtime.queue_length == 0
