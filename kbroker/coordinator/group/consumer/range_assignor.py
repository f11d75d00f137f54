"""The `range` assignor: each topic cut into contiguous ranges, in the order of the members.

Members of one subscription get the same range of all topics with the same number of partitions, so matching
partitions of joined topics are at one member. Static members come first, by instance id, so they keep their ranges over
restarts.
"""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.coordinator.group.assignor import MemberSpec
from kbroker.coordinator.group.topic_partitions import NO_PARTITIONS, Partitions


def assign_range(members: Mapping[str, MemberSpec], topics: Mapping[bytes, int]) -> dict[str, Partitions]:
    """The target by ranges; the current target does not matter."""
    ordered = sorted(members, key=lambda member_id: _place(member_id, members[member_id]))
    by_subscription: dict[frozenset[bytes], list[str]] = {}
    for member_id in ordered:
        by_subscription.setdefault(members[member_id].topic_ids, []).append(member_id)
    assigned: dict[str, dict[bytes, frozenset[int]]] = {}
    subscribers: dict[tuple[frozenset[bytes], ...], list[str]] = {}
    for topic_id, partition_count in topics.items():
        subscriptions = tuple(topic_ids for topic_ids in by_subscription if topic_id in topic_ids)
        if not subscriptions:
            continue
        if subscriptions not in subscribers:
            subscribers[subscriptions] = (
                by_subscription[subscriptions[0]]
                if len(subscriptions) == 1
                else [member_id for member_id in ordered if members[member_id].topic_ids in subscriptions]
            )
        _cut(topic_id, partition_count, subscribers[subscriptions], assigned)
    return {
        member_id: _same_or_new(spec.target, assigned.get(member_id, NO_PARTITIONS))
        for member_id, spec in members.items()
    }


def _place(member_id: str, spec: MemberSpec) -> tuple[bool, str]:
    return (False, spec.instance_id) if spec.instance_id is not None else (True, member_id)


def _cut(
    topic_id: bytes, partition_count: int, subscribers: list[str], assigned: dict[str, dict[bytes, frozenset[int]]]
) -> None:
    share, extra = divmod(partition_count, len(subscribers))
    start = 0
    for position, member_id in enumerate(subscribers):
        end = start + share + (position < extra)
        if end == start:
            break
        assigned.setdefault(member_id, {})[topic_id] = frozenset(range(start, end))
        start = end


def _same_or_new(before: Partitions, now: Partitions) -> Partitions:
    return before if before == now else now
