"""One decision on a consumer or share group: the records it takes, and the group as they will leave it.

Nothing of the group itself changes here; that happens when the records are replayed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

from kbroker.coordinator.group.memory import of_names
from kbroker.coordinator.group.recorded_state import RecordedState
from kbroker.coordinator.group.records import Record
from kbroker.coordinator.group.table import GroupTable
from kbroker.coordinator.group.topic_partitions import Partitions, TopicInfo

G = TypeVar("G", bound=RecordedState[Any, Any])
M = TypeVar("M")  # its member: a dataclass of member id, metadata and current assignment
K = TypeVar("K", bound=Hashable)  # what a member subscribes to


class GroupUpdate(ABC, Generic[G, M, K]):
    """Lives for one operation: first its members change, then topics, epochs and target are brought up to date."""

    MEMBER: ClassVar[type[Any]]

    def __init__(self, shard: GroupTable, group: G, records: list[Record] | None = None) -> None:
        self.records: list[Record] = [] if records is None else records
        self.group = group
        self.members: dict[str, M] = dict(group.members)
        self.epoch = group.group_epoch
        self.target_epoch = group.target_epoch
        self.target = group.target
        self._shard = shard
        self._subscriptions: Counter[K] = Counter(group.subscriptions)

    @staticmethod
    @abstractmethod
    def subscription_of(metadata: Any) -> K:
        """The subscription in a member's metadata."""

    @staticmethod
    @abstractmethod
    def names_in(subscription: K) -> frozenset[str]:
        """The names of topics in a subscription."""

    # -- members -------------------------------------------------------------------------------------------------

    def put_metadata(self, member_id: str, metadata: Any) -> bool:
        """Adds or changes a member; True if that changes the group's subscriptions."""
        before: Any = self.members.get(member_id)
        if before is not None and before.metadata == metadata:
            return False
        self.records.append(self.group.MEMBER_RECORD(self.group.group_id, member_id, metadata))
        if before is None:
            self.members[member_id] = self.MEMBER(member_id, metadata)
        else:
            self.members[member_id] = replace(before, metadata=metadata)
            self._unsubscribe(before)
        self._subscriptions[self.subscription_of(metadata)] += 1
        return before is None or self.subscription_of(before.metadata) != self.subscription_of(metadata)

    def put_current(self, member_id: str, current: Any) -> None:
        """Sets a member's current assignment."""
        member: Any = self.members[member_id]
        self.members[member_id] = replace(member, current=current)
        self.records.append(self.group.CURRENT_RECORD(self.group.group_id, member_id, current))

    def remove(self, member_id: str) -> None:
        """Removes a member with its assignments."""
        self._unsubscribe(self.members.pop(member_id))
        self.target = dict(self.target)
        self.target.pop(member_id, None)
        group = self.group
        for kind in (group.CURRENT_RECORD, group.TARGET_RECORD, group.MEMBER_RECORD):
            self.records.append(kind(group.group_id, member_id, None))

    def _unsubscribe(self, member: Any) -> None:
        subscription = self.subscription_of(member.metadata)
        self._subscriptions[subscription] -= 1
        if not self._subscriptions[subscription]:
            del self._subscriptions[subscription]

    # -- topics and target ---------------------------------------------------------------------------------------

    def _existing(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Those of the topics that exist."""
        catalog, found = self._shard.environment.topics, {}
        for name in names:
            info = catalog.info(name)
            if info is not None:
                found[name] = info
        return found

    def _put_target(self, target: dict[str, Partitions]) -> None:
        """Sets the target assignment of the current epoch."""
        group = self.group
        for member_id, partitions in target.items():
            before = self.target.get(member_id)
            if before is None or (before is not partitions and before != partitions):
                self.records.append(group.TARGET_RECORD(group.group_id, member_id, partitions))
        self.target = target
        self.target_epoch = self.epoch
        self.records.append(group.TARGET_EPOCH_RECORD(group.group_id, self.epoch))

    # -- memory --------------------------------------------------------------------------------------------------

    def check_room(self, member_id: str) -> None:
        """Raises GROUP_MAX_SIZE_REACHED if there is no memory for the metadata that the member has sent.

        A member that sends nothing new is never refused, whatever the assignment adds.
        """
        known = self.group.members.get(member_id)
        member: Any = self.members[member_id]
        if known is None or known.metadata != member.metadata:
            self._shard.check_room(self.growth(), newcomer=known is None)

    def growth(self) -> int:
        """By how many bytes the group will grow."""
        group, changed = self.group, set()
        for record in self.records:
            kind = type(record)
            name = str(record[1]) if kind in group.NAMED else ""
            changed.add((group.MEMBER_RECORD if kind is group.CURRENT_RECORD else kind, name))
        growth = 0 if group.group_id in self._shard.groups else group.memory.bytes
        growth += sum(group.weight_in(self, *key) - group.weight_in(group, *key) for key in changed)
        for subscription in self._subscriptions.keys() - group.subscriptions.keys():
            growth += of_names(self.names_in(subscription))
        for subscription in group.subscriptions.keys() - self._subscriptions.keys():
            growth -= of_names(self.names_in(subscription))
        return growth
