"""The state of groups is bounded in bytes: which requests are refused, which go on, and removed state does not count.

That the count is what is there is checked by each bench after each of its runs.
"""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.coordinator.group.requests import Leaver
from kbroker.errors import ErrorCode
from tests.unit.coordinator.coordinator_fakes import Bench
from tests.unit.coordinator.group.consumer.consumer_fakes import ConsumerBench
from tests.unit.coordinator.group.share.share_fakes import ShareBench

KIB = 1024
ROOM = 100 * KIB  # of the benches here
FULL = ErrorCode.GROUP_MAX_SIZE_REACHED


def large(size: int) -> list[tuple[str, bytes]]:
    return [("range", bytes(size))]


def names(count: int, of: str) -> list[str]:
    return [f"{of}-{index}-" + "n" * 100 for index in range(count)]


# -- classic groups ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known_id", [True, False])
def test_a_member_without_room_is_refused(known_id: bool) -> None:
    bench = Bench(group_bytes_max=ROOM).start()
    answer = bench.join(protocols=large(ROOM), known_id=known_id).result(0)
    assert answer.error_code == FULL
    assert bench.bytes == 0
    assert bench.list_groups() == []


def test_many_small_protocols_count_with_their_size_in_memory() -> None:
    bench = Bench(group_bytes_max=ROOM).start()
    assert bench.join(protocols=[(str(index), b"") for index in range(400)]).result(0).error_code == FULL


def test_parsing_a_subscription_keeps_no_second_copy() -> None:
    """A consumer subscription with 200,000 topics of two letters takes a megabyte, not fifteen."""
    bench = Bench(group_bytes_max=ROOM * KIB).start()
    subscription = struct.pack(">hi", 0, 200_000) + b"\0\2ab" * 199_999 + b"\0\1t" + b"\xff" * 4
    tracemalloc.start()
    try:
        bench.stable(protocols=[("range", subscription)])
        group = bench.coordinator.shards.runtimes[0].shard.groups["g"]
        assert group.subscribed({"t", "u"}) == {"t"}
        assert tracemalloc.get_traced_memory()[1] < 8 * len(subscription)
    finally:
        tracemalloc.stop()


def test_the_text_of_ids_counts() -> None:
    bench = Bench(group_bytes_max=ROOM).start()
    assert bench.join(group="g" * ROOM).result(0).error_code == FULL
    assert bench.join(client="c" * ROOM, known_id=True).result(0).error_code == FULL
    for _ in range(3):  # ids that are given out and never used
        bench.join(client="c" * 25 * KIB, known_id=True)
    assert bench.join(client="c" * 25 * KIB, known_id=True).result(0).error_code == FULL
    bench.advance(11)
    assert bench.bytes == 0


def test_existing_members_are_served_when_new_ones_are_refused() -> None:
    bench = Bench(group_bytes_max=ROOM).start()
    _, (leader, other) = bench.stable(2, protocols=large(20 * KIB))
    assert bench.join(group="h", protocols=large(20 * KIB)).result(0).error_code == FULL
    joins = [bench.join(member, protocols=[("range", bytes([1] * 20 * KIB))]) for member in (leader, other)]
    assert [join.result(0).error_code for join in joins] == [0, 0]
    bench.sync_all(joins[0].result(0).generation_id, [leader, other])
    assert bench.state() == "Stable"


def test_a_static_member_returns_when_new_members_are_refused() -> None:
    bench = Bench(group_bytes_max=ROOM).start()
    bench.stable(2, protocols=large(20 * KIB), instances=["a", "b"])
    assert bench.join(instance="c", protocols=large(20 * KIB)).result(0).error_code == FULL
    assert bench.join(instance="a", protocols=large(20 * KIB)).result(0).error_code == 0


def test_the_last_eighth_is_reserved_for_existing_members() -> None:
    bench = Bench(group_bytes_max=ROOM).start()
    _, (member, _) = bench.stable(2, protocols=large(18 * KIB))
    assert bench.join(group="h", protocols=large(14 * KIB)).result(0).error_code == FULL
    rejoin = bench.join(member, protocols=large(36 * KIB))
    assert not rejoin.done()  # waits for the other one
    assert bench.join(member, protocols=large(99 * KIB)).result(0).error_code == FULL


