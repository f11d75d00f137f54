"""The durable state of a group: what its records say. Immutable; a change is a new record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kbroker.coordinator.group.consumer.state import ConsumerGroupRecord
from kbroker.coordinator.group.share.state import ShareGroupRecord


class OffsetAndMetadata(NamedTuple):
    """A committed offset."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int = -1  # only from OffsetCommit v2-4 with a retention time; -1: the broker's retention


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A member of a classic group, as in its group record."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A classic group, as in its group record."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int  # when the group took this state; -1 unknown
    members: tuple[StoredMember, ...]


class OffsetRecord(NamedTuple):
    """Sets (or with None, removes) one partition's committed offset."""

    group_id: str
    topic: str
    partition: int
    value: OffsetAndMetadata | None


class GroupRecord(NamedTuple):
    """Sets (or with None, removes) a classic group."""

    group_id: str
    value: StoredGroup | None


Record = OffsetRecord | GroupRecord | ConsumerGroupRecord | ShareGroupRecord
