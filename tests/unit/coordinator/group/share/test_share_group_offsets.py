"""Offsets of share groups: alter and delete, deleted groups and topics, and operations that a crash interrupts."""

from __future__ import annotations

import pytest

from kbroker.coordinator.share_state.store import SharePartitionState
from kbroker.errors import ErrorCode
from tests.unit.coordinator.group.consumer.consumer_fakes import assigned
from tests.unit.coordinator.group.share.share_fakes import ShareBench, ShareClient

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.fixture
def bench() -> ShareBench:
    return ShareBench().start()


def every(count: int) -> frozenset[int]:
    return frozenset(range(count))


def emptied(bench: ShareBench, *topics: str, group: str = "g") -> None:
    """A group that has read these topics and has no members now."""
    client = ShareClient(bench, "a", *topics, group=group)
    client.beat()
    client.leave()


# -- alter -------------------------------------------------------------------------------------------------------


def test_offsets_of_an_empty_group_are_altered(bench: ShareBench) -> None:
    topic_id = bench.topic("t", 2)
    emptied(bench, "t")
    before = bench.states.states["g", topic_id, 0]
    assert bench.alter(("t", 0, 7)) == {("t", 0): ErrorCode.NONE}
    assert bench.states.offsets() == {(topic_id, 0): 7, (topic_id, 1): -1}
    assert bench.states.states["g", topic_id, 0].state_epoch > before.state_epoch
    assert bench.alter(("t", 0, 3), ("t", 1, 4)) == {("t", 0): ErrorCode.NONE, ("t", 1): ErrorCode.NONE}
    assert bench.states.offsets() == {(topic_id, 0): 3, (topic_id, 1): 4}
    assert assigned(bench.share("a", 0, "t")) == {topic_id: every(2)}
    assert bench.states.offsets() == {(topic_id, 0): 3, (topic_id, 1): 4}, "a join resets nothing"


def test_altering_offsets_creates_the_group(bench: ShareBench) -> None:
    topic_id = bench.topic("t", 3)
    assert bench.alter(("t", 1, 9), group="new") == {("t", 1): ErrorCode.NONE}
    assert bench.states.offsets("new") == {(topic_id, 1): 9}
    assert bench.known("new") == {topic_id: frozenset({1})}
    described = bench.describe_share("new")
    assert (described.error_code, described.group_state) == (0, "Empty")
    assert assigned(bench.share("a", 0, "t", group="new")) == {topic_id: every(3)}
    assert bench.states.offsets("new") == {(topic_id, 0): -1, (topic_id, 1): 9, (topic_id, 2): -1}


def test_partitions_that_cannot_be_altered_are_refused_one_by_one(bench: ShareBench) -> None:
    bench.topic("t", 1)
    wanted = ("none", 0, 1), ("t", 1, 1), ("t", -1, 1), ("t", 0, -5)
    assert bench.alter(*wanted) == {
        ("none", 0): UNKNOWN,
        ("t", 1): UNKNOWN,
        ("t", -1): UNKNOWN,
        ("t", 0): ErrorCode.INVALID_REQUEST,
    }
    assert bench.the_group() is None, "nothing was done"


def test_only_empty_groups_are_altered(bench: ShareBench) -> None:
    topic_id = bench.topic("t", 1)
    bench.share("a", 0, "t")
    assert bench.alter(("t", 0, 1)) == ErrorCode.NON_EMPTY_GROUP
    assert bench.forget("t") == ErrorCode.NON_EMPTY_GROUP
    assert bench.delete() == ErrorCode.NON_EMPTY_GROUP
    assert bench.states.offsets() == {(topic_id, 0): -1}
    assert bench.alter(("t", 0, 1), group="") == ErrorCode.INVALID_GROUP_ID


def test_a_state_of_a_higher_epoch_is_replaced(bench: ShareBench) -> None:
    topic_id = bench.topic("t", 1)
    bench.states.states["g", topic_id, 0] = SharePartitionState(900, 1, 50, 0, ())
    assert bench.alter(("t", 0, 5)) == {("t", 0): ErrorCode.NONE}
    assert bench.states.states["g", topic_id, 0][:3] == (901, 0, 5)


def test_a_failed_alteration_is_reported_for_its_partition(bench: ShareBench) -> None:
    topic_id = bench.topic("t", 2)
    failing = ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.states.refusal = lambda verb, key: failing if (verb, key[2]) == ("initialize", 1) else None
    assert bench.alter(("t", 0, 5), ("t", 1, 6)) == {("t", 0): ErrorCode.NONE, ("t", 1): failing}
    assert bench.known() == {topic_id: frozenset({0})}
    bench.states.refusal = lambda verb, key: None
    bench.advance(5)
    assert bench.states.offsets() == {(topic_id, 0): 5}, "no member reads the other: it stays as it is"


