"""Timers, elections and departures in the classic protocol."""

import logging

import pytest

from kbroker.coordinator.group.requests import Leaver
from kbroker.errors import ErrorCode
from tests.unit.coordinator.coordinator_fakes import Bench


def test_initial_delay_is_extended_while_members_arrive() -> None:
    bench = Bench().start()
    first = bench.join()
    bench.advance(2)
    second = bench.join()
    bench.advance(2)  # the first delay ended at 3 s: a member had joined
    assert not first.done()
    bench.advance(2.1)
    assert first.result(0).generation_id == second.result(0).generation_id == 1
    assert len(first.result(0).members) == 2
    assert second.result(0).members == []


def test_initial_delay_ends_with_the_rebalance_timeout() -> None:
    bench = Bench().start()
    first = bench.join(rebalance_ms=5_000)
    for _ in range(4):
        bench.advance(1)
        bench.join(rebalance_ms=5_000)
    assert not first.done()
    bench.advance(1.1)
    assert first.done()


def test_the_initial_delay_can_be_turned_off() -> None:
    bench = Bench(initial_rebalance_delay_ms=0).start()
    assert bench.join().done()


def test_a_member_joins_with_the_id_that_it_was_given() -> None:
    bench = Bench().start()
    refused = bench.join(known_id=True).result(0)
    assert refused.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert refused.member_id.startswith("client-")
    joined = bench.join(refused.member_id, known_id=True)
    bench.advance(3.1)
    assert joined.result(0).member_id == refused.member_id


def test_a_pending_id_expires() -> None:
    bench = Bench().start()
    refused = bench.join(known_id=True, session_ms=6_000).result(0)
    assert bench.coordinator.counts.groups == 1
    bench.advance(6.1)
    assert bench.coordinator.counts.groups == 0
    assert bench.join(refused.member_id).result(0).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_rebalance_waits_for_pending_ids() -> None:
    bench = Bench().start()
    generation, (member,) = bench.stable()
    bench.join(known_id=True, session_ms=6_000)
    parked = bench.join(member)
    assert not parked.done()
    bench.advance(6.1)
    assert parked.result(0).generation_id == generation + 1


def test_pending_ids_are_bounded() -> None:
    bench = Bench(group_size_max=3).start()
    codes = [bench.join(known_id=True).result(0).error_code for _ in range(4)]
    assert codes == [ErrorCode.MEMBER_ID_REQUIRED] * 3 + [ErrorCode.GROUP_MAX_SIZE_REACHED]


def test_missing_dynamic_members_are_removed_at_the_rebalance_timeout() -> None:
    bench = Bench().start()
    generation, ids = bench.stable(2, rebalance_ms=20_000, session_ms=60_000)
    parked = bench.join(ids[0], rebalance_ms=20_000, session_ms=60_000)
    bench.advance(19)
    assert not parked.done()
    bench.advance(1.1)
    assert [member.member_id for member in parked.result(0).members] == [ids[0]]
    assert bench.heartbeat(ids[1], generation) == ErrorCode.UNKNOWN_MEMBER_ID


def test_leader_that_does_not_rejoin_is_replaced() -> None:
    bench = Bench().start()
    _, ids = bench.stable(3, rebalance_ms=20_000, session_ms=60_000)
    again = [
        bench.join(member, protocols=[("range", b"new")], rebalance_ms=20_000, session_ms=60_000) for member in ids[1:]
    ]
    bench.advance(20.1)
    answers = [future.result(0) for future in again]
    assert {answer.leader for answer in answers} == {ids[1]}
    assert sorted(len(answer.members) for answer in answers) == [0, 2]


def test_protocol_with_most_votes_wins() -> None:
    bench = Bench().start()
    a, b, c = ("a", b""), ("b", b""), ("c", b"")
    futures = [bench.join(protocols=[c, a, b]), bench.join(protocols=[b, a]), bench.join(protocols=[b, a])]
    bench.advance(6.1)
    assert {future.result(0).protocol_name for future in futures} == {"b"}


