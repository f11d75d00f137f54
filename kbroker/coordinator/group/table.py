"""The groups of one shard, and what a group of every type answers.

Classic groups, consumer groups (KIP-848) and share groups (KIP-932) live in one table, and a group may change its type.
A request that any group may get is a method of `Group`. Code that is about one type looks its group up with
`GroupTable.find`, the only place that tests the type of a group.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from concurrent.futures import Future
from typing import Any, ClassVar, TypeVar

from kbroker.coordinator.group.activity import GroupActivity
from kbroker.coordinator.group.config import GroupConfig
from kbroker.coordinator.group.environment import GroupEnvironment
from kbroker.coordinator.group.memory import GroupCounts, GroupMemory
from kbroker.coordinator.group.offsets.committed import GroupOffsets, RetentionBase
from kbroker.coordinator.group.offsets.transaction_guards import TransactionGuards
from kbroker.coordinator.group.offsets.transactional import TransactionalOffsets
from kbroker.coordinator.group.records import Record
from kbroker.coordinator.group.requests import CommitRequest, Committer, FetchRequest, JoinRequest, Leaver
from kbroker.coordinator.group.share.partition_states import PartitionStates
from kbroker.coordinator.group.timers import MemberTimers
from kbroker.coordinator.runtime.event_loop import Timer
from kbroker.coordinator.runtime.result import Operation, Result
from kbroker.coordinator.runtime.shard import Scheduler
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.apis.groups.k12_heartbeat import HeartbeatRequest
from kbroker.protocol.apis.groups.k13_leave_group import LeaveGroupResponse, MemberResponse
from kbroker.protocol.apis.groups.k14_sync_group import SyncGroupRequest

logger = logging.getLogger(__name__)

EMPTY = "Empty"  # the state of every type of group that has no members

_REFUSAL_LOG_MS = 60_000  # of one shard: not for each of those that a client repeats

T = TypeVar("T")


class Group(ABC):
    """What a group of every type answers; the defaults are those of a type that does not know the request."""

    TYPE: ClassVar[str]  # as ListGroups names it
    COMMITS_OFFSETS: ClassVar[bool] = True  # else offsets are neither committed nor shown, and the group never expires

    group_id: str
    offsets: GroupOffsets
    memory: GroupMemory
    members: dict[str, Any]  # by id; each type of group has its own class
    protocol_type: str | None

    @property
    @abstractmethod
    def state_name(self) -> str:
        """The state, as ListGroups names it."""

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """True if it has no members and expects none."""

    @property
    def is_abandoned(self) -> bool:
        """True if nothing, in memory or in the log, would be lost with this object."""
        return self.is_empty and not self.offsets and next(self.live_keys(), None) is None

    # -- records -------------------------------------------------------------------------------------------------

    @abstractmethod
    def live_keys(self) -> Iterator[tuple[type, str]]:
        """(record type, name) of each live record, without offsets."""

    @abstractmethod
    def record(self, kind: type, name: str) -> Record | None:
        """The record with the current state of a key; None if there is none."""

    @abstractmethod
    def tombstones(self) -> Sequence[Record]:
        """Records that remove the group; its offsets stay."""

    # -- life ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def activate(self, shard: GroupTable) -> Sequence[Record]:
        """Turns replayed state into live state; returns what that changes."""

    @abstractmethod
    def retire(self, shard: GroupTable) -> None:
        """Ends what the object has under way: it was removed from the table or replaced."""

    def refresh(self, shard: GroupTable, topics: Collection[str]) -> Sequence[Record] | None:
        """Topics were created or deleted, or have more partitions: what that changes; None if it is not concerned."""
        return None

    def follow(self, shard: GroupTable) -> None:
        """What `activate` or `refresh` has returned is durable."""
        return

    def answer_parked(self, error: ErrorCode) -> None:
        """Answers all parked requests with an error."""
        return

    # -- requests of members -------------------------------------------------------------------------------------

    def join(self, shard: GroupTable, request: JoinRequest, future: Future) -> Result:
        """JoinGroup; `future` is parked while a rebalance goes on. Raises KafkaError to refuse."""
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def sync(self, shard: GroupTable, request: SyncGroupRequest, future: Future) -> Result:
        """SyncGroup; `future` is parked until the assignments are durable. Raises KafkaError to refuse."""
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)

    def heartbeat(self, shard: GroupTable, request: HeartbeatRequest) -> Result:
        """Heartbeat: renews the session; REBALANCE_IN_PROGRESS makes the member rejoin. Raises KafkaError to refuse."""
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)

    def leave(self, shard: GroupTable, leavers: list[Leaver]) -> Result:
        """LeaveGroup. The answer has one entry per leaver, in order, each with its own error."""
        return Result(response=leave_response(leavers, [ErrorCode.UNKNOWN_MEMBER_ID] * len(leavers)))

    # -- offsets -------------------------------------------------------------------------------------------------

    @abstractmethod
    def check_commit(self, shard: GroupTable, request: CommitRequest) -> None:
        """Raises KafkaError unless the member that an OffsetCommit names may commit."""

    @abstractmethod
    def check_transactional_commit(self, request: Committer) -> None:
        """Raises KafkaError unless the member that a TxnOffsetCommit names may commit."""

    def check_fetch(self, request: FetchRequest) -> None:
        """Raises KafkaError if an OffsetFetch names a member that may not read."""
        return

    def retention_base(self) -> RetentionBase | None:
        """What the retention of offsets counts from; None: no offset expires in the current state."""
        return None

    def subscribed(self, topics: Collection[str]) -> set[str]:
        """Those of the topics that members subscribe to."""
        return set()


def leave_response(leavers: list[Leaver], errors: list[ErrorCode]) -> LeaveGroupResponse:
    """LeaveGroup's answer, with the error of each leaver."""
    return LeaveGroupResponse(
        members=[
            MemberResponse(member_id=leaver.member_id, group_instance_id=leaver.group_instance_id, error_code=error)
            for leaver, error in zip(leavers, errors, strict=True)
        ]
    )


