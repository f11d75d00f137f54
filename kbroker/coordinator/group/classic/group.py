"""A classic group as the group table sees it, also one that only holds committed offsets."""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.coordinator.group.classic import join, rebalance, session, sync
from kbroker.coordinator.group.classic.generation import ClassicGeneration
from kbroker.coordinator.group.classic.member import ClassicGroupMember
from kbroker.coordinator.group.classic.state import CONSUMER_PROTOCOL_TYPE, GROUP_TYPE, ClassicGroupState
from kbroker.coordinator.group.offsets.committed import RetentionBase
from kbroker.coordinator.group.records import Record
from kbroker.coordinator.group.requests import CommitRequest, Committer, JoinRequest, Leaver
from kbroker.coordinator.group.table import Group, GroupTable
from kbroker.coordinator.runtime.result import Result
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.apis.groups.k12_heartbeat import HeartbeatRequest
from kbroker.protocol.apis.groups.k14_sync_group import SyncGroupRequest

State = ClassicGroupState


class ClassicGroup(ClassicGeneration, Group):
    """One classic group."""

    TYPE = GROUP_TYPE

    @property
    def state_name(self) -> str:
        return self.state.value

    # -- life ----------------------------------------------------------------------------------------------------

    def activate(self, shard: GroupTable) -> list[Record]:
        """Restores the stored members, each with a full session timeout; so a restart moves no partition."""
        self.restore()
        shard.counts.members += len(self.members)
        for member in self.members.values():
            rebalance.restart_session(shard, self, member)
        if self.lacks_rebalance:
            rebalance.prepare(shard, self, "it was loaded without assignments")
        return []

    def retire(self, shard: GroupTable) -> None:
        """Answers parked requests and cancels all timers; the group is Dead."""
        self.answer_parked(ErrorCode.REBALANCE_IN_PROGRESS)
        self.transition_to(State.DEAD, shard.now_ms())
        self.cancel_timers()

    def answer_parked(self, error: ErrorCode) -> None:
        for member in self.members.values():
            rebalance.answer_join(self, member, rebalance.join_error(error, member.member_id))
            rebalance.fail_sync(member, error)

    # -- requests of members -------------------------------------------------------------------------------------

    def join(self, shard: GroupTable, request: JoinRequest, future: Future) -> Result:
        return join.join_group(shard, self, request, future)

    def sync(self, shard: GroupTable, request: SyncGroupRequest, future: Future) -> Result:
        return sync.sync_group(shard, self, request, future)

    def heartbeat(self, shard: GroupTable, request: HeartbeatRequest) -> Result:
        return session.heartbeat_of_member(shard, self, request)

    def leave(self, shard: GroupTable, leavers: list[Leaver]) -> Result:
        return session.remove_leavers(shard, self, leavers)

    # -- offsets -------------------------------------------------------------------------------------------------

    def check_commit(self, shard: GroupTable, request: CommitRequest) -> None:
        """Raises KafkaError unless the member that an OffsetCommit names may commit; a commit renews its session."""
        member = self._committing_member(request, transactional=False)
        if self.state is State.COMPLETING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        if member is not None:
            rebalance.restart_session(shard, self, member)

    def check_transactional_commit(self, request: Committer) -> None:
        self._committing_member(request, transactional=True)

    def _committing_member(self, request: Committer, *, transactional: bool) -> ClassicGroupMember | None:
        """The member that commits. None for a commit that names no member, which only an Empty group accepts.

        In a transaction a group in any state accepts it: the producer's epoch fences already.
        """
        if request.generation < 0 and self.state is State.EMPTY:
            return None
        if request.generation < 0 and not request.member_id and request.group_instance_id is None:
            if transactional:
                return None
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = self.member(request.member_id, request.group_instance_id)
        if request.generation != self.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        return member

    def retention_base(self) -> RetentionBase | None:
        """Each commit for simple consumers and in a Stable consumer group; the end of the last member in Empty."""
        if self.protocol_type is None:
            return lambda value: value.commit_timestamp_ms
        if self.state is State.EMPTY:
            empty_since_ms = self.state_timestamp_ms
            return lambda value: empty_since_ms
        if self.state is State.STABLE and self.protocol_type == CONSUMER_PROTOCOL_TYPE:
            return lambda value: value.commit_timestamp_ms
        return None
