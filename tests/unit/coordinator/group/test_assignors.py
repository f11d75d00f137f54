"""Server-side assignors: their guarantees, for groups of any shape."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.coordinator.group.assignor import MemberSpec
from kbroker.coordinator.group.consumer.assignors import ASSIGNORS, DEFAULT_ASSIGNOR, check_assignor
from kbroker.coordinator.group.topic_partitions import NO_PARTITIONS, Partitions
from kbroker.errors import ErrorCode, KafkaError

T, U, V = (bytes([number]) * 16 for number in (1, 2, 3))
Members = dict[str, MemberSpec]

topic_counts = st.dictionaries(st.sampled_from([T, U, V]), st.integers(0, 9), min_size=1)
names = st.text("abcdef", min_size=1, max_size=3)


def spec(*topics: bytes, instance: str | None = None, target: Partitions = NO_PARTITIONS) -> MemberSpec:
    return MemberSpec(instance, frozenset(topics), target)


def flat(partitions: Partitions) -> set[tuple[bytes, int]]:
    return {(topic_id, partition) for topic_id, indexes in partitions.items() for partition in indexes}


@st.composite
def groups(draw: st.DrawFn, *, alike: bool = False) -> tuple[Members, dict[bytes, int]]:
    """Members with an old target, from other topics and subscriptions."""
    counts = draw(topic_counts)
    ids = draw(st.lists(names, min_size=1, max_size=8, unique=True))
    all_topics = frozenset(counts)
    pieces = [(topic_id, partition) for topic_id in (T, U, V) for partition in range(10)]
    dealt = random.Random(draw(st.integers(0, 99))).choices([*ids, None], k=len(pieces))
    before: dict[str, dict[bytes, frozenset[int]]] = {member: {} for member in ids}
    for (topic_id, partition), owner in zip(pieces, dealt, strict=True):
        if owner is not None:
            before[owner][topic_id] = before[owner].get(topic_id, frozenset()) | {partition}
    members = {}
    for member in ids:
        topics = all_topics if alike else frozenset(draw(st.sets(st.sampled_from(sorted(all_topics)))))
        instance = draw(st.none() | st.just(f"i-{member}"))
        members[member] = MemberSpec(instance, topics, before[member])
    return members, counts


def check_complete(members: Members, counts: Mapping[bytes, int], target: Mapping[str, Partitions]) -> None:
    """Each partition of a subscribed topic has one owner, which subscribes to it."""
    assert set(target) == set(members)
    owned = [piece for partitions in target.values() for piece in flat(partitions)]
    read = {topic_id for member in members.values() for topic_id in member.topic_ids}
    assert sorted(owned) == sorted((t, p) for t, count in counts.items() if t in read for p in range(count))
    for member_id, partitions in target.items():
        assert set(partitions) <= members[member_id].topic_ids
        assert all(partitions.values())


@pytest.mark.parametrize("name", list(ASSIGNORS))
@given(group=groups())
def test_everything_has_one_owner(name: str, group: tuple[Members, dict[bytes, int]]) -> None:
    members, counts = group
    target = ASSIGNORS[name](members, counts)
    check_complete(members, counts, target)
    assert target == ASSIGNORS[name](members, counts)


@pytest.mark.parametrize("name", list(ASSIGNORS))
@given(group=groups())
def test_a_second_computation_changes_nothing(name: str, group: tuple[Members, dict[bytes, int]]) -> None:
    members, counts = group
    target = ASSIGNORS[name](members, counts)
    again = ASSIGNORS[name]({m: member._replace(target=target[m]) for m, member in members.items()}, counts)
    assert again == target
    assert all(again[member] is target[member] for member in members)


# -- uniform -----------------------------------------------------------------------------------------------------


@given(group=groups())
def test_uniform_is_balanced(group: tuple[Members, dict[bytes, int]]) -> None:
    members, counts = group
    target = ASSIGNORS["uniform"](members, counts)
    loads = {member: len(flat(partitions)) for member, partitions in target.items()}
    for member, partitions in target.items():
        for topic_id, _ in flat(partitions):
            for other, asked in members.items():
                assert topic_id not in asked.topic_ids or loads[member] <= loads[other] + 1


@given(group=groups(alike=True))
@settings(max_examples=200)
def test_uniform_moves_as_little_as_balance_allows(group: tuple[Members, dict[bytes, int]]) -> None:
    members, counts = group
    target = ASSIGNORS["uniform"](members, counts)
    total = sum(counts.values())
    assert max(len(flat(p)) for p in target.values()) - min(len(flat(p)) for p in target.values()) <= 1
    share, extra = divmod(total, len(members))
    valid = [
        sum(partition < counts.get(topic_id, 0) for topic_id, partition in flat(member.target))
        for member in members.values()
    ]
    # No member keeps more than `share`, except `extra` of those that have more: they keep one more.
    most = sum(min(count, share) for count in valid) + min(extra, sum(count > share for count in valid))
    kept = sum(len(flat(target[member]) & flat(members[member].target)) for member in members)
    assert kept == most


def test_uniform_gives_a_new_member_its_share_only() -> None:
    before = {T: frozenset(range(4))}, {T: frozenset(range(4, 8))}
    members = {"a": spec(T, target=before[0]), "b": spec(T, target=before[1]), "c": spec(T)}
    target = ASSIGNORS["uniform"](members, {T: 8})
    assert sorted(len(flat(p)) for p in target.values()) == [2, 3, 3]
    assert target["a"][T] < before[0][T]
    assert target["b"][T] < before[1][T]
    assert len(target["c"][T]) == 2


# -- range -------------------------------------------------------------------------------------------------------


def test_range_cuts_topics_alike() -> None:
    target = ASSIGNORS["range"]({"b": spec(T, U), "a": spec(T, U)}, {T: 3, U: 3})
    assert target == {
        "a": {T: frozenset({0, 1}), U: frozenset({0, 1})},
        "b": {T: frozenset({2}), U: frozenset({2})},
    }


def test_range_puts_static_members_first() -> None:
    members = {"a": spec(T), "x": spec(T, instance="2"), "y": spec(T, instance="1")}
    target = ASSIGNORS["range"](members, {T: 3})
    assert [target[member][T] for member in ("y", "x", "a")] == [{0}, {1}, {2}]


def test_range_with_more_members_than_partitions_and_different_subscriptions() -> None:
    members = {"a": spec(T), "b": spec(T, U), "c": spec(U), "d": spec(V)}
    target = ASSIGNORS["range"](members, {T: 1, U: 3})
    assert target == {"a": {T: {0}}, "b": {U: {0, 1}}, "c": {U: {2}}, "d": {}}


@given(group=groups(alike=True))
def test_range_gives_contiguous_ranges_in_order(group: tuple[Members, dict[bytes, int]]) -> None:
    members, counts = group
    target = ASSIGNORS["range"](members, counts)
    ordered = sorted(members, key=lambda m: (members[m].instance_id is None, members[m].instance_id or m))
    for topic_id, count in counts.items():
        ranges = [sorted(target[member].get(topic_id, ())) for member in ordered]
        assert [partition for each in ranges for partition in each] == list(range(count))
        sizes = [len(each) for each in ranges]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] - sizes[-1] <= 1


def test_assignors_by_name() -> None:
    assert DEFAULT_ASSIGNOR == "uniform"
    check_assignor("range")
    with pytest.raises(KafkaError) as refused:
        check_assignor("sticky")
    assert refused.value.code == ErrorCode.UNSUPPORTED_ASSIGNOR
