"""The `simple` assignor: every partition has a reader, every member a partition; balanced, with minimal moves."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.coordinator.group.assignor import MemberSpec
from kbroker.coordinator.group.share.simple_assignor import assign_simple
from kbroker.coordinator.group.topic_partitions import NO_PARTITIONS, Partitions

TOPICS = [bytes([number]) * 16 for number in range(4)]
Members = dict[str, MemberSpec]


@st.composite
def groups(draw: st.DrawFn, alike: bool = False) -> tuple[Members, dict[bytes, int]]:
    counts = {topic_id: draw(st.integers(0, 5)) for topic_id in TOPICS[: draw(st.integers(1, 4))]}
    subscriptions = st.frozensets(st.sampled_from(TOPICS), max_size=4)
    common = draw(subscriptions)
    targets = st.dictionaries(
        st.sampled_from(TOPICS), st.frozensets(st.integers(0, 6), min_size=1, max_size=3), max_size=2
    )
    members = {
        f"m{number}": MemberSpec(None, common if alike else draw(subscriptions), draw(targets))
        for number in range(draw(st.integers(1, 12)))
    }
    return members, counts


def flat(partitions: Partitions) -> set[tuple[bytes, int]]:
    return {(topic_id, index) for topic_id, indexes in partitions.items() for index in indexes}


def readers(target: dict[str, Partitions]) -> Counter[tuple[bytes, int]]:
    return Counter(partition for partitions in target.values() for partition in flat(partitions))


@given(group=groups())
def test_every_partition_has_a_reader_and_every_member_a_partition(group: tuple[Members, dict[bytes, int]]) -> None:
    members, counts = group
    target = assign_simple(members, counts)
    assert set(target) == set(members)
    wanted = {
        (topic_id, index)
        for member in members.values()
        for topic_id in member.topic_ids
        for index in range(counts.get(topic_id, 0))
    }
    assert set(readers(target)) == wanted
    for member_id, partitions in target.items():
        asked = members[member_id].topic_ids
        assert {topic_id for topic_id, _ in flat(partitions)} <= asked
        assert flat(partitions) or not any(counts.get(topic_id) for topic_id in asked)


@given(group=groups(alike=True))
def test_equal_subscriptions_are_balanced(group: tuple[Members, dict[bytes, int]]) -> None:
    members, counts = group
    target = assign_simple(members, counts)
    loads = [len(flat(partitions)) for partitions in target.values()]
    assert max(loads) - min(loads) <= 1
    shared = readers(target)
    if shared:
        assert max(shared.values()) - min(shared.values()) <= 1


@given(group=groups(alike=True))
@settings(max_examples=300)
def test_a_second_computation_for_equal_subscriptions_changes_nothing(group: tuple[Members, dict[bytes, int]]) -> None:
    members, counts = group
    target = assign_simple(members, counts)
    again = assign_simple({m: spec._replace(target=target[m]) for m, spec in members.items()}, counts)
    assert again == target
    assert all(again[member_id] is target[member_id] for member_id in members)


def test_members_keep_a_shared_partition() -> None:
    t = TOPICS[0]
    members = {f"m{number}": MemberSpec(None, frozenset({t}), NO_PARTITIONS) for number in range(7)}
    before = assign_simple(members, {t: 3})
    members = {m: spec._replace(target=before[m]) for m, spec in members.items() if m != "m0"}
    after = assign_simple(members, {t: 3})
    assert sorted(readers(after).values()) == [2, 2, 2]
    assert sum(after[m] != before[m] for m in members) <= 1
