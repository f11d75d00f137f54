"""A group of the classic protocol: members, states, votes.

Two kinds of state. `stored` and the offsets are durable: only `replay` sets them, in log order. Everything else (who
is parked, who has joined this round) lives for one rebalance, is never logged, and is rebuilt from `stored` after a
load: members then go on with the generation they know.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Iterable
from concurrent.futures import Future
from enum import Enum

from kbroker.coordinator.group.memory import GroupMemory, of_classic_member, of_pending_member, of_stored
from kbroker.coordinator.group.offsets.committed import GroupOffsets
from kbroker.coordinator.group.state import GroupRecord, StoredGroup, StoredMember
from kbroker.coordinator.runtime.event_loop import Timer
from kbroker.errors import ErrorCode, KafkaError, ProtocolError
from kbroker.protocol.records import subscribed_topics

CONSUMER_PROTOCOL_TYPE = "consumer"

Protocols = list[tuple[str, bytes]]  # in the member's order of preference


class ClassicGroupState(Enum):
    """States of the classic protocol, by the names that ListGroups and DescribeGroups show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class ClassicGroupMember:
    """One member and what it waits for."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "group_instance_id",
        "is_new",
        "join_future",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "session_timer",
        "sync_future",
        "weight",
    )

    def __init__(
        self,
        member_id: str,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.is_new = False  # has not been told its member id by a completed join
        self.join_future: Future | None = None  # parked JoinGroup
        self.sync_future: Future | None = None  # parked SyncGroup
        self.session_timer: Timer | None = None
        self.weight = 0  # bytes, as the group counts it

    def metadata(self, protocol: str) -> bytes:
        """The member's metadata for `protocol`; empty if it does not know it."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def vote(self, candidates: set[str]) -> str:
        """Its first choice among the candidates, which all members support."""
        return next(name for name, _ in self.protocols if name in candidates)


