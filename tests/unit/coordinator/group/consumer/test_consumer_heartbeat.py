"""ConsumerGroupHeartbeat: epochs, reconciliation, fencing, when requests are answered, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker._fast.wal.commit import FastAppendWait, FastKafkaError
from kbroker.coordinator.group.consumer.state import CurrentRecord, GroupEpochRecord, MemberState
from kbroker.errors import ErrorCode
from tests.unit.coordinator.group.consumer.consumer_fakes import Client, ConsumerBench, assigned, settle


@pytest.fixture
def bench() -> ConsumerBench:
    bench = ConsumerBench().start()
    bench.topic("t", 4)
    return bench


def topic_id(bench: ConsumerBench, name: str = "t") -> bytes:
    return bench.catalog.by_name[name].topic_id


# -- joining and rebalancing -------------------------------------------------------------------------------------


def test_first_member_gets_everything_at_once(bench: ConsumerBench) -> None:
    answer = bench.enter("a", "t")
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, "a", 1)
    assert answer.heartbeat_interval_ms == 5_000
    assert assigned(answer) == {topic_id(bench): frozenset({0, 1, 2, 3})}
    assert bench.describe_consumers().group_state == "Stable"


def test_a_member_without_an_id_is_given_one(bench: ConsumerBench) -> None:
    answer = bench.enter("", "t")
    assert len(answer.member_id) == 22
    assert bench.beat(answer.member_id, 1).error_code == 0


def test_a_second_member_gets_partitions_once_they_are_revoked(bench: ConsumerBench) -> None:
    first, second = Client(bench, "a", "t"), Client(bench, "b", "t")
    first.beat()
    first.slow = True
    second.beat()
    assert (second.epoch, second.owned) == (2, {})  # at the target's epoch, waiting
    assert first.beat().member_epoch == 1  # not before it has given up two
    assert len(first.wanted[topic_id(bench)]) == 2
    assert assigned(second.beat()) is None
    assert bench.the_group().members["a"].current.state is MemberState.UNREVOKED_PARTITIONS
    first.slow = False
    first.reconcile()
    assert first.beat().member_epoch == 2
    assert len(assigned(second.beat())[topic_id(bench)]) == 2
    assert bench.describe_consumers().group_state == "Stable"
    assert {**first.owned, "": second.owned}  # both own something
    assert first.owned[topic_id(bench)] | second.owned[topic_id(bench)] == {0, 1, 2, 3}


def test_the_assignment_is_sent_when_it_changed_or_on_a_full_request(bench: ConsumerBench) -> None:
    client = Client(bench, "a", "t")
    client.beat()
    assert assigned(client.beat()) is None
    assert assigned(client.beat(full=True)) == client.owned
    bench.topic("t", 5)
    assert assigned(client.beat())[topic_id(bench)] == {0, 1, 2, 3, 4}


def test_subscription_change_begins_an_epoch_and_an_equal_one_does_not(bench: ConsumerBench) -> None:
    bench.topic("u", 1)
    bench.enter("a", "t")
    assert bench.beat("a", 1, topic_names=frozenset({"t"})).member_epoch == 1
    answer = bench.beat("a", 1, topic_names=frozenset({"t", "u"}))
    assert answer.member_epoch == 2
    assert set(assigned(answer)) == {topic_id(bench), topic_id(bench, "u")}


def test_idle_heartbeats_write_nothing(bench: ConsumerBench) -> None:
    bench.enter("a", "t")
    written = bench.log.next_offset
    for _ in range(5):
        assert bench.beat("a", 1).member_epoch == 1
    assert bench.log.next_offset == written


def test_a_leaving_member_frees_its_partitions(bench: ConsumerBench) -> None:
    clients = [Client(bench, name, "t") for name in "ab"]
    settle(clients)
    answer = bench.beat("a", -1)
    assert (answer.error_code, answer.member_epoch) == (0, -1)
    settle(clients[1:])
    assert clients[1].owned == {topic_id(bench): frozenset(range(4))}
    assert bench.beat("a", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_answer_waits_until_its_records_are_durable(bench: ConsumerBench) -> None:
    bench.log.hold = True
    future = bench.send("a", 0, topic_names=frozenset({"t"}), rebalance_timeout_ms=1, owned={})
    bench.run()
    assert not future.done()
    bench.log.release()
    bench.run()
    assert future.result(0).member_epoch == 1


# -- topics ------------------------------------------------------------------------------------------------------


def test_topic_changes_begin_an_epoch_at_once(bench: ConsumerBench) -> None:
    client = Client(bench, "a", "t", "later")
    client.beat()
    bench.topic("later", 2)
    assert bench.the_group().group_epoch == 2
    assert bench.describe_consumers().group_state == "Assigning"
    settle([client])
    assert set(client.owned) == {topic_id(bench), topic_id(bench, "later")}
    bench.topic("other", 1)
    assert bench.the_group().group_epoch == 2


def test_deleted_topic_leaves_the_assignment(bench: ConsumerBench) -> None:
    bench.topic("u", 2)
    client = Client(bench, "a", "t", "u")
    client.beat()
    bench.drop_topic("u")
    settle([client])
    assert set(client.owned) == {topic_id(bench)}
    assert bench.describe_consumers().group_state == "Stable"


def test_a_topic_created_again_is_assigned_anew(bench: ConsumerBench) -> None:
    client = Client(bench, "a", "t")
    client.beat()
    old = topic_id(bench)
    bench.drop_topic("t")
    bench.topic("t", 1)
    settle([client])
    assert client.owned == {topic_id(bench): frozenset({0})}
    assert old != topic_id(bench)


# -- regular expressions -----------------------------------------------------------------------------------------


def test_an_expression_matches_topics_created_later(bench: ConsumerBench) -> None:
    client = Client(bench, "a", topic_regex="log-.*")
    client.beat()
    assert client.owned == {}
    bench.topic("log-1", 1)
    bench.topic("xlog-1", 1)
    settle([client])
    assert set(client.owned) == {topic_id(bench, "log-1")}
    bench.topic("log-2", 2)
    settle([client])
    assert set(client.owned) == {topic_id(bench, "log-1"), topic_id(bench, "log-2")}
    bench.drop_topic("log-1")
    settle([client])
    assert set(client.owned) == {topic_id(bench, "log-2")}
    assert bench.describe_consumers().members[0].subscribed_topic_regex == "log-.*"


def test_names_and_an_expression_add_up_until_the_expression_is_empty(bench: ConsumerBench) -> None:
    bench.topic("u", 1)
    answer = bench.enter("a", "t", topic_regex="u+")
    assert set(assigned(answer)) == {topic_id(bench), topic_id(bench, "u")}
    client = Client(bench, "a", "t")
    client.take(answer)
    client.take(bench.beat("a", client.epoch, topic_regex=""))
    settle([client])
    assert set(client.owned) == {topic_id(bench)}
    assert bench.the_group().resolved == {}


def test_empty_expressions_subscribe_to_nothing(bench: ConsumerBench) -> None:
    joined = bench.enter("a", topic_regex="")
    assert joined.error_code == 0
    assert joined.member_epoch == 1
    assert assigned(joined) == {}
    assert bench.enter("b", topic_names=None).error_code == ErrorCode.INVALID_REQUEST


def test_the_member_is_checked_before_its_expression(bench: ConsumerBench) -> None:
    epoch = bench.enter("a", "t").member_epoch
    assert bench.beat("a", 5, group="other", topic_regex="(").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert bench.beat("b", 5, topic_regex="(").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.beat("a", epoch + 1, topic_regex="(").error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert bench.beat("a", epoch, topic_regex="(").error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize("regex", ["(", r"(a)\1", "(?=a)b", "a{5000}"])
def test_bad_expressions_are_refused(bench: ConsumerBench, regex: str) -> None:
    answer = bench.enter("a", topic_regex=regex)
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert regex in answer.error_message
    assert bench.the_group() is None


# -- fencing -----------------------------------------------------------------------------------------------------


def test_unknown_members_and_groups(bench: ConsumerBench) -> None:
    assert bench.beat("a", 1).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert bench.beat("a", -1).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    bench.enter("a", "t")
    assert bench.beat("b", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.beat("b", -1).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_epochs_that_are_not_the_members_are_fenced(bench: ConsumerBench) -> None:
    settle([Client(bench, "a", "t"), Client(bench, "b", "t")])
    assert bench.beat("a", 3).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert bench.beat("a", 1).error_code == ErrorCode.FENCED_MEMBER_EPOCH  # does not say what it owns


def test_previous_epoch_is_accepted_after_a_lost_response(bench: ConsumerBench) -> None:
    first, second = Client(bench, "a", "t"), Client(bench, "b", "t")
    settle([first])
    second.beat()
    first.beat()  # gives two up
    assert first.beat(lose_answer=True).member_epoch == 2
    assert first.epoch == 1
    answer = first.beat()  # says with the old epoch what it owns
    assert (answer.error_code, first.epoch) == (0, 2)
    assert assigned(answer) == first.owned


def test_previous_epoch_with_partitions_of_others_is_fenced(bench: ConsumerBench) -> None:
    first, second = Client(bench, "a", "t"), Client(bench, "b", "t")
    settle([first])
    everything = first.owned
    settle([first, second])
    assert bench.beat("a", 1, owned=everything).error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_a_join_is_repeated_after_a_lost_answer(bench: ConsumerBench) -> None:
    client = Client(bench, "a", "t")
    client.beat(lose_answer=True)
    assert assigned(client.beat()) == {topic_id(bench): frozenset(range(4))}
    assert bench.the_group().group_epoch == 1


def test_fenced_member_joins_again_under_its_id(bench: ConsumerBench) -> None:
    first, second = Client(bench, "a", "t"), Client(bench, "b", "t")
    settle([first, second])
    first.take(bench.beat("a", 77))
    assert first.epoch == 0
    settle([first, second])
    assert len(first.owned[topic_id(bench)]) == len(second.owned[topic_id(bench)]) == 2
    assert bench.describe_consumers().group_state == "Stable"


# -- timers ------------------------------------------------------------------------------------------------------


def test_session_ends_without_heartbeats(bench: ConsumerBench) -> None:
    bench.enter("a", "t")
    bench.advance(44.0)
    assert bench.beat("a", 1).error_code == 0
    bench.advance(44.0)
    assert "a" in bench.the_group().members
    bench.advance(2.0)
    assert bench.the_group().members == {}
    assert bench.describe_consumers().group_state == "Empty"


def test_a_member_that_expired_while_the_log_was_full_is_removed_later(bench: ConsumerBench) -> None:
    bench.enter("a", "t")
    bench.log.refuse_always = FastAppendWait()
    bench.advance(90.0)
    bench.log.refuse_always = None
    bench.advance(1.0)
    assert bench.the_group().members == {}
    assert assigned(bench.enter("b", "t")) == {topic_id(bench): frozenset(range(4))}


def test_session_expiry_queued_after_a_heartbeat_was_renewed_by_it(bench: ConsumerBench) -> None:
    bench.enter("a", "t")
    bench.advance(41.0)
    bench.log.refuse_always = FastAppendWait()
    bench.commit(1, group="other")
    heartbeat = bench.send("a", 1)
    bench.advance(5.0)
    bench.log.refuse_always = None
    bench.advance(0.2)
    assert heartbeat.result(0).error_code == 0
    assert bench.beat("a", 1).error_code == 0


def test_topic_changes_begin_an_epoch_however_long_the_log_was_full(bench: ConsumerBench) -> None:
    bench.enter("a", "t")
    bench.log.refuse_always = FastAppendWait()
    bench.topic("t", 6)
    bench.advance(30.0)
    bench.log.refuse_always = None
    bench.advance(1.0)
    assert bench.beat("a", 1).member_epoch == 2


def test_a_member_that_could_not_be_stored_has_no_timers(bench: ConsumerBench) -> None:
    bench.log.refusals.append(FastKafkaError(int(ErrorCode.NOT_ENOUGH_REPLICAS), "no"))
    assert bench.enter("a", "t").error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.enter("a", "t", group="g" * 40_000).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    bench.advance(46.0)
    assert len(bench.coordinator.shards.runtimes[0].shard.timers) == 0


def test_session_and_interval_are_the_groups_own_within_bounds(bench: ConsumerBench) -> None:
    bench.group_configs["g"] = {"consumer.session.timeout.ms": "50000", "consumer.heartbeat.interval.ms": "99000"}
    assert bench.enter("a", "t").heartbeat_interval_ms == 15_000
    bench.advance(49.0)
    assert "a" in bench.the_group().members
    bench.advance(2.0)
    assert bench.the_group().members == {}


def test_a_member_that_revokes_nothing_is_removed(bench: ConsumerBench) -> None:
    first, second = Client(bench, "a", "t"), Client(bench, "b", "t")
    first.beat()
    first.slow = True
    second.beat()
    first.beat()
    for _ in range(5):
        bench.advance(5.0)
        settle([first, second], rounds=1)
    assert "a" in bench.the_group().members
    bench.advance(5.1)
    assert "a" not in bench.the_group().members
    assert first.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    settle([second])
    assert second.owned == {topic_id(bench): frozenset(range(4))}


# -- static members ----------------------------------------------------------------------------------------------


def test_static_member_keeps_its_place_over_a_restart(bench: ConsumerBench) -> None:
    first, other = Client(bench, "a", "t", instance_id="i"), Client(bench, "b", "t")
    settle([first, other])
    epoch = bench.the_group().group_epoch
    answer = bench.beat("a", -2, instance_id="i")
    assert (answer.error_code, answer.member_epoch) == (0, -2)
    settle([other])
    assert len(other.owned[topic_id(bench)]) == 2  # nothing moved
    again = Client(bench, "c", "t", instance_id="i")
    again.beat()
    assert again.owned == first.owned
    assert (again.epoch, bench.the_group().group_epoch) == (epoch, epoch)
    assert set(bench.the_group().members) == {"b", "c"}
    assert bench.beat("a", epoch, instance_id="i").error_code == ErrorCode.FENCED_INSTANCE_ID


def test_an_instance_id_in_use_is_refused(bench: ConsumerBench) -> None:
    bench.enter("a", "t", instance_id="i")
    assert bench.enter("b", "t", instance_id="i").error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert bench.beat("b", 1, instance_id="i").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert bench.beat("a", 1, instance_id="j").error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_does_not_return_expires(bench: ConsumerBench) -> None:
    bench.enter("a", "t", instance_id="i")
    bench.beat("a", -2, instance_id="i")
    bench.advance(46.0)
    assert bench.the_group().members == {}
    assert bench.enter("b", "t", instance_id="i").error_code == 0


# -- requests that are refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group": " "}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"owned": None}, ErrorCode.INVALID_REQUEST),
        ({"owned": {b"0" * 16: frozenset({1})}}, ErrorCode.INVALID_REQUEST),
        ({"topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "best"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
    ],
)
def test_joins_that_are_refused(bench: ConsumerBench, fields: dict[str, Any], error: ErrorCode) -> None:
    assert bench.enter("a", "t", **fields).error_code == error
    assert bench.coordinator.counts.groups == 0


def test_members_that_are_refused(bench: ConsumerBench) -> None:
    assert bench.beat("a", -3).error_code == ErrorCode.INVALID_REQUEST
    assert bench.beat("a", -2).error_code == ErrorCode.INVALID_REQUEST  # without an instance
    assert bench.beat("", 1).error_code == ErrorCode.INVALID_REQUEST
    assert bench.enter("", "t", makes_member_id=True).error_code == ErrorCode.INVALID_REQUEST


def test_group_size_has_a_limit() -> None:
    bench = ConsumerBench(consumer_group_size_max=1).start()
    bench.enter("a", "t")
    assert bench.enter("b", "t").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert bench.enter("a", "t").error_code == 0
    assert bench.enter("b", "t", group="h").error_code == 0


def test_number_of_groups_has_a_limit() -> None:
    bench = ConsumerBench(groups_max=1).start()
    bench.enter("a", "t")
    assert bench.enter("a", "t", group="h").error_code == ErrorCode.POLICY_VIOLATION


# -- state in the log --------------------------------------------------------------------------------------------


def test_a_restart_moves_no_partition(bench: ConsumerBench) -> None:
    clients = [Client(bench, name, "t") for name in "abc"]
    settle(clients)
    owned = [client.owned for client in clients]
    reloaded = bench.restarted()
    written = reloaded.log.next_offset
    for client in clients:
        client.bench = reloaded
    settle(clients)
    assert [client.owned for client in clients] == owned
    assert reloaded.log.next_offset == written
    reloaded.advance(46.0)
    assert reloaded.the_group().members == {}  # their sessions began with the load


def test_the_revocation_time_out_restarts_after_a_restart(bench: ConsumerBench) -> None:
    first, second = Client(bench, "a", "t"), Client(bench, "b", "t")
    first.beat()
    first.slow = True
    second.beat()
    first.beat()
    reloaded = bench.restarted()
    reloaded.advance(31.0)
    assert "a" not in reloaded.the_group().members


def test_topics_changed_while_the_coordinator_was_down_are_noticed(bench: ConsumerBench) -> None:
    client = Client(bench, "a", "t", topic_regex="log.*")
    client.beat()
    bench.catalog.put("t", 6)
    bench.catalog.put("log", 1)
    client.bench = bench.restarted()
    assert client.bench.the_group().group_epoch == 2
    settle([client])
    assert client.owned[topic_id(bench)] == frozenset(range(6))
    assert topic_id(bench, "log") in client.owned


def test_a_snapshot_holds_all_state(bench: ConsumerBench) -> None:
    small = bench.restarted(snapshot_min_records=40, snapshot_batch_bytes=400)
    small.topic("log", 1)
    clients = [Client(small, name, "t", topic_regex="l.*") for name in "abc"]
    settle(clients)
    small.commit(7, generation=clients[0].epoch, member_id="a")
    for partitions in range(5, 30):
        small.topic("t", partitions)
        settle(clients, rounds=4)
    assert small.log.start_offset > 0
    before, after = small.the_group(), small.restarted().the_group()
    for name in ("epoch", "assignment_epoch", "topics", "resolved", "members", "static_members", "target", "_owners"):
        assert getattr(before, name) == getattr(after, name), name
    assert list(after.offsets) == list(before.offsets)


def test_member_in_a_state_of_a_newer_version_is_fenced(bench: ConsumerBench) -> None:
    bench.enter("a", "t")
    group = bench.the_group()
    member = group.members["a"]
    from dataclasses import replace

    group.apply(CurrentRecord("g", "a", replace(member.current, state=MemberState.UNKNOWN)))
    assert bench.beat("a", 1).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    client = Client(bench, "a", "t")
    client.beat()
    assert client.owned == {topic_id(bench): frozenset(range(4))}


# -- groups that go ----------------------------------------------------------------------------------------------


def test_empty_group_is_deleted_with_its_offsets(bench: ConsumerBench) -> None:
    bench.enter("a", "t")
    bench.commit(3, generation=1, member_id="a")
    assert bench.delete() == ErrorCode.NON_EMPTY_GROUP
    bench.beat("a", -1)
    assert bench.delete() == 0
    assert bench.the_group() is None
    assert bench.coordinator.counts.offsets == bench.coordinator.counts.groups == 0
    assert bench.restarted().the_group() is None


def test_empty_group_expires_when_its_offsets_have(bench: ConsumerBench) -> None:
    bench.enter("a", "t")
    bench.commit(3, generation=1, member_id="a")
    bench.beat("a", -1)
    bench.advance(6 * 24 * 3600)
    assert bench.committed() == 3
    bench.advance(2 * 24 * 3600)
    assert bench.the_group() is None
    assert GroupEpochRecord("g", None) in bench.records()


# -- offsets of members ------------------------------------------------------------------------------------------


def test_commits_need_the_members_epoch(bench: ConsumerBench) -> None:
    bench.enter("a", "t")
    assert bench.commit(1, generation=1, member_id="a").result(0) == 0
    assert bench.commit(2, generation=0, member_id="a").result(0) == ErrorCode.STALE_MEMBER_EPOCH
    assert bench.commit(2, generation=1, member_id="b").result(0) == ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.commit(2, generation=1, member_id="a", version=8).result(0) == ErrorCode.UNSUPPORTED_VERSION
    assert bench.commit(2).result(0) == ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.committed() == 1
    bench.beat("a", -1)
    assert bench.commit(9).result(0) == 0  # an administrator, now that it is empty


def test_commits_on_their_way_survive_a_new_epoch(bench: ConsumerBench) -> None:
    first, second = Client(bench, "a", "t"), Client(bench, "b", "t")
    settle([first])
    settle([first, second])
    kept, lost = sorted(first.owned[topic_id(bench)]), sorted(second.owned[topic_id(bench)])
    assert first.epoch == 2

    def commit(partition: int, epoch: int, member_id: str = "a") -> int:
        return int(bench.commit(9, partition=partition, generation=epoch, member_id=member_id).result(0))

    assert commit(kept[0], 1) == 0  # has been its own since epoch 1
    assert commit(lost[0], 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit(lost[0], 1, "b") == ErrorCode.STALE_MEMBER_EPOCH  # not yet in epoch 1
    assert commit(kept[0], 3) == ErrorCode.STALE_MEMBER_EPOCH
    bench = bench.restarted()
    assert commit(kept[1], 1) == 0


def give_up_twice(bench: ConsumerBench) -> tuple[Client, Client, Client]:
    """Members of which the first has given up one part, and must give up another, both since its epoch 1."""
    first, second, third = clients = Client(bench, "a", "t"), Client(bench, "b", "t"), Client(bench, "c", "t")
    first.beat()
    second.beat()
    first.beat()  # is told of the first part
    third.beat()
    first.beat()  # has given that up, and is told of the second
    assert bench.the_group().members["a"].current.state is MemberState.UNREVOKED_PARTITIONS
    assert first.epoch == 1
    return clients


def test_a_second_revocation_is_restored_without_the_first(bench: ConsumerBench) -> None:
    give_up_twice(bench)
    before = bench.the_group().members
    assert bench.restarted().the_group().members == before


def test_commits_do_not_outlive_another_owner(bench: ConsumerBench) -> None:
    first, second, third = give_up_twice(bench)
    second.beat()
    lost = min(second.owned[topic_id(bench)])  # the second's own now, and no longer the first's

    def commit(partition: int, epoch: int, member_id: str = "a") -> int:
        return int(bench.commit(9, partition=partition, generation=epoch, member_id=member_id).result(0))

    assert commit(lost, second.epoch, "b") == 0
    for left in (second, third):
        bench.beat(left.member_id, -1)
    kept = min(first.owned[topic_id(bench)])
    settle([first])
    assert first.owned == {topic_id(bench): frozenset({0, 1, 2, 3})}
    assert commit(kept, 1) == 0
    assert commit(lost, 1) == ErrorCode.STALE_MEMBER_EPOCH  # from before the second had it
    assert commit(lost, first.epoch) == 0


def test_fetches_with_a_member_check_its_epoch(bench: ConsumerBench) -> None:
    from kbroker.coordinator.group.requests import FetchRequest

    def fetch(**member: Any) -> Any:
        future = bench.coordinator.fetch_offsets(FetchRequest("g", [("t", [0])], **member))
        bench.run()
        return future.result(0)

    bench.enter("a", "t")
    bench.commit(4, generation=1, member_id="a")
    assert fetch()[0][1][0][1].offset == 4
    assert fetch(member_id="a", member_epoch=1)[0][1][0][1].offset == 4
    assert fetch(member_id="a", member_epoch=2) == ErrorCode.STALE_MEMBER_EPOCH
    assert fetch(member_id="b", member_epoch=1) == ErrorCode.UNKNOWN_MEMBER_ID


# -- describe and list -------------------------------------------------------------------------------------------


def test_consumer_groups_are_described(bench: ConsumerBench) -> None:
    settle([Client(bench, "a", "t", instance_id="i", rack_id="r"), Client(bench, "b", "t", server_assignor="range")])
    described = bench.describe_consumers()
    assert (described.group_epoch, described.assignment_epoch, described.assignor_name) == (2, 2, "range")
    member = next(member for member in described.members if member.member_id == "a")
    assert (member.instance_id, member.rack_id, member.member_epoch, member.member_type) == ("i", "r", 2, 1)
    assert member.assignment.topic_partitions[0].topic_name == "t"
    assert member.assignment == member.target_assignment
    assert bench.describe().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert bench.state() == "Dead"
    missing = bench.describe_consumers("unknown")
    assert (missing.error_code, missing.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "")


def test_lists_by_type_and_state(bench: ConsumerBench) -> None:
    bench.enter("a", "t")
    bench.commit(1, group="simple")
    listed = {group.group_id: (group.group_type, group.group_state) for group in bench.list_groups()}
    assert listed == {"g": ("consumer", "Stable"), "simple": ("classic", "Empty")}
    assert [group.group_id for group in bench.list_groups(types=["consumer"])] == ["g"]
    assert [group.group_id for group in bench.list_groups("stable")] == ["g"]
    assert bench.list_groups("stable", types=["classic"]) == []
