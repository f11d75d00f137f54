"""ShareGroupHeartbeat: members, epochs, sessions, assignments, and groups of other types."""

from __future__ import annotations

import pytest

from kbroker.coordinator.group.requests import Leaver
from kbroker.coordinator.group.share.group import ShareGroup
from kbroker.errors import ErrorCode
from tests.unit.coordinator.group.consumer.consumer_fakes import assigned
from tests.unit.coordinator.group.share.share_fakes import ShareBench, ShareClient


@pytest.fixture
def bench() -> ShareBench:
    return ShareBench().start()


def every(count: int) -> frozenset[int]:
    return frozenset(range(count))


# -- joining and staying -----------------------------------------------------------------------------------------


def test_a_join_is_answered_with_partitions_that_have_state(bench: ShareBench) -> None:
    topic_id = bench.topic("t", 3)
    answer = bench.share("a", 0, "t")
    assert (answer.error_code, answer.member_id, answer.heartbeat_interval_ms) == (0, "a", 5_000)
    assert assigned(answer) == {topic_id: every(3)}
    assert bench.states.offsets() == {(topic_id, index): -1 for index in range(3)}
    assert bench.known() == {topic_id: every(3)}
    described = bench.describe_share()
    assert (described.group_state, described.assignor_name) == ("Stable", "simple")
    assert described.group_epoch == described.assignment_epoch == answer.member_epoch
    (member,) = described.members
    assert (member.member_id, member.client_id, member.client_host) == ("a", "c", "/127.0.0.1")
    assert member.subscribed_topic_names == ["t"]
    ((named,),) = [[(t.topic_name, t.partitions) for t in member.assignment.topic_partitions]]
    assert named == ("t", [0, 1, 2])


def test_a_join_waits_for_share_state(bench: ShareBench) -> None:
    topic_id = bench.topic("t", 2)
    bench.states.hold = True
    joining = bench.send_share("a", 0, "t")
    assert not joining.done()
    assert bench.describe_share().members, "it is a member already"
    second = bench.send_share("b", 0, "t")
    assert not second.done()
    bench.go_on()
    given = [assigned(future.result(0)) for future in (joining, second)]
    assert sorted(p for part in given for p in part[topic_id]) == [0, 1]
    assert [verb for verb, _ in bench.states.calls].count("initialize") == 2, "each partition once"


def test_a_join_is_answered_when_share_state_fails_and_the_state_is_tried_again(bench: ShareBench) -> None:
    topic_id = bench.topic("t", 1)
    bench.states.refusal = lambda verb, key: ErrorCode.COORDINATOR_NOT_AVAILABLE
    answer = bench.share("a", 0, "t")
    assert (answer.error_code, assigned(answer)) == (0, {})
    bench.states.refusal = lambda verb, key: None
    assert assigned(bench.share("a", answer.member_epoch)) is None
    bench.advance(1.5)
    assert assigned(bench.share("a", answer.member_epoch)) == {topic_id: every(1)}


def test_a_join_is_answered_when_some_share_state_fails(bench: ShareBench) -> None:
    topic_id = bench.topic("t", 3)
    bench.states.refusal = lambda verb, key: ErrorCode.COORDINATOR_NOT_AVAILABLE if key[2] == 1 else None
    client = ShareClient(bench, "a", "t")
    client.beat()
    client.beat()
    assert client.reads == {topic_id: every(1)}, "those in front of the missing one"
    bench.states.refusal = lambda verb, key: None
    bench.advance(1.5)
    client.beat()
    assert client.reads == {topic_id: every(3)}


def test_a_topic_created_later_is_assigned(bench: ShareBench) -> None:
    client = ShareClient(bench, "a", "t", "later")
    client.beat()
    assert client.reads == {}
    topic_id = bench.topic("later", 2)
    client.beat()
    assert client.reads == {topic_id: every(2)}
    bench.topic("later", 4)
    client.beat()
    assert client.reads == {topic_id: every(4)}
    assert bench.states.offsets() == {(topic_id, index): -1 for index in range(4)}


def test_partitions_are_shared_where_there_are_fewer_than_members(bench: ShareBench) -> None:
    topic_id = bench.topic("t", 2)
    clients = [ShareClient(bench, name, "t") for name in "abcde"]
    for client in clients * 2:
        client.beat()
    readers = [next(iter(client.reads[topic_id])) for client in clients]
    assert sorted(readers) in ([0, 0, 0, 1, 1], [0, 0, 1, 1, 1])
    assert all(len(client.reads[topic_id]) == 1 for client in clients)


def test_a_changed_subscription_changes_the_assignment(bench: ShareBench) -> None:
    t, u = bench.topic("t", 1), bench.topic("u", 1)
    joined = bench.share("a", 0, "t")
    answer = bench.share("a", joined.member_epoch, "u")
    assert assigned(answer) == {u: every(1)}
    assert answer.member_epoch > joined.member_epoch
    assert bench.known() == {t: every(1), u: every(1)}, "what it had done with the first is kept"


