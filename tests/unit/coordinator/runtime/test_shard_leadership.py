"""Shards open and close one by one, with the leadership of their partitions."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from kbroker._fast.wal.commit import FastAppendWait, FastKafkaError
from kbroker.coordinator.runtime.key_partition import group_partition
from kbroker.coordinator.runtime.shard_runtime import ShardState
from kbroker.errors import ErrorCode
from tests.unit.coordinator.coordinator_fakes import Bench

NOT_COORDINATOR = ErrorCode.NOT_COORDINATOR
HOUR = 3_600.0
IN_PARTITION = {group_partition(name, 2): name for name in ("g", "h", "i", "j")}


def state(bench: Bench, partition: int = 0) -> ShardState:
    return bench.coordinator.shards.runtimes[partition].state


def error_of(future: Future[Any]) -> ErrorCode:
    answer = future.result(0)
    return answer if isinstance(answer, ErrorCode) else ErrorCode(answer.error_code)


def two_shards() -> Bench:
    """Both led in epoch 1, with offset 1 of a group in the first, and offset 2 of one in the second."""
    bench = Bench(offsets_topic_partitions=2).start()
    for partition in (0, 1):
        assert bench.commit(partition + 1, group=IN_PARTITION[partition]).result(0) == 0
    return bench


# -- one shard alone ---------------------------------------------------------------------------------------------


def test_a_resignation_closes_one_shard_and_an_election_opens_it() -> None:
    bench = two_shards()
    bench.resign(1, partition=1)
    assert (state(bench, 0), state(bench, 1)) == (ShardState.ACTIVE, ShardState.NOT_LED)
    assert bench.commit(5, group=IN_PARTITION[0]).result(0) == 0
    assert bench.commit(6, group=IN_PARTITION[1]).result(0) == NOT_COORDINATOR
    assert bench.fetch(group=IN_PARTITION[1]).result(0) == NOT_COORDINATOR
    reads = bench.logs[0].reads
    bench.elect(2, partition=1)
    assert bench.committed(group=IN_PARTITION[1]) == 2
    assert bench.logs[0].reads == reads, "the other shard was not touched"


def test_what_is_not_led_is_neither_listed_nor_counted() -> None:
    bench = two_shards()
    bench.stable(2, group=IN_PARTITION[1])
    assert {group.group_id for group in bench.list_groups()} == {IN_PARTITION[0], IN_PARTITION[1]}
    bench.resign(1, partition=1)
    assert [group.group_id for group in bench.list_groups()] == [IN_PARTITION[0]]
    counts = bench.coordinator.counts
    assert (counts.groups, counts.members, counts.offsets) == (1, 0, 1)
    bench.resign(1, partition=0)
    assert bench.list_groups() == []
    assert bench.bytes == 0


def test_a_topic_can_be_deleted_while_a_shard_is_not_led() -> None:
    bench = two_shards()
    bench.resign(1, partition=1)
    bench.deleted_topics.add("t")
    dropped = bench.coordinator.on_topic_deleted("t")
    bench.run()
    assert dropped.done()
    bench.elect(2, partition=1)
    for partition in (0, 1):
        assert bench.committed(group=IN_PARTITION[partition]) is None


def test_a_start_opens_what_is_led() -> None:
    bench = Bench(offsets_topic_partitions=2)
    del bench.offsets_topic.leader_epochs[1]
    bench.start()
    assert (state(bench, 0), state(bench, 1)) == (ShardState.ACTIVE, ShardState.NOT_LED)


def test_an_election_counts_that_arrives_before_the_topic_is_seen() -> None:
    bench = Bench(offsets_topic_partitions=2, has_topic=False)
    bench.offsets_topic.leader_epochs.clear()
    bench.start()
    bench.elect(3, partition=1)
    assert bench.fetch(group=IN_PARTITION[1]).result(0)[0][1] == [(0, None)]
    bench.offsets_topic.exists = True  # another broker has created it
    assert bench.fetch(group=IN_PARTITION[1]).result(0)[0][1] == [(0, None)]
    assert (state(bench, 0), state(bench, 1)) == (ShardState.NOT_LED, ShardState.ACTIVE)
    assert bench.fetch(group=IN_PARTITION[0]).result(0) == NOT_COORDINATOR


# -- what a resignation ends -------------------------------------------------------------------------------------


def test_a_resignation_answers_what_waits() -> None:
    bench = Bench().start()
    generation, ids = bench.stable(2)
    parked = bench.join(ids[0])
    bench.log.hold = True
    under_way = bench.commit(3, group="alone")
    bench.log.refuse_always = FastAppendWait()
    blocked, queued = bench.commit(4, group="alone"), bench.fetch(group="alone")
    assert not any(future.done() for future in (parked, under_way, blocked, queued))
    bench.resign(1)
    assert [error_of(future) for future in (parked, under_way, blocked, queued)] == [NOT_COORDINATOR] * 4
    assert bench.heartbeat(ids[1], generation) == NOT_COORDINATOR


def test_nothing_is_written_after_a_resignation() -> None:
    bench = Bench(offsets_retention_ms=1_000, offsets_retention_check_interval_ms=1_000).start()
    bench.stable(2)
    bench.join(session_ms=10_000, known_id=True)  # an id that expires
    bench.commit(1, group="alone")
    bench.log.hold = True
    bench.commit(2, group="alone")
    bench.resign(1)
    written = bench.log.next_offset
    bench.log.release()
    bench.advance(HOUR)
    assert bench.log.next_offset == written


def test_a_resignation_cancels_the_timers_of_its_shard() -> None:
    bench = two_shards()
    bench.stable(3, group=IN_PARTITION[0])
    bench.stable(3, group=IN_PARTITION[1])
    timers = [runtime._timers for runtime in bench.coordinator.shards.runtimes]
    cancelled = list(timers[1])
    assert len(timers[0]) == len(cancelled) == 3
    bench.resign(1, partition=1)
    assert not any(timer.active for timer in cancelled)
    assert (len(timers[0]), len(timers[1])) == (3, 0)


def test_timers_that_fired_are_not_kept() -> None:
    bench = Bench().start()
    bench.stable(2)
    bench.advance(HOUR)
    assert bench.coordinator.counts.members == 0
    assert not bench.coordinator.shards.runtimes[0]._timers


def test_a_snapshot_ends_with_the_leadership() -> None:
    bench = Bench(snapshot_min_records=50, snapshot_batch_bytes=300).start()
    for offset in range(50):
        bench.commit(offset, partition=offset % 10)
    append = bench.log.append

    def last(*batch: Any) -> int:
        offset = append(*batch)
        bench.log.refuse_always = FastAppendWait()
        return offset

    bench.log.append = last  # type: ignore[method-assign]
    bench.commit(50)  # starts it, and there is no space for it
    written = bench.log.next_offset
    bench.resign(1)
    bench.log.append, bench.log.refuse_always = append, None  # type: ignore[method-assign]
    bench.advance(HOUR)
    assert (bench.log.start_offset, bench.log.next_offset) == (0, written)


# -- loads -------------------------------------------------------------------------------------------------------


def test_a_resignation_ends_a_load() -> None:
    before = Bench().start()
    before.commit(7)
    bench = Bench([before.log.restarted()])
    bench.executor.hold = True
    bench.start()
    marker = bench.end()
    bench.resign(1)
    assert marker.result(0) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    bench.executor.run()
    bench.run()
    assert state(bench) is ShardState.NOT_LED
    assert bench.bytes == 0


def test_a_resignation_ends_the_retries_of_a_load() -> None:
    before = Bench().start()
    before.commit(7)
    bench = Bench([before.log.restarted()])
    bench.log.on_read = lambda: (_ for _ in ()).throw(OSError("away"))
    bench.start()
    bench.resign(1)
    reads = bench.log.reads
    bench.advance(HOUR)
    assert bench.log.reads == reads


def test_the_load_of_an_earlier_epoch_is_dropped() -> None:
    before = Bench().start()
    before.commit(7)
    bench = Bench([before.log.restarted()])
    bench.executor.hold = True
    bench.start()
    bench.resign(1)
    bench.elect(2)
    stale = bench.executor.waiting.popleft()
    stale()
    bench.run()
    assert state(bench) is ShardState.LOADING
    bench.executor.run()
    assert bench.committed() == 7


def test_a_load_has_what_an_earlier_leadership_left_under_way() -> None:
    bench = Bench().start()
    bench.log.hold = True
    under_way = bench.commit(8)
    bench.resign(1)
    bench.elect(2)
    assert under_way.result(0) == NOT_COORDINATOR
    assert state(bench) is ShardState.LOADING
    bench.log.release()
    bench.log.hold = False
    bench.run()
    assert bench.committed() == 8


def test_a_resignation_ends_the_wait_for_what_is_under_way() -> None:
    bench = Bench().start()
    bench.log.hold = True
    bench.commit(8)
    bench.resign(1)
    bench.elect(2)
    bench.resign(2)
    bench.log.release()
    bench.run()
    assert state(bench) is ShardState.NOT_LED


# -- the order of events -----------------------------------------------------------------------------------------


def test_an_old_resignation_does_nothing() -> None:
    bench = Bench().start()
    bench.elect(4)
    bench.resign(3)
    assert bench.commit().result(0) == 0


@pytest.mark.parametrize("late", [1, 2, 3])
def test_an_election_is_not_repeated_after_its_end(late: int) -> None:
    bench = Bench().start()
    bench.elect(3)
    bench.resign(3)
    bench.elect(late)
    assert bench.commit().result(0) == NOT_COORDINATOR
    bench.elect(4)
    assert bench.commit().result(0) == 0


def test_a_repeated_election_does_nothing() -> None:
    bench = Bench().start()
    bench.stable()
    parked = bench.join()
    reads = bench.log.reads
    bench.elect(1)
    assert bench.log.reads == reads
    assert not parked.done()


def test_a_later_epoch_begins_with_a_load() -> None:
    bench = Bench().start()
    bench.commit(1)
    bench.stable(group="h")
    parked = bench.join(group="h")
    reads = bench.log.reads
    bench.elect(2)
    assert bench.log.reads == reads + 1
    assert error_of(parked) == NOT_COORDINATOR
    assert bench.state("h") == "Stable"
    assert bench.committed() == 1


def test_an_election_that_is_over_when_it_is_heard_of_opens_nothing() -> None:
    bench = Bench().start()
    bench.resign(1)
    bench.coordinator.shards.elected(0, 2)  # the log is in no such epoch any more
    bench.run()
    assert bench.commit().result(0) == NOT_COORDINATOR
    bench.elect(3)
    assert bench.commit().result(0) == 0


def test_a_deleted_partition_is_led_in_no_epoch() -> None:
    bench = Bench().start()
    bench.commit(1)
    bench.resign(None)
    assert bench.fetch().result(0) == NOT_COORDINATOR
    bench.elect(1)
    assert bench.committed() == 1


def test_events_of_unknown_partitions_and_after_a_stop_do_nothing() -> None:
    bench = Bench().start()
    bench.coordinator.shards.elected(7, 2)
    bench.resign(2, partition=7)
    bench.coordinator.stop()
    bench.elect(9)
    assert state(bench) is ShardState.NOT_LED


# -- the log says it first ---------------------------------------------------------------------------------------


def test_a_log_that_is_not_led_any_more_closes_the_shard() -> None:
    bench = Bench().start()
    bench.commit(1)
    reads = bench.log.reads
    bench.log.refusals.append(FastKafkaError(int(ErrorCode.NOT_LEADER_OR_FOLLOWER), "over"))
    assert bench.commit(2).result(0) == NOT_COORDINATOR
    assert bench.fetch().result(0) == NOT_COORDINATOR, "another broker may have written since"
    assert bench.log.reads == reads
    bench.elect(2)
    assert bench.committed() == 1


def test_an_append_that_fails_with_the_leadership_closes_the_shard() -> None:
    bench = Bench().start()
    bench.commit(1)
    bench.log.hold = True
    first, second = bench.commit(2), bench.commit(3)
    bench.log.release(error=int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    bench.run()
    assert first.result(0) == second.result(0) == NOT_COORDINATOR
    assert state(bench) is ShardState.NOT_LED
    bench.elect(1)
    assert state(bench) is ShardState.NOT_LED
    bench.elect(2)
    assert bench.committed() == 1
