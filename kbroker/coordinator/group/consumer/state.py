"""The durable state of a consumer group (KIP-848): what its records say. Immutable; a change is a new record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from kbroker.coordinator.group.topic_partitions import NO_PARTITIONS, Partitions, TopicInfo

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2


class MemberState(IntEnum):
    """The progress of a member towards its target; the numbers are those in the log."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1  # it must give partitions up before it reaches the next epoch
    UNRELEASED_PARTITIONS = 2  # it waits for partitions that others have not given up yet
    UNKNOWN = 127  # written by a version with more states


class ClassicMetadata(NamedTuple):
    """The JoinGroup of a member that uses the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """Identity and subscription of a member."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicMetadata | None = None  # None: it uses the consumer protocol


def _nothing() -> Partitions:
    return NO_PARTITIONS


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """The partitions that a member may own now: no other member may own any of them until a later record."""

    member_epoch: int = JOIN_EPOCH
    previous_member_epoch: int = JOIN_EPOCH  # also accepted: the response with the newer one may have been lost
    state: MemberState = MemberState.STABLE
    assigned: Partitions = field(default_factory=_nothing)
    pending_revocation: Partitions = field(default_factory=_nothing)
    # For each partition in these two: since which member epoch the member has had it.
    since: Mapping[bytes, Mapping[int, int]] = field(default_factory=dict)

    def may_commit(self, topic_id: bytes, partition: int, epoch: int) -> bool:
        """True if a commit from an earlier epoch is still valid: the member owned the partition then."""
        return any(
            partition in held.get(topic_id, ()) for held in (self.assigned, self.pending_revocation)
        ) and epoch >= self.since.get(topic_id, {}).get(partition, self.member_epoch)


def since_epochs(
    before: Mapping[bytes, Mapping[int, int]], epoch: int, *held: Partitions
) -> dict[bytes, dict[int, int]]:
    """`since` of an assignment with these partitions: as it was, and `epoch` for those that are new."""
    since: dict[bytes, dict[int, int]] = {}
    for partitions in held:
        for topic_id, indexes in partitions.items():
            known = before.get(topic_id, {})
            since.setdefault(topic_id, {}).update({index: known.get(index, epoch) for index in indexes})
    return since


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member of a consumer group."""

    member_id: str
    metadata: MemberMetadata = MemberMetadata()
    current: CurrentAssignment = CurrentAssignment()

    @property
    def is_classic(self) -> bool:
        """True if it uses the classic protocol."""
        return self.metadata.classic is not None

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        """True if it owns exactly its target of that epoch."""
        return self.current.state is MemberState.STABLE and self.current.member_epoch == assignment_epoch


class ResolvedRegex(NamedTuple):
    """The topics that a regular expression matched."""

    topics: frozenset[str]
    timestamp_ms: int


class GroupEpochRecord(NamedTuple):
    """Type 3: the group and its epoch; None removes the group."""

    group_id: str
    epoch: int | None


class TopicMetadataRecord(NamedTuple):
    """Type 4: the subscribed topics that exist."""

    group_id: str
    topics: Mapping[str, TopicInfo] | None


class MemberRecord(NamedTuple):
    """Type 5: a member."""

    group_id: str
    member_id: str
    metadata: MemberMetadata | None


class TargetEpochRecord(NamedTuple):
    """Type 6: the epoch of the target assignment."""

    group_id: str
    epoch: int | None


class TargetRecord(NamedTuple):
    """Type 7: a member's target assignment."""

    group_id: str
    member_id: str
    partitions: Partitions | None


class CurrentRecord(NamedTuple):
    """Type 8: a member's current assignment."""

    group_id: str
    member_id: str
    current: CurrentAssignment | None


class RegexRecord(NamedTuple):
    """Type 16: what a regular expression matched."""

    group_id: str
    regex: str
    resolved: ResolvedRegex | None


ConsumerGroupRecord = (
    GroupEpochRecord
    | TopicMetadataRecord
    | MemberRecord
    | TargetEpochRecord
    | TargetRecord
    | CurrentRecord
    | RegexRecord
)
CONSUMER_GROUP_RECORDS = (
    GroupEpochRecord,
    TopicMetadataRecord,
    MemberRecord,
    TargetEpochRecord,
    TargetRecord,
    CurrentRecord,
    RegexRecord,
)