def test_one_change_of_share_state_runs_at_a_time(bench: ShareBench) -> None:
    topic_id = bench.topic("t", 1)
    bench.states.hold = True
    first = bench.send_alter(("t", 0, 5))
    assert not first.done()
    assert bench.alter(("t", 0, 6)) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "clients ask again"
    assert bench.forget("t") == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert bench.delete() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    joining = bench.send_share("a", 0, "t")
    bench.go_on()
    assert first.result(0) == {("t", 0): ErrorCode.NONE}
    assert assigned(joining.result(0)) == {topic_id: every(1)}
    assert bench.states.offsets() == {(topic_id, 0): 5}


def test_a_stop_answers_what_waits_for_the_store(bench: ShareBench) -> None:
    bench.topic("t", 1)
    bench.states.hold = True
    altering = bench.send_alter(("t", 0, 5))
    bench.coordinator.stop()
    assert altering.result(0) == ErrorCode.NOT_COORDINATOR
    bench.states.release()


# -- delete ------------------------------------------------------------------------------------------------------


def test_offsets_of_topics_are_deleted(bench: ShareBench) -> None:
    t, u = bench.topic("t", 2), bench.topic("u", 1)
    bench.topic("v", 1)
    emptied(bench, "t", "u")
    outcome = {topic.topic: topic for topic in bench.forget("t", "v", "none")}
    assert {name: topic.error for name, topic in outcome.items()} == {"t": 0, "v": UNKNOWN, "none": UNKNOWN}
    assert outcome["t"].topic_id == t
    assert outcome["v"].message == "There is no offset information to delete."
    assert bench.states.offsets() == {(u, 0): -1}
    assert bench.known() == {u: every(1)}
    assert bench.forget("t")[0].error == UNKNOWN
    assert bench.forget("t", group="none") == ErrorCode.GROUP_ID_NOT_FOUND
    assert assigned(bench.share("a", 0, "t")) == {t: every(2)}, "a member may read it again"


def test_a_topic_can_be_subscribed_while_its_state_is_deleted(bench: ShareBench) -> None:
    topic_id = bench.topic("t", 1)
    emptied(bench, "t")
    bench.states.hold = True
    future = bench.coordinator.delete_share_offsets("g", ["t"])
    bench.run()
    joining = bench.send_share("a", 0, "t")
    bench.go_on()
    assert [topic.error for topic in future.result(0)] == [ErrorCode.NONE]
    epoch = joining.result(0).member_epoch
    answer = bench.share("a", epoch)
    assert topic_id in (assigned(joining.result(0)) or assigned(answer) or {})
    assert [verb for verb, _ in bench.states.calls[-3:]] == ["delete", "read", "initialize"]


def test_a_failed_deletion_is_retried(bench: ShareBench) -> None:
    bench.topic("t", 1)
    emptied(bench, "t")
    bench.states.refusal = lambda verb, key: ErrorCode.NOT_COORDINATOR
    assert [topic.error for topic in bench.forget("t")] == [ErrorCode.NOT_COORDINATOR]
    assert bench.delete() == ErrorCode.NOT_COORDINATOR
    assert bench.describe_share().error_code == 0
    bench.states.refusal = lambda verb, key: None
    bench.advance(1.5)
    assert bench.states.offsets() == {}
    assert bench.forget("t")[0].error == UNKNOWN
    assert bench.delete() == ErrorCode.NONE


def test_a_deleted_group_deletes_its_state(bench: ShareBench) -> None:
    bench.topic("t", 3)
    emptied(bench, "t")
    emptied(bench, "t", group="other")
    assert bench.delete() == ErrorCode.NONE
    assert bench.states.offsets() == {}
    assert len(bench.states.offsets("other")) == 3
    assert bench.describe_share().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert bench.delete() == ErrorCode.GROUP_ID_NOT_FOUND
    assert [g.group_id for g in bench.restarted().list_groups()] == ["other"]
    bench.stable()  # its name is free for a group of another type
    assert bench.state() == "Stable"


def test_a_group_can_be_joined_while_it_is_deleted(bench: ShareBench) -> None:
    topic_id = bench.topic("t", 1)
    emptied(bench, "t")
    bench.states.hold = True
    future = bench.coordinator.delete_group("g")
    bench.run()
    joining = bench.send_share("a", 0, "t")
    bench.go_on()
    assert future.result(0) == ErrorCode.NON_EMPTY_GROUP
    answer = joining.result(0)
    assert answer.error_code == 0
    later = bench.share("a", answer.member_epoch)
    assert (assigned(later) or assigned(answer)) == {topic_id: every(1)}


def test_a_group_without_state_is_deleted(bench: ShareBench) -> None:
    emptied(bench, "none")
    assert bench.delete() == ErrorCode.NONE
    assert bench.restarted().the_group() is None


# -- topics that go ----------------------------------------------------------------------------------------------


