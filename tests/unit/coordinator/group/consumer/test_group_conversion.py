"""Online migration: members of both protocols in one group, and groups that change their type."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker._fast.wal.commit import FastAppendWait
from kbroker.coordinator.group.classic.group import ClassicGroup
from kbroker.coordinator.group.consumer.group import ConsumerGroup
from kbroker.coordinator.group.requests import Leaver
from kbroker.coordinator.group.topic_partitions import Partitions
from kbroker.errors import ErrorCode
from tests.unit.coordinator.group.consumer.consumer_fakes import ClassicClient, Client, ConsumerBench, settle


@pytest.fixture
def bench() -> ConsumerBench:
    return started()


def started(**config: Any) -> ConsumerBench:
    bench = ConsumerBench(initial_rebalance_delay_ms=0, **config).start()
    bench.topic("t", 6)
    return bench


def run(*clients: Client | ClassicClient, rounds: int = 12) -> None:
    for _ in range(rounds):
        for client in clients:
            client.beat()
            client.bench.advance(0.1)


def partitions(owned: Partitions) -> set[int]:
    return {partition for indexes in owned.values() for partition in indexes}


def check_shares(*clients: Client | ClassicClient) -> None:
    shares = [partitions(client.owned) for client in clients]
    assert sorted(partition for share in shares for partition in share) == list(range(6))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def classics(bench: ConsumerBench, count: int, **how: Any) -> list[ClassicClient]:
    clients = [ClassicClient(bench, "t", **how) for _ in range(count)]
    run(*clients)
    check_shares(*clients)
    assert isinstance(bench.the_group(), ClassicGroup)
    return clients


@pytest.mark.parametrize("eager", [True, False])
def test_classic_group_becomes_a_consumer_group_and_back(bench: ConsumerBench, eager: bool) -> None:
    first, second = classics(bench, 2, eager=eager)
    bench.commit(5, generation=first.generation, member_id=first.member_id)
    third = Client(bench, "c", "t")
    run(first, second, third)
    check_shares(first, second, third)
    assert isinstance(bench.the_group(), ConsumerGroup)
    assert bench.describe_consumers().group_state == "Stable"
    assert sorted(member.member_type for member in bench.describe_consumers().members) == [0, 0, 1]
    assert bench.committed() == 5

    bench.beat("c", -1)
    assert isinstance(bench.the_group(), ClassicGroup)
    run(first, second)
    check_shares(first, second)
    assert bench.state() == "Stable"
    assert bench.committed() == 5
    counts = bench.coordinator.counts
    assert (counts.groups, counts.members, counts.offsets) == (1, 2, 1)


def test_converted_groups_survive_a_restart(bench: ConsumerBench) -> None:
    first, second = classics(bench, 2)
    third = Client(bench, "c", "t")
    run(first, second, third)
    clients = (first, second, third)
    owned, rejoins = [client.owned for client in clients], first.rejoins
    bench = bench.restarted()
    first.restart(bench)
    second.restart(bench)
    third.bench = bench
    run(*clients)
    assert [client.owned for client in clients] == owned
    assert first.rejoins == rejoins

    bench.beat("c", -1)
    bench = bench.restarted()
    first.restart(bench)
    second.restart(bench)
    assert isinstance(bench.the_group(), ClassicGroup)
    run(first, second)
    check_shares(first, second)


def test_last_classic_member_leaves_a_consumer_group(bench: ConsumerBench) -> None:
    (first,) = classics(bench, 1)
    second = Client(bench, "c", "t")
    run(first, second)
    assert bench.leave(Leaver(first.member_id)).members[0].error_code == 0
    settle([second])
    check_shares(second)
    assert isinstance(bench.the_group(), ConsumerGroup)
    answers = bench.leave(Leaver("c"), Leaver("c"), Leaver("unknown")).members  # Admin.removeMembersFromConsumerGroup
    assert [each.error_code for each in answers] == [0, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID]
    assert not bench.the_group().members


def test_removed_consumer_members_end_the_consumer_group(bench: ConsumerBench) -> None:
    first, other = classics(bench, 2)
    second, third = Client(bench, "c", "t"), Client(bench, "d", "t")
    run(first, other, second, third)
    answers = bench.leave(Leaver("c"), Leaver(other.member_id), Leaver("d")).members
    assert [each.error_code for each in answers] == [0, 0, 0]
    assert isinstance(bench.the_group(), ClassicGroup)
    run(first)
    check_shares(first)


def test_silent_consumer_member_ends_the_consumer_group(bench: ConsumerBench) -> None:
    (first,) = classics(bench, 1)
    second = Client(bench, "c", "t")
    run(first, second)
    for _ in range(10):
        bench.advance(5.0)
        first.beat()
    assert isinstance(bench.the_group(), ClassicGroup)
    run(first)
    check_shares(first)


def test_a_classic_member_that_falls_silent_is_removed_after_the_conversion(bench: ConsumerBench) -> None:
    classics(bench, 1)
    second = Client(bench, "c", "t")
    second.beat()
    for _ in range(3):
        bench.advance(4.0)
        second.beat()
    settle([second])
    assert set(bench.the_group().members) == {"c"}
    check_shares(second)


@pytest.mark.parametrize(("policy", "upgrades"), [("disabled", False), ("downgrade", False), ("upgrade", True)])
def test_policy_of_upgrades(policy: str, upgrades: bool) -> None:
    bench = started(migration_policy=policy)
    (first,) = classics(bench, 1)
    answer = bench.enter("c", "t")
    assert answer.error_code == (0 if upgrades else ErrorCode.GROUP_ID_NOT_FOUND)
    assert isinstance(bench.the_group(), ConsumerGroup if upgrades else ClassicGroup)
    if not upgrades:
        assert bench.heartbeat(first.member_id, first.generation) == 0


@pytest.mark.parametrize(("policy", "downgrades"), [("upgrade", False), ("bidirectional", True)])
def test_policy_of_downgrades(policy: str, downgrades: bool) -> None:
    bench = started(migration_policy=policy)
    (first,) = classics(bench, 1)
    second = Client(bench, "c", "t")
    run(first, second)
    bench.beat("c", -1)
    assert isinstance(bench.the_group(), ClassicGroup if downgrades else ConsumerGroup)
    run(first)
    check_shares(first)


def test_empty_groups_change_their_type(bench: ConsumerBench) -> None:
    bench.commit(3)
    assert bench.enter("c", "t").error_code == 0
    assert isinstance(bench.the_group(), ConsumerGroup)
    bench.beat("c", -1)
    (first,) = classics(bench, 1)
    assert bench.committed() == 3
    bench.leave(Leaver(first.member_id))
    bench.advance(1.0)
    assert bench.state() == "Empty"
    assert bench.enter("d", "t").error_code == 0
    reloaded = bench.restarted()
    assert set(reloaded.the_group().members) == {"d"}
    assert reloaded.committed() == 3


def test_empty_consumer_group_refuses_known_members_of_the_classic_protocol(bench: ConsumerBench) -> None:
    bench.enter("c", "t")
    bench.beat("c", -1)
    assert bench.join("unknown").result(0).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_groups_of_other_types_are_not_converted(bench: ConsumerBench) -> None:
    future = bench.join(protocol_type="connect", protocols=[("default", b"x")])
    bench.advance(1.0)
    assert future.result(0).error_code == 0
    answer = bench.enter("c", "t")
    assert (answer.error_code, "not a consumer group" in answer.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, True)
    bench.enter("c", "t", group="h")
    refused = bench.join(group="h", protocol_type="connect", protocols=[("default", b"x")]).result(0)
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_malformed_subscriptions_are_not_converted(bench: ConsumerBench) -> None:
    _, (member,) = bench.stable(1, protocols=[("range", b"metadata")])
    answer = bench.enter("c", "t")
    assert (answer.error_code, "malformed" in answer.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, True)
    assert bench.heartbeat(member, 1) == 0


def test_static_member_changes_its_protocol(bench: ConsumerBench) -> None:
    first, second = classics(bench, 2, eager=False)
    static = ClassicClient(bench, "t", instance_id="i")
    run(first, second, static)
    check_shares(first, second, static)
    generation = static.generation
    upgraded = Client(bench, "new", "t", instance_id="i")
    upgraded.beat()  # in the place of its classic self
    assert bench.heartbeat(static.member_id, generation, instance="i") == ErrorCode.FENCED_INSTANCE_ID
    run(first, second, upgraded)
    check_shares(first, second, upgraded)

    back = ClassicClient(bench, "t", instance_id="i")
    back.beat()
    assert isinstance(bench.the_group(), ClassicGroup)
    run(first, second, back)
    check_shares(first, second, back)
    answer = bench.beat("new", upgraded.epoch, instance_id="i")
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_classic_member_that_does_not_join_again_is_removed(bench: ConsumerBench) -> None:
    (first,) = classics(bench, 1)
    second = Client(bench, "c", "t")
    second.beat()
    for _ in range(7):
        assert bench.heartbeat(first.member_id, first.generation) in (27, 25)
        second.beat()
        bench.advance(5.0)
    settle([second])
    assert set(bench.the_group().members) == {"c"}
    check_shares(second)


def test_classic_member_that_does_not_sync_is_removed(bench: ConsumerBench) -> None:
    (first,) = classics(bench, 1)
    second = Client(bench, "c", "t")
    run(first, second)
    bench.join(first.member_id, protocols=[("mine", first.metadata())], rebalance_ms=30_000)
    for _ in range(7):
        bench.heartbeat(first.member_id, bench.the_group().members[first.member_id].current.member_epoch)
        second.beat()
        bench.advance(4.9 if _ < 6 else 5.0)
    assert set(bench.the_group().members) == {"c"}


def test_commits_of_classic_members_use_generations(bench: ConsumerBench) -> None:
    (first,) = classics(bench, 1)
    second = Client(bench, "c", "t")
    run(first, second)
    commit = bench.commit(1, generation=first.generation, member_id=first.member_id, version=5)
    assert commit.result(0) == 0
    stale = bench.commit(1, generation=first.generation - 1, member_id=first.member_id, version=5)
    assert stale.result(0) == ErrorCode.ILLEGAL_GENERATION


def test_administrator_removes_static_members_of_either_protocol(bench: ConsumerBench) -> None:
    bench.enter("c", "t", instance_id="i")
    answer = bench.leave(Leaver("", "i"), Leaver("", "j"))
    assert [member.error_code for member in answer.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert bench.the_group().members == {}


def test_join_that_a_conversion_overtakes_is_answered(bench: ConsumerBench) -> None:
    bench.enter("a", "t")
    bench.beat("a", -1)
    bench.log.hold = True
    joined = ClassicClient(bench, "t", instance_id="i")
    joined.beat()  # takes the empty group over, once that is durable
    bench.log.refuse_always = FastAppendWait()
    entered = bench.send("b", 0, rebalance_timeout_ms=30_000, owned={}, topic_names=frozenset({"t"}))
    bench.run()
    bench.log.release()
    bench.log.hold = False
    bench.advance(0.0)
    bench.log.refuse_always = None
    bench.advance(0.2)
    assert entered.result(0).error_code == 0
    second = Client(bench, "c", "t")
    run(joined, second)
    assert joined.member_id in bench.the_group().members


def test_a_late_take_over_keeps_members_that_joined_before_it(bench: ConsumerBench) -> None:
    bench.enter("a", "t")
    bench.beat("a", -1)
    bench.log.hold = True
    joined = bench.join()  # takes the empty group over, once that is durable
    join = {"rebalance_timeout_ms": 30_000, "owned": {}, "topic_names": frozenset({"t"})}
    for epoch, fields in [(0, join), (-1, {})]:
        bench.send("b", epoch, **fields)
        bench.run()
    bench.log.refuse_always = FastAppendWait()
    bench.commit(1, group="other")
    entered = bench.send("c", 0, **join)
    bench.run()
    bench.log.release()
    bench.run()
    bench.log.hold = False
    bench.log.refuse_always = None
    bench.advance(0.2)
    assert joined.result(0).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert bench.beat("c", entered.result(0).member_epoch).error_code == 0
    assert set(bench.restarted().the_group().members) == {"c"}
