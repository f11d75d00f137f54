"""The `simple` assignor of share groups (KIP-932): every partition has a reader, and every member something to read.

While there are enough partitions each has one reader and loads are balanced, as with `uniform`. Members that get none
share partitions: those with fewest readers, or their current one if that is as good. With equal subscriptions nothing
moves unless balance requires it; with different ones the shared partitions of members may change.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping

from kbroker.coordinator.group.assignor import MemberSpec
from kbroker.coordinator.group.topic_partitions import Partitions
from kbroker.coordinator.group.uniform_assignor import assign_uniform

ASSIGNOR_NAME = "simple"

TopicPartition = tuple[bytes, int]


def assign_simple(members: Mapping[str, MemberSpec], topics: Mapping[bytes, int]) -> dict[str, Partitions]:
    """The target of each member. A target that did not change is the same object as before."""
    target = assign_uniform(members, topics)
    idle: dict[frozenset[bytes], list[str]] = {}  # members without a partition, by what they subscribe to
    for member_id, partitions in target.items():
        spec = members[member_id]
        if not partitions and any(topics.get(topic_id) for topic_id in spec.topic_ids):
            idle.setdefault(spec.topic_ids, []).append(member_id)
    if idle:
        readers = Counter(
            (topic_id, partition)
            for partitions in target.values()
            for topic_id, indexes in partitions.items()
            for partition in indexes
        )
        for topic_ids, member_ids in idle.items():
            options = [
                (topic_id, partition) for topic_id in sorted(topic_ids) for partition in range(topics.get(topic_id, 0))
            ]
            _share(members, member_ids, options, readers, target)
    return target


def _share(
    members: Mapping[str, MemberSpec],
    member_ids: list[str],
    options: list[TopicPartition],
    readers: Counter[TopicPartition],
    target: dict[str, Partitions],
) -> None:
    """Gives each of these members one of `options`, so that their numbers of readers differ as little as possible."""
    share, extra = divmod(sum(readers[option] for option in options) + len(member_ids), len(options))
    allowed, known = set(options), Counter[TopicPartition]()
    rest = []
    for member_id in member_ids:
        before = _only(members[member_id].target)
        # `extra` partitions may have one reader more than the others: the first that a member keeps.
        keeps = before is not None and before in allowed and readers[before] <= share
        if keeps and before is not None and readers[before] == share:
            keeps = len(known) < extra
            if keeps:
                known[before] += 1
        if keeps and before is not None:
            readers[before] += 1
            target[member_id] = members[member_id].target
        else:
            rest.append(member_id)
    queue = [(readers[option], option) for option in options]
    heapq.heapify(queue)
    for member_id in rest:
        count, option = heapq.heappop(queue)
        heapq.heappush(queue, (count + 1, option))
        readers[option] += 1
        target[member_id] = {option[0]: frozenset({option[1]})}


def _only(partitions: Partitions) -> TopicPartition | None:
    """The partition, if there is exactly one."""
    if len(partitions) != 1:
        return None
    ((topic_id, indexes),) = partitions.items()
    return (topic_id, next(iter(indexes))) if len(indexes) == 1 else None
