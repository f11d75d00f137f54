"""Heartbeats that the requesting thread answers itself: only if there is no news for the member."""

from typing import Any

import pytest

from kbroker.coordinator.group.topic_partitions import NO_PARTITIONS
from kbroker.protocol.apis.groups.k12_heartbeat import HeartbeatRequest
from kbroker.protocol.apis.groups.k68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tests.unit.coordinator.coordinator_fakes import Bench
from tests.unit.coordinator.group.consumer.consumer_fakes import ConsumerBench


def renew(bench: Bench, member_id: str, generation: int, instance: str | None = None, group: str = "g") -> bool:
    return bench.coordinator.renew_session(
        HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance)
    )


def test_a_renewed_session_keeps_a_member_alive() -> None:
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
    ("generation", "member", "group"), [(1, None, "g"), (-1, None, "g"), (0, "other", "g"), (0, None, "unknown")]
)
def test_a_wrong_generation_member_or_group_is_left_to_the_loop(
    generation: int, member: str | None, group: str
) -> None:
    bench = Bench().start()
    current, (known,) = bench.stable()
    assert renew(bench, known, current)
    assert not renew(bench, member or known, current + generation, group=group)


def test_a_rebalance_is_left_to_the_loop() -> None:
    bench = Bench().start()
    generation, ids = bench.stable(2)
    bench.join(ids[0], protocols=[("range", b"changed")])
    assert not renew(bench, ids[1], generation)
    assert bench.heartbeat(ids[1], generation) == 27


def test_a_fenced_instance_is_left_to_the_loop() -> None:
    bench = Bench().start()
    generation, (old,) = bench.stable(instances=["i"])
    assert renew(bench, old, generation, "i")
    new = bench.join(instance="i").result(0).member_id
    assert not renew(bench, old, generation, "i")
    assert renew(bench, new, generation, "i")
    assert not renew(bench, new, generation, "other")


def test_a_loading_shard_renews_no_session() -> None:
    before = Bench().start()
    generation, (member,) = before.stable()
    after = Bench([log.restarted() for log in before.logs])
    after.executor.hold = True
    after.start()
    assert not renew(after, member, generation)
    after.executor.run()
    after.run()
    assert renew(after, member, generation)


# -- the consumer protocol ---------------------------------------------------------------------------------------


def renew_consumer(bench: ConsumerBench, member_id: str, epoch: int, group: str = "g", **fields: Any) -> Any:
    request = ConsumerGroupHeartbeatRequest(group_id=group, member_id=member_id, member_epoch=epoch, **fields)
    return bench.coordinator.renew_consumer_session(request, "c", "/127.0.0.1")


def joined(**config: Any) -> tuple[ConsumerBench, int]:
    bench = ConsumerBench(consumer_session_timeout_ms=10_000, **config).start()
    bench.topic("t", 2)
    return bench, bench.enter("m", "t").member_epoch


def test_a_renewed_session_keeps_a_consumer_alive() -> None:
    bench, epoch = joined()
    for _ in range(5):
        bench.advance(9)
        assert renew_consumer(bench, "m", epoch) == bench.beat("m", epoch)
        bench.advance(0.5)
        assert renew_consumer(bench, "m", epoch).member_epoch == epoch
    bench.advance(9.9)
    assert list(bench.the_group().members) == ["m"]
    bench.advance(0.2)
    assert bench.the_group() is None or not bench.the_group().members
    assert renew_consumer(bench, "m", epoch) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"topic_partitions": []},
        {"subscribed_topic_names": ["t"]},
        {"subscribed_topic_regex": "t.*"},
        {"server_assignor": "range"},
        {"rack_id": "r"},
        {"rebalance_timeout_ms": 5},
        {"instance_id": "i"},
    ],
)
def test_a_consumer_that_sends_changes_is_left_to_the_loop(fields: dict[str, Any]) -> None:
    bench, epoch = joined()
    assert renew_consumer(bench, "m", epoch) is not None
    assert renew_consumer(bench, "m", epoch, **fields) is None


@pytest.mark.parametrize(
    ("member", "change", "group"), [("m", 1, "g"), ("m", -1, "g"), ("other", 0, "g"), ("m", 0, "unknown")]
)
def test_a_wrong_epoch_consumer_or_group_is_left_to_the_loop(member: str, change: int, group: str) -> None:
    bench, epoch = joined()
    assert renew_consumer(bench, member, epoch + change, group=group) is None


def test_a_consumer_in_a_rebalance_is_left_to_the_loop() -> None:
    bench, epoch = joined()
    bench.enter("n", "t")
    assert renew_consumer(bench, "m", epoch) is None


def test_a_shorter_session_time_out_is_set_by_the_loop() -> None:
    bench, epoch = joined(consumer_session_timeout_min_ms=1_000, consumer_session_timeout_max_ms=60_000)
    bench.group_configs["g"] = {"consumer.session.timeout.ms": "2000"}
    assert renew_consumer(bench, "m", epoch) is None
    assert bench.beat("m", epoch, owned=NO_PARTITIONS).error_code == 0
    assert renew_consumer(bench, "m", epoch) is not None
