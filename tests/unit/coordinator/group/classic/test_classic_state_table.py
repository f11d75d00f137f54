"""The state table of the classic protocol, cell by cell."""

import pytest

from kbroker.coordinator.group.classic.group import ClassicGroup
from kbroker.coordinator.group.classic.state import TRANSITIONS, ClassicGroupState
from kbroker.coordinator.group.requests import Leaver
from kbroker.errors import ErrorCode
from tests.unit.coordinator.coordinator_fakes import RANGE, Bench

OTHER = [("range", b"other")]


def empty() -> Bench:
    bench = Bench().start()
    _generation, (member,) = bench.stable()
    bench.leave(Leaver(member))
    assert bench.state() == "Empty"
    return bench


def in_state(state: ClassicGroupState) -> ClassicGroup:
    group = ClassicGroup("g", 0)
    group.state = state
    return group


@pytest.mark.parametrize("state", ClassicGroupState)
def test_a_group_enters_only_the_states_of_the_transition_table(state: ClassicGroupState) -> None:
    for target in ClassicGroupState:
        group = in_state(state)
        if target in TRANSITIONS[state]:
            group.transition_to(target, 7)
            assert (group.state, group.previous_state, group.state_timestamp_ms) == (target, state, 7)
        else:
            with pytest.raises(AssertionError):
                group.transition_to(target, 7)
            assert group.state is state


def test_a_change_of_members_starts_a_rebalance_except_during_one() -> None:
    assert {state for state in ClassicGroupState if in_state(state).can_rebalance} == {
        ClassicGroupState.EMPTY,
        ClassicGroupState.COMPLETING_REBALANCE,
        ClassicGroupState.STABLE,
    }


def test_a_dead_group_stays_dead() -> None:
    assert TRANSITIONS[ClassicGroupState.DEAD] == frozenset()


# -- Empty -------------------------------------------------------------------------------------------------------


def test_empty_join_starts_rebalance() -> None:
    bench = empty()
    future = bench.join()
    assert bench.state() == "PreparingRebalance"
    bench.advance(3.1)
    answer = future.result(0)
    assert (answer.error_code, answer.generation_id, answer.leader) == (0, 3, answer.member_id)
    assert [member.member_id for member in answer.members] == [answer.member_id]