class ClassicGroup:
    """The membership of one group. Pure bookkeeping: no timers are set and no records written here."""

    def __init__(self, group_id: str, now_ms: int, offsets: GroupOffsets | None = None) -> None:
        self.group_id = group_id
        self.offsets = GroupOffsets() if offsets is None else offsets
        self.memory = GroupMemory(group_id)
        self.stored: StoredGroup | None = None
        self.state = ClassicGroupState.EMPTY
        self.previous_state = ClassicGroupState.EMPTY
        self.state_timestamp_ms = now_ms
        self.protocol_type: str | None = None  # None: only simple consumers committed here
        self.protocol: str | None = None
        self.generation = 0
        self.leader: str | None = None
        self.members: dict[str, ClassicGroupMember] = {}
        self.static_members: dict[str, str] = {}  # instance id -> member id
        self.pending_members: dict[str, Timer] = {}  # ids given out with MEMBER_ID_REQUIRED; the timers drop them
        self.pending_sync: set[str] = set()  # members of this generation that have not called SyncGroup
        self.awaiting_join_count = 0  # members with a parked JoinGroup
        self._supporters: Counter[str] = Counter()  # protocol -> members that support it
        self.member_added = False  # during the initial delay: extends it
        self.join_timer: Timer | None = None
        self.sync_timer: Timer | None = None

    # -- states --------------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """True if it has no members and expects none."""
        return self.state is ClassicGroupState.EMPTY and not self.pending_members

    def transition_to(self, state: ClassicGroupState, now_ms: int) -> None:
        """Changes the state and notes when."""
        self.previous_state, self.state = self.state, state
        self.state_timestamp_ms = now_ms

    @property
    def can_rebalance(self) -> bool:
        """True where a change of members starts a rebalance, instead of joining the one that is going on."""
        return self.state in (
            ClassicGroupState.EMPTY,
            ClassicGroupState.COMPLETING_REBALANCE,
            ClassicGroupState.STABLE,
        )

    @property
    def lacks_rebalance(self) -> bool:
        """True for a group that was a consumer group just before: its partitions have not been assigned anew."""
        return self.stored is not None and bool(self.stored.members) and self.stored.leader is None

    @property
    def all_members_joined(self) -> bool:
        """True when a rebalance has nobody to wait for."""
        return not self.pending_members and self.awaiting_join_count == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest of the members' rebalance timeouts."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def is_abandoned(self) -> bool:
        """True if nothing, in memory or in the log, would be lost with this object."""
        return (
            self.state is ClassicGroupState.EMPTY
            and self.stored is None
            and not self.members
            and not self.pending_members
            and not self.offsets
        )

    # -- members -------------------------------------------------------------------------------------------------

    @staticmethod
    def new_member_id(client_id: str, group_instance_id: str | None) -> str:
        """`<instance id or client id>-<uuid>`."""
        return f"{client_id if group_instance_id is None else group_instance_id}-{uuid.uuid4()}"

    def member(self, member_id: str, group_instance_id: str | None) -> ClassicGroupMember:
        """The member that a request names.

        Raises FENCED_INSTANCE_ID if another member id has taken the instance id over, UNKNOWN_MEMBER_ID else.
        """
        if group_instance_id is not None:
            holder = self.static_members.get(group_instance_id)
            if holder is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            if holder != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def bytes_of(self, member_id: str) -> int:
        """The bytes that a member takes, 0 if there is none."""
        member = self.members.get(member_id)
        return 0 if member is None else member.weight

    def add(self, member: ClassicGroupMember, protocol_type: str) -> None:
        """Adds a member; the first one sets the protocol type and leads."""
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self._index(member)
        self.drop_pending(member.member_id)

    def _index(self, member: ClassicGroupMember) -> None:
        self.members[member.member_id] = member
        self._weigh(member)
        self._supporters.update({name for name, _ in member.protocols})
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id

    def _weigh(self, member: ClassicGroupMember) -> None:
        weight = of_classic_member(member)
        self.memory.add(weight - member.weight)
        member.weight = weight

    def add_pending(self, member_id: str, timer: Timer) -> None:
        """Expects the join of an id that is given out with MEMBER_ID_REQUIRED, until the timer fires."""
        self.pending_members[member_id] = timer
        self.memory.add(of_pending_member(member_id))

    def drop_pending(self, member_id: str) -> bool:
        """Forgets an id given out with MEMBER_ID_REQUIRED; False if there is no such."""
        timer = self.pending_members.pop(member_id, None)
        if timer is None:
            return False
        timer.cancel()
        self.memory.add(-of_pending_member(member_id))
        return True

    def remove(self, member: ClassicGroupMember) -> None:
        """Removes a member and its timer. The caller has answered what it had parked."""
        assert member.join_future is None
        assert member.sync_future is None
        del self.members[member.member_id]
        self.memory.add(-member.weight)
        self._supporters.subtract({name for name, _ in member.protocols})
        self._supporters += Counter()  # drops zeros: clients choose the names
        if member.session_timer is not None:
            member.session_timer.cancel()
        if member.group_instance_id is not None:
            self.static_members.pop(member.group_instance_id, None)
        self.pending_sync.discard(member.member_id)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def replace_static_member(self, old_id: str, new_id: str) -> ClassicGroupMember:
        """Gives a static member a new member id, keeping its place, assignment and leadership."""
        member = self.members[old_id]
        member.member_id = new_id
        self._weigh(member)
        self.members = {m.member_id: m for m in self.members.values()}
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.pending_sync:
            self.pending_sync.remove(old_id)
            self.pending_sync.add(new_id)
        return member

    def park_join(self, member: ClassicGroupMember, future: Future) -> Future | None:
        """Keeps a JoinGroup's answer until the rebalance completes; returns the one it replaces."""
        replaced, member.join_future = member.join_future, future
        if replaced is None:
            self.awaiting_join_count += 1
        return replaced

    def take_join(self, member: ClassicGroupMember) -> Future | None:
        """The parked JoinGroup's answer, no longer parked."""
        future, member.join_future = member.join_future, None
        if future is not None:
            self.awaiting_join_count -= 1
        return future

    # -- protocols -----------------------------------------------------------------------------------------------

    def common_protocols(self) -> set[str]:
        """Protocols that every member supports."""
        return {name for name, count in self._supporters.items() if count == len(self.members)}

    def set_protocols(self, member: ClassicGroupMember, protocols: Protocols) -> None:
        """Changes what a member supports, and counts anew what it takes."""
        self._supporters.subtract({name for name, _ in member.protocols})
        self._supporters.update({name for name, _ in protocols})
        self._supporters += Counter()
        member.protocols = protocols
        self._weigh(member)

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """True if a member with these protocols can join."""
        if not self.members:
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type:
            return False
        return any(self._supporters[name] == len(self.members) for name, _ in protocols)

    def select_protocol(self) -> str:
        """The protocol with most votes; each member votes for its first choice among the common ones."""
        candidates = self.common_protocols()
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def elect_joined_leader(self) -> bool:
        """Makes sure that the leader has rejoined; else the first member that did. False if there is none."""
        leader = self.members.get(self.leader) if self.leader is not None else None
        if leader is not None and leader.join_future is not None:
            return True
        for member in self.members.values():
            if member.join_future is not None:
                self.leader = member.member_id
                return True
        return False

    def begin_next_generation(self, now_ms: int) -> None:
        """Ends PreparingRebalance: one generation on, CompletingRebalance, or Empty if nobody is left."""
        self.generation += 1
        self.pending_sync.clear()
        if self.members:
            self.protocol = self.select_protocol()
            self.transition_to(ClassicGroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol = None
            self.leader = None
            self.transition_to(ClassicGroupState.EMPTY, now_ms)

    def subscribed(self, topics: Collection[str]) -> set[str]:
        """Those of the topics that members read; all of them where that is not known.

        Read from what the members said each time, which is seldom: decoded, it would take many times the memory.
        """
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE or not topics:
            return set()
        asked = {topic.encode(): topic for topic in topics}
        found: set[bytes] = set()
        try:
            for member in self.members.values():
                found.update(name for name in subscribed_topics(member.metadata(self.protocol or "")) if name in asked)
        except ProtocolError:  # the bytes are the client's own business
            return set(topics)
        return {asked[name] for name in found}

    # -- records -------------------------------------------------------------------------------------------------

    def store(self, stored: StoredGroup | None) -> None:
        """Takes over what the group's record says now. Only for replay."""
        self.memory.add(of_stored(stored) - of_stored(self.stored))
        self.stored = stored

    def to_stored(self, assignments: dict[str, bytes], now_ms: int) -> StoredGroup:
        """The group as its record should say, with these assignments (members not named get empty bytes)."""
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

    def tombstones(self) -> list[GroupRecord]:
        """Records that remove the group; its offsets stay."""
        return [] if self.stored is None else [GroupRecord(self.group_id, None)]

    def cancel_timers(self) -> None:
        """Ends all timers: the object is not used any more."""
        for timer in (self.join_timer, self.sync_timer, *self.pending_members.values()):
            if timer is not None:
                timer.cancel()
        for member in self.members.values():
            if member.session_timer is not None:
                member.session_timer.cancel()

    def restore(self) -> None:
        """Rebuilds the membership from `stored`, after a load: Stable with the stored members, or Empty."""
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
