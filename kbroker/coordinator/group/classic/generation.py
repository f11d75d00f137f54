"""The state and the generation of a classic group.

`stored` and the offsets are durable: only `replay` sets them, in log order. The rest (parked requests, members that
have joined this round) lives for one rebalance and is never logged. After a load it is rebuilt from `stored`: members
then keep their ids and their generation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kbroker.coordinator.group.classic.member import ClassicGroupMember
from kbroker.coordinator.group.classic.members import ClassicMembers
from kbroker.coordinator.group.classic.state import (
    TRANSITIONS,
    ClassicGroupState,
    GroupRecord,
    StoredGroup,
    StoredMember,
)
from kbroker.coordinator.group.memory import of_stored
from kbroker.coordinator.group.offsets.committed import GroupOffsets
from kbroker.coordinator.runtime.event_loop import Timer


class ClassicGeneration(ClassicMembers):
    """Bookkeeping: it sets no timers and writes no records."""

    def __init__(self, group_id: str, now_ms: int, offsets: GroupOffsets | None = None) -> None:
        super().__init__(group_id)
        self.offsets = GroupOffsets() if offsets is None else offsets
        self.stored: StoredGroup | None = None
        self.state = ClassicGroupState.EMPTY
        self.previous_state = ClassicGroupState.EMPTY
        self.state_timestamp_ms = now_ms
        self.generation = 0
        self.rebalance_began_ms: int | None = None  # of a rebalance that has not ended
        self.member_added = False  # during the initial delay: extends it
        self.join_timer: Timer | None = None
        self.sync_timer: Timer | None = None

    @property
    def is_empty(self) -> bool:
        """True if it has no members and expects none."""
        return self.state is ClassicGroupState.EMPTY and not self.pending_members

    @property
    def can_rebalance(self) -> bool:
        """True in states in which a change of members starts a rebalance; else it joins the current one."""
        return ClassicGroupState.PREPARING_REBALANCE in TRANSITIONS[self.state]

    @property
    def lacks_rebalance(self) -> bool:
        """True for a group that was a consumer group just before: its members have to rejoin."""
        return self.stored is not None and bool(self.stored.members) and self.stored.leader is None

    def transition_to(self, state: ClassicGroupState, now_ms: int) -> None:
        """Enters a state that may follow the current one."""
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.previous_state, self.state = self.state, state
        self.state_timestamp_ms = now_ms

    def elect_joined_leader(self) -> bool:
        """Keeps the leader if it has rejoined, else elects the first member that has. False if none has."""
        leader = self.members.get(self.leader) if self.leader is not None else None
        if leader is not None and leader.join_future is not None:
            return True
        for member in self.members.values():
            if member.join_future is not None:
                self.leader = member.member_id
                return True
        return False

    def begin_next_generation(self, now_ms: int) -> None:
        """Ends PreparingRebalance: CompletingRebalance of the next generation, or Empty if no member is left."""
        self.generation += 1
        self.pending_sync.clear()
        if self.members:
            self.protocol = self.select_protocol()
            self.transition_to(ClassicGroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol = None
            self.leader = None
            self.transition_to(ClassicGroupState.EMPTY, now_ms)

    def cancel_timers(self) -> None:
        """Cancels all timers: the object is no longer used."""
        for timer in (self.join_timer, self.sync_timer, *self.pending_members.values()):
            if timer is not None:
                timer.cancel()
        for member in self.members.values():
            if member.session_timer is not None:
                member.session_timer.cancel()

    # -- records -------------------------------------------------------------------------------------------------

    def store(self, stored: StoredGroup | None) -> None:
        """Takes over the group's record. Only for replay."""
        self.memory.add(of_stored(stored) - of_stored(self.stored))
        self.stored = stored

    def to_stored(self, assignments: dict[str, bytes], now_ms: int) -> StoredGroup:
        """The group as its record should be with these assignments; a member that is not named gets empty bytes."""
        return StoredGroup(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            state_timestamp_ms=now_ms,
            members=tuple(self._stored_members(assignments)),
        )

    def _stored_members(self, assignments: dict[str, bytes]) -> Iterable[StoredMember]:
        for member in self.members.values():
            yield StoredMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.session_timeout_ms,
                subscription=member.metadata(self.protocol or ""),
                assignment=assignments.get(member.member_id, b""),
            )

    def live_keys(self) -> Iterator[tuple[type, str]]:
        """(record type, "") of the group's record, if there is one."""
        if self.stored is not None:
            yield GroupRecord, ""

    def record(self, kind: type, name: str) -> GroupRecord | None:
        """The group's record; None if there is none."""
        return None if kind is not GroupRecord or self.stored is None else GroupRecord(self.group_id, self.stored)

    def tombstones(self) -> list[GroupRecord]:
        """Records that remove the group; its offsets stay."""
        return [] if self.stored is None else [GroupRecord(self.group_id, None)]

    def restore(self) -> None:
        """Rebuilds the members from `stored`, after a load: Stable with the stored members, or Empty."""
        stored = self.stored
        if stored is None:
            return
        self.generation = stored.generation
        self.protocol_type = stored.protocol_type or None
        self.protocol = stored.protocol
        self.leader = stored.leader
        self.state = ClassicGroupState.STABLE if stored.members else ClassicGroupState.EMPTY
        self.previous_state = self.state
        if stored.state_timestamp_ms >= 0:
            self.state_timestamp_ms = stored.state_timestamp_ms
        for entry in stored.members:
            member = ClassicGroupMember(
                entry.member_id,
                entry.group_instance_id,
                entry.client_id,
                entry.client_host,
                entry.rebalance_timeout_ms,
                entry.session_timeout_ms,
                [(stored.protocol or "", entry.subscription)],
                entry.assignment,
            )
            self._index(member)
        if self.leader not in self.members:
            self.leader = next(iter(self.members), None)