def test_an_idle_heartbeat_changes_nothing(bench: ShareBench) -> None:
    bench.topic("t", 1)
    epoch = bench.share("a", 0, "t").member_epoch
    before = len(bench.records())
    answer = bench.share("a", epoch)
    assert (answer.error_code, answer.member_epoch, answer.assignment) == (0, epoch, None)
    assert len(bench.records()) == before


def test_a_lost_answer_is_given_again(bench: ShareBench) -> None:
    topic_id = bench.topic("t", 4)
    one, two = ShareClient(bench, "a", "t"), ShareClient(bench, "b", "t")
    one.beat()
    two.beat()
    epoch = one.epoch
    one.beat(lose_answer=True)
    assert one.epoch == epoch
    one.beat()
    assert one.epoch > epoch
    assert one.reads[topic_id] | two.reads[topic_id] == every(4)
    assert not one.reads[topic_id] & two.reads[topic_id]


def test_a_member_that_joins_again_keeps_its_place(bench: ShareBench) -> None:
    topic_id = bench.topic("t", 2)
    epoch = bench.share("a", 0, "t").member_epoch
    answer = bench.share("a", 0, "t")
    assert (answer.member_epoch, assigned(answer)) == (epoch, {topic_id: every(2)})
    assert len(bench.describe_share().members) == 1


def test_wrong_member_epochs_are_fenced(bench: ShareBench) -> None:
    bench.topic("t", 1)
    epoch = bench.share("a", 0, "t").member_epoch
    greater = bench.share("a", epoch + 1)
    assert greater.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert "greater" in greater.error_message
    for name in "bcd":
        bench.share(name, 0, "t")
        epoch = bench.share("a", epoch).member_epoch
    smaller = bench.share("a", 1)
    assert smaller.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert "smaller" in smaller.error_message
    assert bench.share("x", epoch).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"member_id": "", "epoch": 0}, "MemberId"),
        ({"member_id": "a", "epoch": 0, "group": " "}, "GroupId"),
        ({"member_id": "a", "epoch": 0, "rack": ""}, "RackId"),
        ({"member_id": "a", "epoch": 0}, "SubscribedTopicNames"),
        ({"member_id": "a", "epoch": -2}, "MemberEpoch"),
    ],
)
def test_invalid_requests_are_refused(bench: ShareBench, fields: dict, message: str) -> None:
    member_id, epoch = fields.pop("member_id"), fields.pop("epoch")
    answer = bench.share(member_id, epoch, **fields)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert message in answer.error_message
    assert bench.coordinator.counts.groups == 0


def test_a_full_group_refuses_members(bench: ShareBench) -> None:
    bench = ShareBench(share_group_size_max=2).start()
    bench.topic("t", 1)
    for name in "ab":
        assert bench.share(name, 0, "t").error_code == 0
    refused = bench.share("c", 0, "t")
    assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert bench.share("a", 0, "t").error_code == 0


def test_the_number_of_share_groups_is_bounded() -> None:
    bench = ShareBench(groups_max=1).start()
    bench.topic("t", 1)
    assert bench.share("a", 0, "t").error_code == 0
    assert bench.share("a", 0, "t", group="h").error_code == ErrorCode.POLICY_VIOLATION


# -- leaving and sessions ----------------------------------------------------------------------------------------


def test_a_leaving_share_member_frees_its_partitions(bench: ShareBench) -> None:
    topic_id = bench.topic("t", 2)
    one, two = ShareClient(bench, "a", "t"), ShareClient(bench, "b", "t")
    one.beat()
    two.beat()
    answer = one.leave()
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, "a", -1)
    two.beat()
    assert two.reads == {topic_id: every(2)}
    assert one.leave().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    two.leave()
    assert bench.describe_share().group_state == "Empty"
    assert bench.known() == {topic_id: every(2)}, "an empty group keeps where it is"
    assert bench.share("x", -1, group="none").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_members_that_leave_are_reported_to_the_share_partitions(bench: ShareBench) -> None:
    told: list[tuple[str, ...]] = []
    bench.topic("t", 1)
    for name in "ab":
        bench.share(name, 0, "t")
    after = bench.restarted()
    after.coordinator.on_share_member_left = lambda group, member: told.append((group, member))
    after.share("a", -1)
    assert told == [("g", "a")]
    after.advance(46)
    assert told == [("g", "a"), ("g", "b")]


def test_a_share_member_expires_without_heartbeats(bench: ShareBench) -> None:
    bench.topic("t", 1)
    epoch = bench.share("a", 0, "t").member_epoch
    bench.advance(44)
    assert bench.share("a", epoch).error_code == 0
    bench.advance(44)
    assert bench.share("a", epoch).error_code == 0
    bench.advance(46)
    assert bench.share("a", epoch).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.coordinator.counts.members == 0


