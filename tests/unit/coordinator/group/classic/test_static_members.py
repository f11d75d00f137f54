"""Static membership (KIP-345, KIP-814)."""

from kbroker.coordinator.group.requests import Leaver
from kbroker.errors import ErrorCode
from tests.unit.coordinator.coordinator_fakes import Bench


def test_return_without_rebalance_fences_the_old_id() -> None:
    bench = Bench().start()
    generation, _ids = bench.stable(2, instances=["a", "b"])
    old = next(member.member_id for member in bench.describe().members if member.group_instance_id == "b")
    answer = bench.join(instance="b").result(0)
    assert (answer.error_code, answer.generation_id, answer.members) == (0, generation, [])
    assert answer.member_id.startswith("b-")
    assert answer.member_id != old
    assert bench.state() == "Stable"
    assert bench.heartbeat(old, generation, instance="b") == ErrorCode.FENCED_INSTANCE_ID
    assert bench.heartbeat(old, generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.sync(old, generation, instance="b").result(0).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert bench.join(old, instance="b").result(0).error_code == ErrorCode.FENCED_INSTANCE_ID
    fenced = bench.commit(generation=generation, member_id=old, instance="b")
    assert fenced.result(0) == ErrorCode.FENCED_INSTANCE_ID
    assert bench.sync(answer.member_id, generation, instance="b").result(0).assignment == b"of " + old.encode()


def test_new_id_is_durable_before_the_answer_and_survives_a_restart() -> None:
    bench = Bench().start()
    generation, _ = bench.stable(2, instances=["a", "b"])
    bench.log.hold = True
    future = bench.join(instance="b")
    assert not future.done()
    bench.log.release()
    bench.run()
    new_id = future.result(0).member_id
    assert bench.restarted().heartbeat(new_id, generation, instance="b") == 0


def test_returning_leader_skips_assignment_from_v9() -> None:
    bench = Bench().start()
    _generation, ids = bench.stable(2, instances=["a", "b"])
    leader_instance = next(m.group_instance_id for m in bench.describe().members if m.member_id == ids[0])
    answer = bench.join(instance=leader_instance, skip=True).result(0)
    assert answer.skip_assignment
    assert answer.leader == answer.member_id
    assert len(answer.members) == 2


def test_returning_leader_before_v9_is_not_told_that_it_leads() -> None:
    bench = Bench().start()
    _, ids = bench.stable(2, instances=["a", "b"])
    leader_instance = next(m.group_instance_id for m in bench.describe().members if m.member_id == ids[0])
    answer = bench.join(instance=leader_instance, skip=False).result(0)
    assert (answer.leader, answer.members, answer.skip_assignment) == (ids[0], [], False)
    assert answer.member_id != ids[0]


def test_return_that_changes_the_protocol_rebalances() -> None:
    bench = Bench().start()
    both = [("x", b""), ("y", b"")]
    bench.stable(1, instances=["a"], protocols=both)
    future = bench.join(instance="a", protocols=[("y", b"")])
    assert future.result(0).generation_id == 2
    assert future.result(0).protocol_name == "y"


def test_return_while_completing_rebalances() -> None:
    bench = Bench().start()
    futures = [bench.join(instance=instance) for instance in "ab"]
    bench.advance(6.1)
    ids = {f.result(0).member_id for f in futures}
    back = bench.join(instance="b")
    assert bench.state() == "PreparingRebalance"
    other = next(member for member in ids if member.startswith("a-"))
    assert bench.join(other, instance="a").result(0).generation_id == 2
    assert back.result(0).generation_id == 2


def test_return_while_preparing_fences_the_parked_join() -> None:
    bench = Bench().start()
    first = bench.join(instance="a")
    second = bench.join(instance="a")
    assert first.result(0).error_code == ErrorCode.FENCED_INSTANCE_ID
    bench.advance(6.1)
    assert second.result(0).error_code == 0
    assert len(second.result(0).members) == 1


def test_refused_write_restores_the_old_id() -> None:
    from kbroker._fast.wal.commit import FastKafkaError

    bench = Bench().start()
    generation, ids = bench.stable(1, instances=["a"])
    bench.log.refusals.append(FastKafkaError(int(ErrorCode.NOT_ENOUGH_REPLICAS), "full"))
    answer = bench.join(instance="a").result(0)
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.heartbeat(ids[0], generation, instance="a") == 0


def test_static_members_stay_through_a_rebalance_until_their_session_ends() -> None:
    bench = Bench().start()
    _generation, _ids = bench.stable(2, instances=["a", None], rebalance_ms=20_000, session_ms=30_000)
    dynamic = next(m.member_id for m in bench.describe().members if m.group_instance_id is None)
    parked = bench.join(dynamic, protocols=[("range", b"n")], rebalance_ms=20_000, session_ms=30_000)
    bench.advance(20.1)
    assert parked.result(0).error_code == 0
    assert len(bench.describe().members) == 2


def test_a_rebalance_waits_while_only_silent_static_members_are_missing() -> None:
    bench = Bench().start()
    generation, _ = bench.stable(3, instances=["a", "b"], rebalance_ms=20_000, session_ms=15_000)
    ids = {member.group_instance_id: member.member_id for member in bench.describe().members}
    bench.leave(Leaver(ids[None]))
    for _ in range(6):
        bench.advance(9)
        for instance in "ab":
            beat = bench.heartbeat(ids[instance], generation, instance=instance)
            assert beat == ErrorCode.REBALANCE_IN_PROGRESS
    rejoined = [bench.join(ids[instance], instance=instance) for instance in "ab"]
    assert [future.result(0).generation_id for future in rejoined] == [generation + 1] * 2


def test_silent_static_members_without_a_rebalance_timeout_cause_no_busy_loop() -> None:
    bench = Bench().start()
    joined = [bench.join(instance="a", rebalance_ms=0), bench.join(rebalance_ms=20_000)]
    bench.advance(6.5)
    static, dynamic = (future.result(0) for future in joined)
    bench.sync_all(static.generation_id, sorted([static.member_id, dynamic.member_id], key=static.leader.__ne__))
    bench.leave(Leaver(dynamic.member_id))
    bench.advance(9)
    beat = bench.heartbeat(static.member_id, static.generation_id, instance="a")
    assert beat == ErrorCode.REBALANCE_IN_PROGRESS
    bench.advance(11)
    assert bench.state() == "Empty"


def test_a_static_return_overtaken_by_a_rebalance_is_answered_by_it() -> None:
    bench = Bench().start()
    generation, ids = bench.stable(2, instances=["a", "b"])
    instances = {member.member_id: member.group_instance_id for member in bench.describe().members}
    bench.log.hold = True
    back = bench.join(instance=instances[ids[1]])
    leader = bench.join(ids[0], instance=instances[ids[0]])
    assert back.result(0).generation_id == leader.result(0).generation_id == generation + 1
    again = bench.join(instance=instances[ids[1]])
    bench.log.release()
    bench.run()
    assert not again.done()
    assert bench.state() == "PreparingRebalance"
