"""The members of a classic group, the ids that it has given out, and the protocols that all members support."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection
from concurrent.futures import Future

from kbroker.coordinator.group.classic.member import ClassicGroupMember, Protocols
from kbroker.coordinator.group.classic.state import CONSUMER_PROTOCOL_TYPE
from kbroker.coordinator.group.memory import GroupMemory, of_classic_member, of_pending_member
from kbroker.coordinator.group.requests import JoinRequest
from kbroker.coordinator.runtime.event_loop import Timer
from kbroker.errors import ErrorCode, KafkaError, ProtocolError
from kbroker.protocol.records import subscribed_topics


class ClassicMembers:
    """Bookkeeping: it sets no timers and writes no records."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.memory = GroupMemory(group_id)
        self.protocol_type: str | None = None  # None: only simple consumers have committed here
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, ClassicGroupMember] = {}
        self.static_members: dict[str, str] = {}  # instance id -> member id
        self.pending_members: dict[str, Timer] = {}  # ids given out with MEMBER_ID_REQUIRED; the timers drop them
        self.pending_sync: set[str] = set()  # members of this generation that have not called SyncGroup
        self.awaiting_join_count = 0  # members with a parked JoinGroup
        self._supporters: Counter[str] = Counter()  # protocol -> members that support it

    @property
    def all_members_joined(self) -> bool:
        """True when a rebalance has no member to wait for."""
        return not self.pending_members and self.awaiting_join_count == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest of the members' rebalance timeouts."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @staticmethod
    def new_member_id(client_id: str, group_instance_id: str | None) -> str:
        """`<instance id or client id>-<uuid>`."""
        return f"{client_id if group_instance_id is None else group_instance_id}-{uuid.uuid4()}"

    def member(self, member_id: str, group_instance_id: str | None) -> ClassicGroupMember:
        """The member that a request names.

        Raises FENCED_INSTANCE_ID if another member id has taken the instance id over, UNKNOWN_MEMBER_ID otherwise.
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

    def bytes_of(self, request: JoinRequest) -> int:
        """The bytes of the member that joins again, 0 for a new one."""
        member = self.members.get(request.member_id or self.static_members.get(request.group_instance_id or "", ""))
        return 0 if member is None else member.weight

    # -- joining and leaving -------------------------------------------------------------------------------------

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
        """Forgets an id given out with MEMBER_ID_REQUIRED; False if it is not pending."""
        timer = self.pending_members.pop(member_id, None)
        if timer is None:
            return False
        timer.cancel()
        self.memory.add(-of_pending_member(member_id))
        return True

    def remove(self, member: ClassicGroupMember) -> None:
        """Removes a member and its timer. The caller has answered its parked requests."""
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
        """Gives a static member a new member id; it keeps its place, assignment and leadership."""
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
        """Keeps a JoinGroup's future until the rebalance completes; returns the one that it replaces."""
        replaced, member.join_future = member.join_future, future
        if replaced is None:
            self.awaiting_join_count += 1
        return replaced

    def take_join(self, member: ClassicGroupMember) -> Future | None:
        """The future of the parked JoinGroup, which is no longer parked."""
        future, member.join_future = member.join_future, None
        if future is not None:
            self.awaiting_join_count -= 1
        return future

    # -- protocols -----------------------------------------------------------------------------------------------

    def set_protocols(self, member: ClassicGroupMember, protocols: Protocols) -> None:
        """Changes which protocols a member supports, and updates its weight."""
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
        candidates = {name for name, count in self._supporters.items() if count == len(self.members)}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def subscribed(self, topics: Collection[str]) -> set[str]:
        """Those of the topics that members subscribe to; all of them if the members' metadata cannot be parsed.

        Parsed at each call, which is rare: decoded subscriptions would take many times the memory.
        """
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE or not topics:
            return set()
        asked = {topic.encode(): topic for topic in topics}
        found: set[bytes] = set()
        try:
            for member in self.members.values():
                found.update(name for name in subscribed_topics(member.metadata(self.protocol or "")) if name in asked)
        except ProtocolError:  # a client may put anything into its metadata
            return set(topics)
        return {asked[name] for name in found}