def test_a_share_group_uses_its_own_configs(bench: ShareBench) -> None:
    bench.topic("t", 1)
    bench.group_configs["g"] = {"share.heartbeat.interval.ms": "9000", "share.session.timeout.ms": "50000"}
    answer = bench.share("a", 0, "t")
    assert answer.heartbeat_interval_ms == 9_000
    bench.advance(48)
    assert bench.share("a", answer.member_epoch).error_code == 0
    bench.group_configs["g"] = {"share.heartbeat.interval.ms": "999999", "share.session.timeout.ms": "999999"}
    assert bench.share("a", answer.member_epoch).heartbeat_interval_ms == 15_000, "the broker's bound"
    bench.advance(61)
    assert bench.share("a", answer.member_epoch).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_stop_answers_joins_that_wait(bench: ShareBench) -> None:
    bench.topic("t", 1)
    bench.states.hold = True
    joining = bench.send_share("a", 0, "t")
    bench.coordinator.stop()
    assert joining.result(0).error_code == ErrorCode.NOT_COORDINATOR
    bench.states.release()


def test_a_refused_append_changes_nothing_in_a_share_group(bench: ShareBench) -> None:
    bench.topic("t", 1)
    bench.log.refuse_always = OSError("refused")
    assert bench.send_share("a", 0, "t").result(0).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    bench.log.refuse_always = None
    assert bench.the_group() is None
    assert bench.states.calls == []


# -- groups of other types ---------------------------------------------------------------------------------------


def test_a_share_group_refuses_requests_of_other_protocols(bench: ShareBench) -> None:
    bench.topic("t", 1)
    epoch = bench.share("a", 0, "t").member_epoch
    for _ in range(2):
        refused = bench.enter("m", "t")
        assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert refused.error_message == "Group g is not a consumer group."
        assert bench.join().result(0).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert bench.join("m").result(0).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert bench.heartbeat("a", epoch) == ErrorCode.UNKNOWN_MEMBER_ID
        assert bench.sync("a", epoch).result(0).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        (leaver,) = bench.leave(Leaver("a")).members
        assert leaver.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert bench.commit(5).result(0) == ErrorCode.GROUP_ID_NOT_FOUND
        assert bench.commit(5, version=8).result(0) == ErrorCode.ILLEGAL_GENERATION
        assert bench.commit_in_transaction(5).result(0) == ErrorCode.ILLEGAL_GENERATION
        assert bench.committed() is None
        assert bench.delete_offsets(("t", 0)) == ErrorCode.GROUP_ID_NOT_FOUND
        assert bench.describe().error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert "not a classic group" in bench.describe().error_message
        assert bench.describe_consumers().error_code == ErrorCode.GROUP_ID_NOT_FOUND
        bench.share("a", -1)  # the same for a group without members
    assert isinstance(bench.the_group(), ShareGroup)


def test_other_groups_refuse_requests_of_share_groups(bench: ShareBench) -> None:
    bench.topic("t", 1)
    bench.enter("m", "t", group="consumer")
    bench.stable(group="classic")
    bench.commit(5, group="simple")
    bench.enter("m", "t", group="empty")
    bench.beat("m", -1, group="empty")
    for group in ("consumer", "classic", "simple", "empty"):
        refused = bench.share("a", 0, "t", group=group)
        assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert refused.error_message == f"Group {group} is not a share group."
        assert bench.share("a", -1, group=group).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert bench.describe_share(group).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert bench.alter(("t", 0, 1), group=group) == ErrorCode.GROUP_ID_NOT_FOUND
        assert bench.forget("t", group=group) == ErrorCode.GROUP_ID_NOT_FOUND
        assert bench.known(group) == {}
    assert bench.states.calls == []


def test_list_groups_by_type(bench: ShareBench) -> None:
    bench.topic("t", 1)
    bench.share("a", 0, "t", group="s")
    bench.share("a", 0, "t", group="left")
    bench.share("a", -1, group="left")
    bench.enter("m", "t", group="c")
    bench.stable(group="old")
    listed = {group.group_id: group for group in bench.list_groups(types=["share"])}
    assert {name: (g.group_type, g.protocol_type, g.group_state) for name, g in listed.items()} == {
        "s": ("share", "share", "Stable"),
        "left": ("share", "share", "Empty"),
    }
    assert {group.group_id for group in bench.list_groups("empty", types=["share"])} == {"left"}
    assert {group.group_id for group in bench.list_groups(types=["consumer", "classic"])} == {"c", "old"}
    assert len(bench.list_groups()) == 4


def test_a_broker_whose_option_was_turned_off_keeps_its_share_groups(bench: ShareBench) -> None:
    topic_id = bench.topic("t", 1)
    bench.share("a", 0, "t")
    off = ShareBench([log.restarted() for log in bench.logs], True, bench.clock, bench.catalog, serves=False).start()
    assert off.known() == {topic_id: every(1)}
    off.topic("t", 2)
    off.advance(46)
    assert off.describe_share().group_state == "Empty"
    assert off.states.calls == []
    on = ShareBench([log.restarted() for log in off.logs], True, off.clock, off.catalog, bench.states).start()
    assert on.known() == {topic_id: every(2)}, "what the other could not do"
    assert assigned(on.share("a", 0, "t")) == {topic_id: every(2)}