def test_session_expiry_rebalances_the_rest() -> None:
    bench = Bench().start()
    generation, ids = bench.stable(2)
    bench.advance(6)
    assert bench.heartbeat(ids[0], generation) == 0
    bench.advance(4.5)
    assert bench.heartbeat(ids[0], generation) == ErrorCode.REBALANCE_IN_PROGRESS
    assert bench.heartbeat(ids[1], generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.join(ids[0]).result(0).generation_id == generation + 1


def test_last_session_expiry_empties_the_group_durably() -> None:
    bench = Bench().start()
    bench.stable(1)
    bench.advance(10.1)
    assert bench.state() == "Empty"
    assert bench.restarted().state() == "Empty"
    assert bench.coordinator.counts.members == 0


def test_parked_member_does_not_expire_and_its_session_restarts_with_the_answer() -> None:
    bench = Bench().start()
    generation, ids = bench.stable(2, rebalance_ms=60_000)
    parked = bench.join(ids[0])
    for _ in range(5):
        bench.advance(8)
        bench.heartbeat(ids[1], generation)
    assert not parked.done()
    bench.join(ids[1])
    bench.advance(9)
    assert bench.heartbeat(ids[0], generation + 1) == 0
    bench.advance(1.5)
    assert bench.heartbeat(ids[1], generation + 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_parked_new_member_is_dropped_after_five_minutes() -> None:
    bench = Bench().start()
    generation, (member,) = bench.stable(1, rebalance_ms=1_000_000)
    parked = bench.join(rebalance_ms=1_000_000)
    for _ in range(37):
        bench.advance(8)
        assert bench.heartbeat(member, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    assert not parked.done()
    bench.heartbeat(member, generation)
    bench.advance(5)
    assert parked.result(0).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert len(bench.describe().members) == 1


def test_members_that_do_not_sync_are_removed() -> None:
    bench = Bench().start()
    futures = [bench.join(rebalance_ms=15_000, session_ms=60_000) for _ in range(2)]
    bench.advance(6.1)
    leader = futures[0].result(0).leader
    follower = next(f.result(0).member_id for f in futures if f.result(0).member_id != leader)
    parked = bench.sync(follower, 1)
    bench.advance(14)
    assert not parked.done()
    bench.advance(1.1)
    assert parked.result(0).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert bench.heartbeat(leader, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.join(follower).result(0).leader == follower


def test_replaced_join_of_the_same_member_is_answered() -> None:
    bench = Bench().start()
    _, ids = bench.stable(2)
    first = bench.join(ids[0])
    second = bench.join(ids[0])
    assert first.result(0).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert not second.done()
    bench.join(ids[1])
    assert second.result(0).error_code == 0


# -- leave -------------------------------------------------------------------------------------------------------


def test_leave_starts_a_rebalance_and_the_last_empties_the_group() -> None:
    bench = Bench().start()
    generation, ids = bench.stable(2)
    assert bench.leave(Leaver(ids[0])).members[0].error_code == 0
    assert bench.state() == "PreparingRebalance"
    again = bench.join(ids[1]).result(0)
    assert (again.leader, again.generation_id) == (ids[1], generation + 1)
    bench.leave(Leaver(ids[1]))
    assert bench.state() == "Empty"


def test_leave_of_a_batch_answers_each() -> None:
    bench = Bench().start()
    _, _ids = bench.stable(3, instances=["i0", "i1", "i2"])
    static = {member.group_instance_id: member.member_id for member in bench.describe().members}
    answer = bench.leave(
        Leaver(static["i0"], "i0"), Leaver("", "i1"), Leaver("unknown"), Leaver("wrong", "i2"), Leaver("", "i9")
    )
    assert [member.error_code for member in answer.members] == [
        0,
        0,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert [member.group_instance_id for member in bench.describe().members] == ["i2"]


def test_leave_of_a_pending_id_and_of_an_unknown_group() -> None:
    bench = Bench().start()
    pending = bench.join(known_id=True).result(0).member_id
    assert bench.leave(Leaver(pending)).members[0].error_code == 0
    assert bench.coordinator.counts.groups == 0
    assert bench.leave(Leaver(pending)).members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_leave_while_parked_in_sync_answers_the_sync() -> None:
    bench = Bench().start()
    futures = [bench.join() for _ in range(2)]
    bench.advance(6.1)
    leader = futures[0].result(0).leader
    follower = next(f.result(0).member_id for f in futures if f.result(0).member_id != leader)
    parked = bench.sync(follower, 1)
    bench.leave(Leaver(follower))
    assert parked.result(0).error_code == ErrorCode.UNKNOWN_MEMBER_ID


# -- any protocol type -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol_type", ["consumer", "connect", "sr", "stream"])
def test_any_protocol_type_and_opaque_metadata(protocol_type: str) -> None:
    bench = Bench().start()
    metadata = bytes(range(256))
    _generation, (member,) = bench.stable(1, protocol_type=protocol_type, protocols=[("v0", metadata)])
    described = bench.restarted().describe()
    assert (described.protocol_type, described.protocol_data) == (protocol_type, "v0")
    assert described.members[0].member_metadata == metadata
    assert described.members[0].member_assignment == b"of " + member.encode()


def test_the_log_says_why_a_group_is_rebalanced(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench().start()
    _, (leader, follower) = bench.stable(2)
    bench.join(leader, reason="metadata\nhas changed" + "x" * 1_000)
    line = caplog.messages[-1]
    assert line.startswith(
        f"group g: generation 1 is rebalanced: member {leader} joins again; the client says: 'metadata\\nhas"
    )
    assert len(line) < 400
    bench.join(follower)
    bench.leave(Leaver(follower))
    assert caplog.messages[-1].endswith(f": member {follower} left")