def test_a_deleted_topic_deletes_its_share_state(bench: ShareBench) -> None:
    t, u = bench.topic("t", 2), bench.topic("u", 1)
    emptied(bench, "t", group="empty")
    client = ShareClient(bench, "a", "t", "u")
    client.beat()
    bench.drop_topic("t")
    assert set(bench.states.offsets()) == {(u, 0)}
    assert bench.states.offsets("empty") == {}
    assert bench.known("empty") == {}
    client.beat()
    assert client.reads == {u: every(1)}
    new = bench.topic("t", 1)
    assert new != t
    client.beat()
    assert client.reads == {u: every(1), new: every(1)}


def test_state_of_a_topic_deleted_while_the_broker_was_down_is_deleted(bench: ShareBench) -> None:
    bench.topic("t", 2)
    emptied(bench, "t")
    bench.catalog.delete("t")
    after = bench.restarted()
    assert after.states.offsets() == {}
    assert after.known() == {}


def test_state_of_a_topic_that_the_metadata_do_not_have_yet_is_kept(bench: ShareBench) -> None:
    topic_id = bench.topic("t", 2)
    emptied(bench, "t")
    info = bench.catalog.by_name.pop("t")
    after = bench.restarted()
    assert set(after.states.offsets()) == {(topic_id, 0), (topic_id, 1)}
    bench.catalog.by_name["t"] = info
    after.coordinator.on_topic_changed("t")
    client = ShareClient(after, "a", "t")
    client.beat()
    assert client.reads == {topic_id: every(2)}


# -- restarts ----------------------------------------------------------------------------------------------------


def test_members_of_a_share_group_continue_after_a_restart(bench: ShareBench) -> None:
    topic_id = bench.topic("t", 4)
    clients = [ShareClient(bench, name, "t") for name in "ab"]
    for client in clients * 2:
        client.beat()
    reads = [client.reads for client in clients]
    calls = len(bench.states.calls)
    after = bench.restarted()
    for client in clients:
        client.bench = after
        answer = client.beat()
        assert (answer.error_code, answer.assignment) == (0, None), "nothing has changed"
    assert [client.reads for client in clients] == reads
    assert after.known() == {topic_id: every(4)}
    assert len(after.states.calls) == calls
    after.advance(46)
    assert after.describe_share().group_state == "Empty", "sessions go on"


def test_a_pending_initialization_is_completed_after_a_restart(bench: ShareBench) -> None:
    topic_id = bench.topic("t", 2)
    bench.states.hold = True
    bench.send_share("a", 0, "t")
    bench.states.hold = False
    bench.states.states["g", topic_id, 0] = SharePartitionState(1, 3, 41, 0, ())  # was made, and has been used
    after = bench.restarted()
    assert after.known() == {topic_id: every(2)}
    assert after.states.offsets() == {(topic_id, 0): 41, (topic_id, 1): -1}
    client = ShareClient(after, "a", "t")
    client.beat()
    assert client.reads == {topic_id: every(2)}


def test_a_pending_deletion_is_completed_after_a_restart(bench: ShareBench) -> None:
    bench.topic("t", 2)
    emptied(bench, "t")
    bench.states.hold = True
    bench.coordinator.delete_share_offsets("g", ["t"])
    bench.run()
    bench.states.hold = False
    after = bench.restarted()
    assert after.states.offsets() == {}
    assert after.forget("t")[0].error == UNKNOWN


def test_a_snapshot_holds_share_groups() -> None:
    small = {"snapshot_min_bytes": 2_000, "snapshot_min_records": 20}
    bench = ShareBench(**small).start()
    topic_id = bench.topic("t", 3)
    clients = [ShareClient(bench, name, "t") for name in "abcd"]
    for _ in range(30):
        for client in clients:
            client.beat()
        clients[0].leave()
    assert bench.log.start_offset > 0, "the log was shortened"
    for client in clients * 2:
        client.beat()
    after = bench.restarted(**small)
    before, now = bench.the_group(), after.the_group()
    assert (now.epoch, now.assignment_epoch) == (before.epoch, before.assignment_epoch)
    assert now.partitions == before.partitions
    assert (now.members, now.target, now.subscriptions) == (before.members, before.target, before.subscriptions)
    assert after.known() == {topic_id: every(3)}
    assert after.coordinator.counts.members == 4


def test_a_deletion_of_an_earlier_leadership_does_not_remove_the_group(bench: ShareBench) -> None:
    bench.topic("t", 2)
    emptied(bench, "t")
    bench.states.hold = True
    deleting = bench.coordinator.delete_group("g")
    bench.run()
    assert not deleting.done()
    bench.resign(1)
    assert deleting.result(0) == ErrorCode.NOT_COORDINATOR
    bench.elect(3)
    bench.go_on()
    assert bench.the_group() is not None, "another leader may have let members in since"
    assert bench.states.offsets() == {}
    assert bench.delete() == ErrorCode.NONE
