"""The `uniform` assignor: loads as equal as the subscriptions allow, with as few moved partitions as possible.

Balance comes first: no member has a partition while another subscriber of its topic has two partitions fewer. So if
all members subscribe to the same topics, loads differ by at most one, and the number of partitions that move is
minimal.

Members with the same subscription differ only in load, so each subscription has one heap of them by load.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from kbroker.coordinator.group.assignor import MemberSpec
from kbroker.coordinator.group.topic_partitions import Partitions

TopicPartition = tuple[bytes, int]


def assign_uniform(members: Mapping[str, MemberSpec], topics: Mapping[bytes, int]) -> dict[str, Partitions]:
    """The balanced target nearest to the one that members have."""
    plan = _Plan(members, topics)
    plan.place(plan.keep())
    plan.balance()
    return plan.targets()


class _Plan:
    """A target under construction."""

    def __init__(self, members: Mapping[str, MemberSpec], topics: Mapping[bytes, int]) -> None:
        self._members = members
        self._topics = topics
        self._owned: dict[str, list[TopicPartition]] = {}
        self._changed: set[str] = set()
        self._queues: dict[frozenset[bytes], _LoadQueue] = {}
        self._queues_of: dict[bytes, list[_LoadQueue]] = {}

    def keep(self) -> list[TopicPartition]:
        """Leaves members what they may keep; returns the other partitions, topics with fewest subscribers first."""
        taken: dict[bytes, set[int]] = {topic_id: set() for topic_id in self._topics}
        for member_id, spec in self._members.items():
            owned = self._owned[member_id] = []
            for topic_id, partitions in spec.target.items():
                count = self._topics.get(topic_id, 0)
                if topic_id not in spec.topic_ids or not count:
                    self._changed.add(member_id)
                    continue
                seen = taken[topic_id]
                for partition in partitions:
                    if partition < count and partition not in seen:
                        seen.add(partition)
                        owned.append((topic_id, partition))
                    else:
                        self._changed.add(member_id)
        self._build_queues()
        free = [
            (topic_id, partition)
            for topic_id, count in self._topics.items()
            if len(taken[topic_id]) < count and topic_id in self._queues_of
            for partition in range(count)
            if partition not in taken[topic_id]
        ]
        if len(self._queues) > 1:
            free.sort(key=lambda partition: sum(len(queue) for queue in self._queues_of[partition[0]]))
        return free

    def _build_queues(self) -> None:
        for member_id, spec in self._members.items():
            queue = self._queues.get(spec.topic_ids)
            if queue is None:
                queue = self._queues[spec.topic_ids] = _LoadQueue()
                for topic_id in spec.topic_ids:
                    self._queues_of.setdefault(topic_id, []).append(queue)
            queue.add(member_id, len(self._owned[member_id]))
        for queue in self._queues.values():
            queue.order()

    def place(self, free: Iterable[TopicPartition]) -> None:
        """Gives each partition to the least loaded subscriber."""
        for partition in free:
            queue = self._least_loaded(partition[0])
            member_id = queue.least()[1]
            queue.change(member_id, 1)
            self._owned[member_id].append(partition)
            self._changed.add(member_id)

    def balance(self) -> None:
        """Moves partitions from members with two more than another subscriber, until there is no such member.

        Always from the member with most: it never gets a partition back.
        """
        while self._pass():
            pass

    def _pass(self) -> bool:
        """Moves partitions off loaded members while possible; False if none could move: the target is balanced."""
        heaviest = [(-len(owned), member_id) for member_id, owned in self._owned.items()]
        heapq.heapify(heaviest)
        moved = False
        while heaviest:
            load, member_id = heapq.heappop(heaviest)
            if len(self._owned[member_id]) != -load:
                continue  # its load has changed; the heap has a newer entry
            if -load < 2:
                break
            receiver = self._move_one(member_id)
            if receiver is not None:
                moved = True
                for changed in (member_id, receiver):
                    heapq.heappush(heaviest, (-len(self._owned[changed]), changed))
        return moved

    def _move_one(self, member_id: str) -> str | None:
        """Moves one of a member's partitions to a subscriber with two fewer, and returns that one."""
        owned = self._owned[member_id]
        fixed: set[bytes] = set()  # topics of which no subscriber has two fewer
        for position in range(len(owned) - 1, -1, -1):
            topic_id = owned[position][0]
            if topic_id in fixed:
                continue
            queue = self._least_loaded(topic_id)
            least, receiver = queue.least()
            if len(owned) < least + 2:
                fixed.add(topic_id)
                continue
            self._owned[receiver].append(owned.pop(position))
            self._queues[self._members[member_id].topic_ids].change(member_id, -1)
            queue.change(receiver, 1)
            self._changed.update((member_id, receiver))
            return receiver
        return None

    def _least_loaded(self, topic_id: bytes) -> _LoadQueue:
        queues = self._queues_of[topic_id]
        return queues[0] if len(queues) == 1 else min(queues, key=lambda queue: queue.least()[0])

    def targets(self) -> dict[str, Partitions]:
        """The target of each member."""
        return {
            member_id: _grouped(self._owned[member_id]) if member_id in self._changed else spec.target
            for member_id, spec in self._members.items()
        }


class _LoadQueue:
    """Members by load, least first. Outdated entries are dropped when they reach the top."""

    def __init__(self) -> None:
        self._loads: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._loads)

    def add(self, member_id: str, load: int) -> None:
        """Adds a member; call `order` after the last one."""
        self._loads[member_id] = load
        self._heap.append((load, member_id))

    def order(self) -> None:
        """Builds the heap."""
        heapq.heapify(self._heap)

    def least(self) -> tuple[int, str]:
        """The least load, and its member."""
        heap, loads = self._heap, self._loads
        while loads[heap[0][1]] != heap[0][0]:
            heapq.heappop(heap)
        return heap[0]

    def change(self, member_id: str, by: int) -> None:
        """Changes a member's load."""
        load = self._loads[member_id] = self._loads[member_id] + by
        heapq.heappush(self._heap, (load, member_id))


def _grouped(partitions: list[TopicPartition]) -> Partitions:
    by_topic: dict[bytes, set[int]] = {}
    for topic_id, partition in partitions:
        by_topic.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(indexes) for topic_id, indexes in by_topic.items()}
