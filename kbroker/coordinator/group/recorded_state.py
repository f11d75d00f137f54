"""State of which every part is a record: consumer groups and share groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from kbroker.coordinator.group.memory import GroupMemory
from kbroker.coordinator.group.records import Record
from kbroker.coordinator.group.topic_partitions import Partitions

R = TypeVar("R", bound=Record)
M = TypeVar("M")  # its member


class RecordedState(ABC, Generic[R, M]):
    """Only `apply` changes it, with a record: at append for live traffic, in offset order for a load.

    A record is a tuple of the group id, a name if its type is in NAMED (a member id or an expression), and a value;
    None removes.
    """

    GROUP_RECORD: ClassVar[type[Any]]  # the group itself with its epoch
    MEMBER_RECORD: ClassVar[type[Any]]
    CURRENT_RECORD: ClassVar[type[Any]]  # a member's current assignment
    TARGET_RECORD: ClassVar[type[Any]]  # a member's target assignment
    TARGET_EPOCH_RECORD: ClassVar[type[Any]]
    NAMED: ClassVar[frozenset[type]]
    APPLY: ClassVar[Mapping[type, Callable[[Any, Any], None]]]
    LIVE: ClassVar[Mapping[type, Callable[[Any, str], Any]]]  # the value that a record would have now

    group_id: str
    memory: GroupMemory
    members: dict[str, M]
    subscriptions: Counter[Any]
    target: dict[str, Partitions]
    assignment_epoch: int | None

    @property
    @abstractmethod
    def group_epoch(self) -> int:
        """The group epoch, 0 before the first."""

    @property
    def target_epoch(self) -> int:
        """The epoch of the target assignment, 0 before the first."""
        return self.assignment_epoch or 0

    def apply(self, record: R) -> None:
        """Applies one record of this group. The only place where its state changes."""
        kind = type(record)
        name = str(record[1]) if kind in self.NAMED else ""
        before = self.weight_in(self, kind, name)
        self.APPLY[kind](self, record)
        self.memory.add(self.weight_in(self, kind, name) - before)

    @staticmethod
    @abstractmethod
    def weight_in(state: Any, kind: type, name: str) -> int:
        """The bytes that records of a key take in `state`, a group or a GroupUpdate.

        Without subscriptions: these are counted where they are indexed.
        """

    def apply_target_epoch(self, record: Any) -> None:
        """Applies a TARGET_EPOCH_RECORD."""
        self.assignment_epoch = record.epoch

    def apply_target(self, record: Any) -> None:
        """Applies a TARGET_RECORD."""
        if record.partitions is None:
            self.target.pop(record.member_id, None)
        else:
            self.target[record.member_id] = record.partitions

    @abstractmethod
    def live_keys(self) -> Iterator[tuple[type, str]]:
        """(record type, name) of each live record."""

    def record(self, kind: type, name: str) -> R | None:
        """The record with the current state of a key; None if there is none."""
        value = self.LIVE[kind](self, name)
        return None if value is None else self._make(kind, name, value)

    def tombstones(self) -> list[R]:
        """Records that remove the group and all that it has except its offsets."""
        removed = [
            self._make(kind, name, None)
            for kind, name in reversed(list(self.live_keys()))
            if kind is not self.GROUP_RECORD
        ]
        return [*removed, self._make(self.GROUP_RECORD, "", None)]

    def _make(self, kind: type, name: str, value: Any) -> R:
        record: R = kind(self.group_id, name, value) if kind in self.NAMED else kind(self.group_id, value)
        return record


def live_metadata(group: RecordedState[Any, Any], member_id: str) -> Any:
    """The value of a member's MEMBER_RECORD."""
    member = group.members.get(member_id)
    return None if member is None else member.metadata


def live_current(group: RecordedState[Any, Any], member_id: str) -> Any:
    """The value of a member's CURRENT_RECORD."""
    member = group.members.get(member_id)
    return None if member is None else member.current