def test_empty_knows_no_member() -> None:
    bench = empty()
    assert bench.sync("gone", 2).result(0).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.heartbeat("gone", 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.join("gone").result(0).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_empty_takes_simple_commits_only() -> None:
    bench = empty()
    assert bench.commit(7).result(0) == 0
    assert bench.committed() == 7
    assert bench.commit(8, generation=1, member_id="gone").result(0) == ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.committed() == 7


# -- PreparingRebalance ------------------------------------------------------------------------------------------


def preparing() -> tuple[Bench, int, list[str]]:
    """Two members; the leader has rejoined, the other has not."""
    bench = Bench().start()
    generation, ids = bench.stable(2)
    leader_join = bench.join(ids[0])
    assert not leader_join.done()
    assert bench.state() == "PreparingRebalance"
    return bench, generation, ids


def test_preparing_parks_joins_until_all_are_in() -> None:
    bench, generation, ids = preparing()
    second = bench.join(ids[1])
    assert second.result(0).generation_id == generation + 1
    assert bench.state() == "CompletingRebalance"


def test_preparing_refuses_sync() -> None:
    bench, generation, ids = preparing()
    assert bench.sync(ids[1], generation).result(0).error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_preparing_heartbeat_says_rebalance_and_renews_the_session() -> None:
    bench, generation, ids = preparing()
    for _ in range(5):
        bench.advance(8)  # of a session of 10 s
        assert bench.heartbeat(ids[1], generation) == ErrorCode.REBALANCE_IN_PROGRESS
    assert len(bench.describe().members) == 2


def test_preparing_takes_commits_of_the_generation_and_renews_the_session() -> None:
    bench, generation, ids = preparing()
    for offset in range(5):
        bench.advance(8)
        assert bench.commit(offset, generation=generation, member_id=ids[1]).result(0) == 0
    assert bench.committed() == 4
    assert bench.commit(9, generation=generation - 1, member_id=ids[1]).result(0) == ErrorCode.ILLEGAL_GENERATION
    assert bench.commit(9).result(0) == ErrorCode.UNKNOWN_MEMBER_ID


# -- CompletingRebalance -----------------------------------------------------------------------------------------


def completing() -> tuple[Bench, int, list[str]]:
    bench, generation, ids = preparing()
    bench.join(ids[1])
    return bench, generation + 1, ids


def test_completing_join_with_same_metadata_repeats_the_answer() -> None:
    bench, generation, ids = completing()
    leader, follower = bench.join(ids[0]).result(0), bench.join(ids[1]).result(0)
    assert (leader.generation_id, follower.generation_id) == (generation, generation)
    assert {member.member_id for member in leader.members} == set(ids)
    assert follower.members == []
    assert bench.state() == "CompletingRebalance"


def test_completing_join_with_other_metadata_rebalances_and_releases_parked_syncs() -> None:
    bench, generation, ids = completing()
    parked = bench.sync(ids[1], generation)
    assert not parked.done()
    assert not bench.join(ids[0], protocols=OTHER).done()
    assert parked.result(0).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert bench.state() == "PreparingRebalance"


def test_completing_sync_parks_followers_until_the_leader() -> None:
    bench, generation, ids = completing()
    follower = bench.sync(ids[1], generation)
    assert not follower.done()
    leader = bench.sync(ids[0], generation, {ids[0]: b"one", ids[1]: b"two"})
    assert leader.result(0).assignment == b"one"
    assert follower.result(0).assignment == b"two"
    assert follower.result(0).protocol_type == "consumer"
    assert follower.result(0).protocol_name == "range"
    assert bench.state() == "Stable"


def test_members_absent_from_the_leaders_list_get_nothing() -> None:
    bench, generation, ids = completing()
    bench.sync(ids[0], generation, {ids[0]: b"one", "stranger": b"x"})
    assert bench.sync(ids[1], generation).result(0).assignment == b""


def test_completing_heartbeat_is_fine() -> None:
    bench, generation, ids = completing()
    assert bench.heartbeat(ids[1], generation) == 0


def test_completing_refuses_commits() -> None:
    bench, generation, ids = completing()
    assert bench.commit(generation=generation, member_id=ids[1]).result(0) == ErrorCode.REBALANCE_IN_PROGRESS


# -- Stable ------------------------------------------------------------------------------------------------------


def test_stable_follower_with_same_metadata_gets_the_current_generation() -> None:
    bench = Bench().start()
    generation, ids = bench.stable(2)
    answer = bench.join(ids[1]).result(0)
    assert (answer.generation_id, answer.members, answer.leader) == (generation, [], ids[0])
    assert bench.state() == "Stable"


def test_stable_follower_with_other_metadata_rebalances() -> None:
    bench = Bench().start()
    _, ids = bench.stable(2)
    assert not bench.join(ids[1], protocols=OTHER).done()
    assert bench.state() == "PreparingRebalance"


def test_stable_leader_rejoining_rebalances() -> None:
    bench = Bench().start()
    _, ids = bench.stable(2)
    assert not bench.join(ids[0]).done()
    assert bench.state() == "PreparingRebalance"


def test_stable_sync_heartbeat_commit() -> None:
    bench = Bench().start()
    generation, ids = bench.stable(2)
    assert bench.sync(ids[1], generation).result(0).assignment == b"of " + ids[1].encode()
    assert bench.heartbeat(ids[0], generation) == 0
    assert bench.commit(3, generation=generation, member_id=ids[0]).result(0) == 0
    assert bench.committed() == 3


def test_wrong_generation_and_protocol() -> None:
    bench = Bench().start()
    generation, (member,) = bench.stable()
    assert bench.heartbeat(member, generation + 1) == ErrorCode.ILLEGAL_GENERATION
    assert bench.sync(member, generation - 1).result(0).error_code == ErrorCode.ILLEGAL_GENERATION
    wrong_type = bench.sync(member, generation, protocol_type="connect").result(0)
    wrong_name = bench.sync(member, generation, protocol="sticky").result(0)
    assert wrong_type.error_code == wrong_name.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert bench.sync(member, generation, protocol_type="consumer", protocol="range").result(0).error_code == 0


# -- Dead: a group that is gone ------------------------------------------------------------------------------------


def test_unknown_group() -> None:
    bench = Bench().start()
    assert bench.heartbeat("m", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.sync("m", 1).result(0).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.join("m").result(0).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.commit(generation=1, member_id="m", version=8).result(0) == ErrorCode.ILLEGAL_GENERATION
    assert bench.commit(generation=1, member_id="m", version=9).result(0) == ErrorCode.GROUP_ID_NOT_FOUND
    assert bench.coordinator.counts.groups == 0


def test_empty_group_id() -> None:
    bench = Bench().start()
    assert bench.join(group="").result(0).error_code == ErrorCode.INVALID_GROUP_ID
    assert bench.sync("m", 1, group="").result(0).error_code == ErrorCode.INVALID_GROUP_ID
    assert bench.heartbeat("m", 1, group="") == ErrorCode.INVALID_GROUP_ID
    assert bench.leave(Leaver("m"), group="").error_code == ErrorCode.INVALID_GROUP_ID
    assert bench.commit(4, group="").result(0) == 0
    assert bench.committed(group="") == 4


def test_join_arguments() -> None:
    bench = Bench(group_size_max=2).start()

    def refused(**join: object) -> int:
        return int(bench.join(**join).result(0).error_code)  # type: ignore[arg-type]

    assert refused(session_ms=5_999) == ErrorCode.INVALID_SESSION_TIMEOUT
    assert refused(session_ms=1_800_001) == ErrorCode.INVALID_SESSION_TIMEOUT
    assert refused(protocols=[]) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert refused(protocol_type="") == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert bench.coordinator.counts.groups == 0
    bench.stable(2)
    assert refused(protocol_type="connect") == ErrorCode.GROUP_MAX_SIZE_REACHED
    bench.leave(Leaver(bench.describe().members[1].member_id))
    assert refused(protocol_type="connect") == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert refused(protocols=[("sticky", b"")]) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert RANGE == [("range", b"metadata")]
