"""A consumer group as the group table sees it (KIP-848)."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future

from kbroker.coordinator.group.classic.join import check_room, take_over
from kbroker.coordinator.group.consumer import classic_members, session
from kbroker.coordinator.group.consumer.committer import check_committer
from kbroker.coordinator.group.consumer.epochs import ConsumerEpochs
from kbroker.coordinator.group.consumer.state import ConsumerGroupRecord, ConsumerMember, CurrentRecord, MemberRecord
from kbroker.coordinator.group.consumer.update import ConsumerUpdate
from kbroker.coordinator.group.offsets.committed import GroupOffsets, RetentionBase
from kbroker.coordinator.group.recorded_group import RecordedGroup
from kbroker.coordinator.group.records import Record
from kbroker.coordinator.group.requests import CommitRequest, Committer, FetchRequest, JoinRequest, Leaver
from kbroker.coordinator.group.table import GroupTable
from kbroker.coordinator.runtime.result import Result
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.apis.groups.k12_heartbeat import HeartbeatRequest
from kbroker.protocol.apis.groups.k14_sync_group import SyncGroupRequest


class ConsumerGroup(ConsumerEpochs, RecordedGroup[ConsumerGroupRecord, ConsumerMember]):
    """ConsumerGroupHeartbeat finds it by its type; requests of the classic protocol come from members that use it."""

    TYPE = "consumer"

    def __init__(self, group_id: str, offsets: GroupOffsets | None = None) -> None:
        super().__init__(group_id, offsets)
        self._unreconciled: set[str] = set()  # members that have not reached the target, since its rebalance began
        self._rebalance_began_ms = 0

    def replay(self, shard: GroupTable, record: ConsumerGroupRecord) -> None:
        """Applies one record, and what follows from it for live members."""
        assignment_epoch = self.assignment_epoch
        self.apply(record)
        if shard.is_live and self.assignment_epoch != assignment_epoch:
            self.assigned_ms = shard.now_ms()
            self._begin_rebalance(shard)
        if isinstance(record, MemberRecord) and record.metadata is None:
            shard.timers.cancel_member(record.group_id, record.member_id)
        if isinstance(record, MemberRecord | CurrentRecord) and record.member_id in self._unreconciled:
            self._note_progress(shard, record.member_id)

    def _begin_rebalance(self, shard: GroupTable) -> None:
        """There is a new target. A rebalance under way goes on with it."""
        if not self._unreconciled:
            self._rebalance_began_ms = shard.now_ms()
            shard.activity.rebalances[self.TYPE] += 1
        epoch = self.target_epoch
        self._unreconciled = {
            member_id for member_id, member in self.members.items() if not member.is_reconciled_to(epoch)
        }

    def _note_progress(self, shard: GroupTable, member_id: str) -> None:
        member = self.members.get(member_id)
        if member is None or member.is_reconciled_to(self.target_epoch):
            self._unreconciled.discard(member_id)
            if not self._unreconciled:
                shard.activity.rebalance_ended(self.TYPE, shard.now_ms() - self._rebalance_began_ms)

    def activate(self, shard: GroupTable) -> list[Record]:
        """Starts the members' sessions; topics may have changed since the last record."""
        session.restore_timers(shard, self)
        topics = frozenset[str]()
        if self.has_regex:
            matched = (regex.topics for regex in self.resolved.values())
            topics = topics.union(shard.environment.topics.names(), *matched)
        return self._refreshed(shard, topics)

    def refresh(self, shard: GroupTable, topics: Collection[str]) -> list[Record] | None:
        """A new group epoch if members subscribe to one of the topics."""
        concerned = self.has_regex or any(self.subscribes_to(topic) for topic in topics)
        return self._refreshed(shard, topics) if concerned else None

    def _refreshed(self, shard: GroupTable, changed: Collection[str]) -> list[Record]:
        if not self.members:
            return []
        update = ConsumerUpdate(shard, self)
        update.refresh(bump=False, changed=changed)
        return update.records

    # -- the classic protocol ------------------------------------------------------------------------------------

    def join(self, shard: GroupTable, request: JoinRequest, future: Future) -> Result:
        """JoinGroup of a member of the classic protocol; without members the group becomes a classic one."""
        check_room(shard, request, self.bytes_of(request))
        if self.members:
            return classic_members.join(shard, self, request)
        if request.member_id:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return take_over(shard, self, request, future)

    def sync(self, shard: GroupTable, request: SyncGroupRequest, future: Future) -> Result:
        """SyncGroup of a member of the classic protocol."""
        return classic_members.sync(shard, self, request)

    def heartbeat(self, shard: GroupTable, request: HeartbeatRequest) -> Result:
        """Heartbeat of a member of the classic protocol."""
        return classic_members.heartbeat(shard, self, request)

    def leave(self, shard: GroupTable, leavers: list[Leaver]) -> Result:
        """LeaveGroup of members of either protocol."""
        return classic_members.leave(shard, self, leavers)

    # -- offsets -------------------------------------------------------------------------------------------------

    def check_commit(self, shard: GroupTable, request: CommitRequest) -> None:
        check_committer(self, request, version=request.version)

    def check_transactional_commit(self, request: Committer) -> None:
        check_committer(self, request, version=None)

    def check_fetch(self, request: FetchRequest) -> None:
        """Raises UNKNOWN_MEMBER_ID or STALE_MEMBER_EPOCH; a request that names no member may read."""
        if request.member_id is None and request.member_epoch < 0:
            return
        member = self.member(request.member_id or "")
        if request.member_epoch != member.current.member_epoch:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH)

    def retention_base(self) -> RetentionBase:
        """Retention counts from each commit."""
        return lambda value: value.commit_timestamp_ms
