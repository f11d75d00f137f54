"""What groups have done, as metrics show it: rebalances with their duration, and commits."""

from __future__ import annotations

from typing import Any

from kbroker.coordinator.group.requests import Leaver
from tests.unit.coordinator.coordinator_fakes import Bench
from tests.unit.coordinator.group.consumer.consumer_fakes import Client, ConsumerBench


def ended(bench: Any, kind: str) -> tuple[int, float]:
    """Rebalances that have ended, and their seconds together."""
    buckets = bench.coordinator.activity.rebalance_seconds[kind].buckets()
    return sum(buckets.counts), buckets.total


def test_a_classic_rebalance_lasts_from_the_first_join_to_the_assignments() -> None:
    bench = Bench(initial_rebalance_delay_ms=3_000).start()
    activity = bench.coordinator.activity
    began_ms = bench.clock.now_ms()
    _, ids = bench.stable(2)
    assert activity.rebalances == {"classic": 1}
    assert ended(bench, "classic") == (1, (bench.clock.now_ms() - began_ms) / 1000)
    bench.leave(Leaver(ids[0]))
    assert activity.rebalances == {"classic": 2}
    assert ended(bench, "classic")[0] == 1
    bench.leave(Leaver(ids[1]))  # nothing is assigned any more: it does not end
    assert activity.rebalances == {"classic": 2}
    assert ended(bench, "classic")[0] == 1


def test_a_consumer_groups_rebalance_ends_when_all_members_have_their_target() -> None:
    bench = ConsumerBench().start()
    bench.topic("t", 4)
    activity = bench.coordinator.activity
    first, second = Client(bench, "a", "t"), Client(bench, "b", "t")
    first.beat()
    assert (activity.rebalances, ended(bench, "consumer")[0]) == ({"consumer": 1}, 1)
    first.slow = True
    second.beat()
    bench.advance(2)
    first.beat()
    assert (activity.rebalances, ended(bench, "consumer")[0]) == ({"consumer": 2}, 1)
    first.slow = False
    first.reconcile()
    first.beat()
    second.beat()
    assert bench.describe_consumers().group_state == "Stable"
    assert ended(bench, "consumer") == (2, 2.0)


def test_a_member_that_leaves_is_not_waited_for() -> None:
    bench = ConsumerBench().start()
    bench.topic("t", 4)
    first, second = Client(bench, "a", "t"), Client(bench, "b", "t")
    first.beat()
    first.slow = True
    second.beat()
    bench.beat("a", -1)
    second.beat()
    assert bench.describe_consumers().group_state == "Stable"
    assert bench.coordinator.activity.rebalances["consumer"] == ended(bench, "consumer")[0] == 2


def test_a_load_counts_nothing() -> None:
    bench = ConsumerBench().start()
    bench.topic("t", 4)
    Client(bench, "a", "t").beat()
    again = bench.restarted()
    assert again.coordinator.activity.rebalances == {}
    assert again.coordinator.activity.committed_offsets == 0
