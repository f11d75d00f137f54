"""Heartbeats that the requesting thread answers itself: only where nothing is to be told."""

import pytest
from coordinator_fakes import Bench

from kbroker.protocol.apis.k12_heartbeat import HeartbeatRequest


def renew(bench: Bench, member_id: str, generation: int, instance: str | None = None, group: str = "g") -> bool:
    return bench.coordinator.renew_session(
        HeartbeatRequest(
            group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance
        )
    )


def test_it_keeps_a_member_alive_and_silence_does_not() -> None:
    bench = Bench().start()
    generation, (member,) = bench.stable(session_ms=10_000)
    for _ in range(5):
        bench.advance(9)
        assert renew(bench, member, generation)
    bench.advance(9.9)
    assert bench.state() == "Stable"
    bench.advance(0.2)
    assert bench.state() == "Empty"
    assert not renew(bench, member, generation)


@pytest.mark.parametrize(
    ("generation", "member", "group"), [(1, None, "g"), (-1, None, "g"), (0, "other", "g"), (0, None, "nobody")]
)
def test_whoever_must_be_told_something_asks_the_loop(generation: int, member: str | None, group: str) -> None:
    bench = Bench().start()
    current, (known,) = bench.stable()
    assert renew(bench, known, current)
    assert not renew(bench, member or known, current + generation, group=group)


def test_rebalance_is_told_by_the_loop() -> None:
    bench = Bench().start()
    generation, ids = bench.stable(2)
    bench.join(ids[0], protocols=[("range", b"changed")])
    assert not renew(bench, ids[1], generation)
    assert bench.heartbeat(ids[1], generation) == 27


def test_fenced_instance_is_told_by_the_loop() -> None:
    bench = Bench().start()
    generation, (old,) = bench.stable(instances=["i"])
    assert renew(bench, old, generation, "i")
    new = bench.join(instance="i").result(0).member_id
    assert not renew(bench, old, generation, "i")
    assert renew(bench, new, generation, "i")
    assert not renew(bench, new, generation, "other")


def test_loading_shard_does_not_answer() -> None:
    before = Bench().start()
    generation, (member,) = before.stable()
    after = Bench([log.restarted() for log in before.logs])
    after.executor.hold = True
    after.start()
    assert not renew(after, member, generation)
    after.executor.run()
    after.run()
    assert renew(after, member, generation)
