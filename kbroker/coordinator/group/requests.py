"""Requests to groups, with what their versions imply spelled out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kbroker.coordinator.group.classic.member import Protocols
from kbroker.coordinator.runtime.result import ProducerStamp

CommittedOffset = tuple[str, int, int, int, str]  # topic, partition, offset, leader epoch, metadata


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A JoinGroup."""

    group_id: str
    member_id: str  # "": a new member
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    requires_known_member_id: bool  # v4+: a new dynamic member is first given its id (KIP-394)
    supports_skipping_assignment: bool  # v9+ (KIP-814)
    reason: str = ""  # v8+ (KIP-800)


@dataclass(frozen=True, slots=True)
class Leaver:
    """A member in a LeaveGroup: by its id, or a static one by its instance id alone (removed by an administrator)."""

    member_id: str
    group_instance_id: str | None = None


class Committer(Protocol):
    """How a request names the member that commits."""

    @property
    def generation(self) -> int: ...  # -1: a simple consumer, or an administrator
    @property
    def member_id(self) -> str: ...
    @property
    def group_instance_id(self) -> str | None: ...
    @property
    def offsets(self) -> list[CommittedOffset]: ...


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """An OffsetCommit. The caller has checked each partition (existence, metadata size)."""

    group_id: str
    generation: int  # -1: a simple consumer, or an administrator
    member_id: str
    group_instance_id: str | None
    version: int
    retention_ms: int  # v2-4; -1: the broker's
    offsets: list[CommittedOffset]


@dataclass(frozen=True, slots=True)
class TransactionalCommitRequest:
    """A TxnOffsetCommit. The caller has checked each partition."""

    group_id: str
    generation: int  # -1: no member is named, so none is checked
    member_id: str
    group_instance_id: str | None
    stamp: ProducerStamp
    offsets: list[CommittedOffset]


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """An OffsetFetch of one group."""

    group_id: str
    topics: list[tuple[str, list[int]]] | None  # None: all committed ones
    require_stable: bool = False  # v7+: UNSTABLE_OFFSET_COMMIT while a transaction is open
    member_id: str | None = None  # v9+: a member of the consumer protocol
    member_epoch: int = -1