def test_memory_is_freed_when_members_leave_or_expire() -> None:
    bench = Bench(group_bytes_max=ROOM).start()
    _, (_, other) = bench.stable(2, protocols=large(20 * KIB))
    bench.leave(Leaver(other))
    bench.advance(60)  # the leader does not join again
    assert bench.delete() == 0
    assert bench.bytes == 0
    assert not bench.join(protocols=large(60 * KIB)).done()


def test_assignments_without_room_are_refused_to_all_waiting_members() -> None:
    bench = Bench(group_bytes_max=ROOM).start()
    joins = [bench.join(), bench.join()]
    bench.advance(6.5)
    answers = [join.result(0) for join in joins]
    leader, generation = answers[0].leader, answers[0].generation_id
    other = next(answer.member_id for answer in answers if answer.member_id != leader)
    waits = bench.sync(other, generation)
    refused = bench.sync(leader, generation, {leader: b"", other: bytes(ROOM)})
    assert [sync.result(0).error_code for sync in (waits, refused)] == [FULL, FULL]
    joins = [bench.join(member) for member in (leader, other)]
    bench.sync_all(joins[0].result(0).generation_id, [leader, other])
    assert bench.state() == "Stable"


def test_groups_found_at_start_are_counted() -> None:
    bench = Bench(group_bytes_max=ROOM).start()
    generation, ids = bench.stable(2, protocols=large(18 * KIB))
    before = bench.bytes
    bench = bench.restarted(group_bytes_max=ROOM)
    assert bench.bytes == pytest.approx(before, rel=0.01)
    assert bench.join(group="h", protocols=large(18 * KIB)).result(0).error_code == FULL
    assert bench.heartbeat(ids[0], generation) == 0
    bench = bench.restarted(group_bytes_max=KIB)  # more than there may be: all are there still
    assert bench.heartbeat(ids[1], generation) == 0


def test_a_shard_that_loads_again_counts_once() -> None:
    bench = Bench(group_bytes_max=ROOM).start()
    bench.stable(2, protocols=large(10 * KIB))
    before = bench.bytes
    bench.log.hold = True
    bench.commit(generation=1, member_id="x", group="other")
    bench.join(group="h", protocols=large(10 * KIB))
    commit = bench.commit(group="i")
    bench.log.release(error=int(ErrorCode.KAFKA_STORAGE_ERROR))
    bench.log.hold = False
    bench.run()
    assert commit.result(0) == ErrorCode.NOT_COORDINATOR
    assert bench.bytes == pytest.approx(before, rel=0.01)


# -- consumer and share groups -----------------------------------------------------------------------------------


def test_the_refusal_of_a_large_subscription_has_a_message() -> None:
    bench = ConsumerBench(group_bytes_max=ROOM).start()
    answer = bench.enter("m", *names(500, "t"))
    assert answer.error_code == FULL
    assert "memory" in answer.error_message
    assert bench.bytes == 0
    epoch = bench.enter("m", *names(200, "t")).member_epoch
    assert bench.beat("m", epoch, topic_names=frozenset(names(500, "u"))).error_code == FULL
    assert bench.beat("m", epoch).error_code == 0


def test_a_shared_subscription_is_counted_once() -> None:
    bench = ConsumerBench(group_bytes_max=ROOM).start()
    for index in range(5):
        assert bench.enter(f"m{index}", *names(200, "t")).error_code == 0
    assert bench.enter("other", *names(150, "u")).error_code == 0
    assert bench.enter("yet another", *names(200, "v")).error_code == FULL


def test_topics_matched_by_an_expression_are_counted() -> None:
    bench = ConsumerBench(group_bytes_max=ROOM).start()
    for name in names(150, "t"):
        bench.topic(name, 1)
    assert bench.enter("m", topic_regex=".*").error_code == FULL
    assert bench.enter("m", topic_regex="t-1.*", group="h").error_code == 0


def test_growth_by_topics_and_assignments_refuses_no_member() -> None:
    bench = ConsumerBench(group_bytes_max=20 * KIB, consumer_assignment_interval_max_ms=0).start()
    bench.topic("t", 1)
    epoch = bench.enter("m", "t").member_epoch
    bench.topic("t", 200)
    answer = bench.beat("m", epoch, owned={})
    assert answer.error_code == 0
    assert bench.bytes > 20 * KIB
    assert bench.enter("n", "t").error_code == FULL


