"""What consumer groups and share groups have in common in the group table."""

from __future__ import annotations

from abc import abstractmethod
from enum import Enum

from kbroker.coordinator.group.offsets.committed import GroupOffsets
from kbroker.coordinator.group.recorded_state import M, R, RecordedState
from kbroker.coordinator.group.table import Group, GroupTable


class RecordedGroup(RecordedState[R, M], Group):
    """A group of which every part is a record. Its member timers are the table's."""

    @abstractmethod
    def __init__(self, group_id: str, offsets: GroupOffsets | None = None) -> None: ...

    @property
    @abstractmethod
    def state(self) -> Enum:
        """The state, derived from epochs and members."""

    @property
    def state_name(self) -> str:
        """The state, as ListGroups names it."""
        return str(self.state.value)

    @property
    def is_empty(self) -> bool:
        """True if it has no members."""
        return not self.members

    @abstractmethod
    def replay(self, shard: GroupTable, record: R) -> None:
        """Applies one record, and what follows from it for live members."""

    def retire(self, shard: GroupTable) -> None:
        """Cancels the members' timers."""
        for member_id in self.members:
            shard.timers.cancel_member(self.group_id, member_id)
