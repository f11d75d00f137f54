"""Targets of consumer groups are computed once per interval (KIP-1263)."""

from __future__ import annotations

from typing import Any

from tests.unit.coordinator.group.consumer.consumer_fakes import ConsumerBench


def bench_with(interval_ms: int) -> ConsumerBench:
    bench = ConsumerBench().start()
    bench.coordinator.dynamic.consumer_assignment_interval_ms = interval_ms
    bench.topic("t", 4)
    return bench


def partitions(answer: Any) -> int:
    return sum(len(topic.partitions) for topic in answer.assignment.topic_partitions)


def state(bench: ConsumerBench) -> str:
    return str(bench.the_group().state.value)


def test_the_first_target_is_computed_at_once_and_the_second_after_the_interval() -> None:
    bench = bench_with(1_000)
    first = bench.enter("a", "t")
    assert (first.member_epoch, partitions(first)) == (1, 4)
    second = bench.enter("b", "t")
    assert (second.error_code, second.member_epoch, partitions(second)) == (0, 1, 0)
    assert state(bench) == "Assigning"
    bench.advance(0.9)
    assert bench.beat("a", 1).assignment is None
    assert bench.the_group().target_epoch == 1
    bench.advance(0.2)
    assert partitions(bench.beat("a", 1)) == 2
    assert bench.the_group().target_epoch == 2


def test_members_that_join_together_take_one_target() -> None:
    bench = bench_with(1_000)
    bench.enter("m0", "t")
    for number in range(1, 4):
        bench.enter(f"m{number}", "t")
    assert (bench.the_group().group_epoch, bench.the_group().target_epoch) == (4, 1)
    bench.advance(1)
    bench.beat("m3", 1)
    assert (bench.the_group().group_epoch, bench.the_group().target_epoch) == (4, 4)


def test_without_an_interval_every_change_computes_a_target() -> None:
    bench = bench_with(0)
    bench.enter("a", "t")
    assert bench.enter("b", "t").member_epoch == 2


def test_a_change_of_the_broker_config_takes_effect_at_once() -> None:
    bench = bench_with(15_000)
    bench.enter("a", "t")
    assert bench.enter("b", "t").member_epoch == 1
    bench.coordinator.dynamic.consumer_assignment_interval_ms = 0
    assert bench.beat("b", 1).member_epoch == 2


def test_a_group_has_its_own_interval_within_the_bounds() -> None:
    bench = bench_with(1_000)
    bench.group_configs["g"] = {"consumer.assignment.interval.ms": "60000"}
    bench.enter("a", "t")
    bench.enter("b", "t")
    bench.advance(14.9)
    assert bench.beat("b", 1).member_epoch == 1
    bench.advance(0.1)
    assert bench.beat("b", 1).member_epoch == 2


def test_after_a_restart_a_target_is_computed_at_once() -> None:
    before = bench_with(15_000)
    before.enter("a", "t")
    before.enter("b", "t")
    after = before.restarted()
    after.coordinator.dynamic.consumer_assignment_interval_ms = 15_000
    assert after.beat("b", 1).member_epoch == 2