def test_a_classic_member_of_a_consumer_group_counts() -> None:
    bench = ConsumerBench(group_bytes_max=ROOM).start()
    bench.enter("m", "t")
    assert bench.join(protocols=large(ROOM)).result(0).error_code == FULL


def test_share_groups_count() -> None:
    bench = ShareBench(group_bytes_max=ROOM).start()
    assert bench.share("m", 0, *names(500, "t")).error_code == FULL
    assert bench.bytes == 0
    assert bench.share("m", 0, *names(200, "t")).error_code == 0
    assert bench.share("n", 0, *names(200, "t")).error_code == 0
    assert bench.share("o", 0, *names(300, "u")).error_code == FULL
    bench.topic("wide", 2_000)
    assert bench.send_alter(("wide", 0, 5), group="h").result(0)["wide", 0] == 0


# -- offsets -----------------------------------------------------------------------------------------------------


def test_only_commits_that_take_more_memory_are_refused() -> None:
    bench = Bench(group_bytes_max=ROOM).start()
    bench.commit(1, metadata="m" * 4 * KIB)
    outcomes = [bench.commit(1, partition=index, metadata="m" * 4 * KIB).result(0) for index in range(1, 30)]
    assert outcomes[0] == 0
    assert outcomes[-1] == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert bench.commit(2, metadata="n" * 4 * KIB).result(0) == 0
    assert bench.committed() == 2
    assert bench.commit(3, metadata="").result(0) == 0
    assert bench.commit(1, group="new", partition=99).result(0) == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert bench.delete() == 0
    assert bench.bytes == 0


def test_offsets_of_open_transactions_count_until_their_end() -> None:
    bench = Bench(group_bytes_max=ROOM).start()
    outcomes = [
        bench.commit_in_transaction(1, partition=index, metadata="m" * 4 * KIB).result(0) for index in range(30)
    ]
    assert outcomes[0] == 0
    assert outcomes[-1] == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    bench.commit(5)
    bench.end(commit=False)
    assert bench.bytes < 3 * KIB
    assert bench.commit_in_transaction(1, partition=1, metadata="m" * 4 * KIB).result(0) == 0
    bench.end()
    bench.delete_offsets(("t", 0), ("t", 1))
    assert bench.bytes == 0


# -- nothing stays -----------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["classic", "static", "consumer", "regex", "share", "commit", "open", "end", "topic", "wait"]),
        st.sampled_from(["g", "h", "i"]),
        st.integers(0, 4),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.booleans())
def test_nothing_is_counted_after_all_members_and_offsets_are_gone(steps: list[Any], restarts: bool) -> None:
    bench = ShareBench(group_bytes_max=KIB * ROOM, snapshot_min_records=30).start()
    for verb, group, number in steps:
        step(bench, verb, group, number)
    if restarts:
        bench = bench.restarted()
    bench.end(0)
    bench.end(1)
    bench.advance(1_000)  # no member sends heartbeats
    for listed in bench.list_groups():
        assert bench.delete(listed.group_id) == 0
    assert bench.bytes == 0
    assert bench.list_groups() == []


def step(bench: ShareBench, verb: str, group: str, number: int) -> None:
    if verb == "classic":
        asked = bench.join(group=group, protocols=large(number), known_id=number > 2).result(0) if number > 2 else None
        bench.join(asked.member_id if asked else "", group=group, protocols=large(number))
    elif verb == "static":
        bench.join(group=group, instance=f"i{number}")
    elif verb == "consumer":
        bench.enter(f"m{number}", *[f"t{index}" for index in range(number)], group=group)
    elif verb == "regex":
        bench.enter(f"m{number}", group=group, topic_regex=f"t[0-{number}]")
    elif verb == "share":
        bench.share(f"m{number}", 0, *[f"t{index}" for index in range(number + 1)], group=group)
    elif verb == "commit":
        bench.commit(group=group, partition=number, metadata="m" * number)
    elif verb == "open":
        bench.commit_in_transaction(group=group, partition=number, producer=number % 2)
    elif verb == "end":
        bench.end(number % 2, commit=number > 1)
    elif verb == "topic":
        bench.topic(f"t{number}", number + 1)
    else:
        bench.advance(4.0 * number)