class GroupTable(ABC):
    """The groups of one shard, the bounds on them, and what decisions on them need of the broker.

    Loop thread only (before a load has ended: its worker thread only), except `groups` for reading and `timers` for
    postponing.
    """

    def __init__(
        self,
        config: GroupConfig,
        now_ms: Callable[[], int],
        deleted_topics: Callable[[], Set[str]],
        total: Callable[[], GroupCounts] | None = None,
        environment: GroupEnvironment | None = None,
        share_states: PartitionStates[GroupTable] | None = None,
        activity: GroupActivity | None = None,
    ) -> None:
        """`total` is the sum of all shards' counts; `activity` is common to all shards.

        `share_states` None: share groups are not served; their records in the log are kept.
        """
        self.config = config
        self.now_ms = now_ms  # wall clock
        self.deleted_topics = deleted_topics  # the names that no topic has any more
        self.counts = GroupCounts()
        self.activity = activity or GroupActivity()
        self._total = total or (lambda: self.counts)
        self.environment = environment or GroupEnvironment()
        self.share_states = share_states
        self.groups: dict[str, Group] = {}
        self.timers = MemberTimers(self.schedule)
        self.pending_offsets = TransactionalOffsets()
        self.guards = TransactionGuards()
        self._runtime: Scheduler | None = None
        self._refusal_logged_ms = 0

    def attach(self, runtime: Scheduler) -> None:
        """Gives a loaded shard its runtime."""
        self._runtime = runtime

    @property
    def is_live(self) -> bool:
        """True once the shard is loaded."""
        return self._runtime is not None

    def schedule(self, delay_ms: int, operation: Operation) -> Timer:
        """Runs `operation` on the loop thread after `delay_ms`."""
        assert self._runtime is not None
        return self._runtime.schedule(delay_ms, operation)

    # -- look-up -------------------------------------------------------------------------------------------------

    def find(self, group_type: type[T], group_id: str) -> T | None:
        """The group, if it has this type.

        For code that concerns one type alone: its own requests, timers and callbacks. A group may have become one of
        another type since they were set.
        """
        group = self.groups.get(group_id)
        return group if isinstance(group, group_type) else None

    def known(self, group_id: str) -> Group:
        """The group; raises UNKNOWN_MEMBER_ID, which members of a removed group are told."""
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    def get_or_create(self, group_id: str) -> Group:
        """The group, created Empty and classic if there is none."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.new_group(group_id)
            self.put(group)
        return group

    @abstractmethod
    def new_group(self, group_id: str, offsets: GroupOffsets | None = None) -> Group:
        """A classic group without members, which is not in the table yet."""

    # -- changes -------------------------------------------------------------------------------------------------

    def put(self, group: Group) -> None:
        """Adds a group, or replaces one of another type; the new object has taken over its offsets."""
        replaced = self.groups.get(group.group_id)
        if replaced is None:
            self.counts.groups += 1
        else:
            self._retire(replaced)
        self.groups[group.group_id] = group
        group.memory.attach(self.counts)

    def drop(self, group: Group) -> None:
        """Removes a group with its offsets."""
        del self.groups[group.group_id]
        self.counts.groups -= 1
        self.counts.offsets -= len(group.offsets)
        self.counts.bytes -= group.offsets.bytes
        self._retire(group)

    def _retire(self, group: Group) -> None:
        self.counts.members -= len(group.members)
        group.memory.detach()
        group.retire(self)

    def drop_if_abandoned(self, group_id: str) -> None:
        """Removes a group that no member has joined in the end; without this, probing clients would fill memory."""
        group = self.groups.get(group_id)
        if group is not None and group.is_abandoned and not self.pending_offsets.has_group(group_id):
            self.drop(group)

    # -- bounds --------------------------------------------------------------------------------------------------

    def check_group_bound(self) -> None:
        """Raises POLICY_VIOLATION if the broker holds as many groups as it may."""
        if self._total().groups >= self.config.groups_max:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "too many groups")

    def check_room(self, growth: int, *, newcomer: bool, error: ErrorCode = ErrorCode.GROUP_MAX_SIZE_REACHED) -> None:
        """Raises `error` if groups may not take `growth` more bytes; a growth of 0 or less is never refused.

        A newcomer is a group or member that does not exist yet: the last eighth of the bytes is for existing ones.
        """
        most = self.config.group_bytes_max
        taken = self._total().bytes if growth > 0 else 0
        if growth <= 0 or taken + growth <= (most - most // 8 if newcomer else most):
            return
        now_ms = self.now_ms()
        if now_ms - self._refusal_logged_ms >= _REFUSAL_LOG_MS:
            self._refusal_logged_ms = now_ms
            logger.warning(
                "groups take %d of the %d bytes of memory that --memory-bytes gives them: a request for %d more is "
                "refused (%s)", taken, most, growth, error.name,
            )  # fmt: skip
        raise KafkaError(error, "The groups of this broker take as many bytes of memory as they may.")
