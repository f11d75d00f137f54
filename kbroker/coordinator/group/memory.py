"""The approximate memory of the state of groups, in bytes.

Each string counts with its size in Python, each object with the size that was measured for one of its kind. Strings
that objects share count for each of them, except subscriptions, which most members of a group have in common.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from sys import getsizeof

from kbroker.coordinator.group.classic.member import ClassicGroupMember
from kbroker.coordinator.group.classic.state import StoredGroup
from kbroker.coordinator.group.consumer.state import ConsumerMember, ResolvedRegex
from kbroker.coordinator.group.offsets.state import OffsetAndMetadata
from kbroker.coordinator.group.requests import JoinRequest
from kbroker.coordinator.group.share.state import ShareMember, StatePartitions
from kbroker.coordinator.group.topic_partitions import Partitions, TopicInfo

_GROUP = 1_200
_CLASSIC_MEMBER = 800  # with its timer
_PENDING_MEMBER = 500  # a member id that was given out, with its timer
_PROTOCOL = 160
_STORED_MEMBER = 200
_MEMBER = 1_500  # of a consumer or share group, with its timers and tables
_TOPIC = 250  # an entry of a table of topics
_PARTITION = 50  # in a set
_OWNED_PARTITION = 170  # in a set and in the tables of epochs and owners
_NAME = 60  # an entry of a set of names, beside the name
_OFFSET = 250
_PENDING_OFFSET = 450  # of an open transaction, beside the offset


@dataclass(slots=True)
class GroupCounts:
    """Sizes of a shard, for metrics and for the bounds on groups. Written by the loop thread, read by any."""

    groups: int = 0
    members: int = 0
    offsets: int = 0
    bytes: int = 0


class GroupMemory:
    """The bytes of one group without its offsets. They count for a shard from `attach` to `detach`."""

    __slots__ = ("_counts", "bytes")

    def __init__(self, group_id: str) -> None:
        self.bytes = of_group(group_id)
        self._counts: GroupCounts | None = None

    def add(self, difference: int) -> None:
        """The group has grown or (negative) shrunk."""
        self.bytes += difference
        if self._counts is not None:
            self._counts.bytes += difference

    def attach(self, counts: GroupCounts) -> None:
        """The group is in this shard's table."""
        self._counts = counts
        counts.bytes += self.bytes

    def detach(self) -> None:
        """The group is no longer in its shard's table."""
        if self._counts is not None:
            self._counts.bytes -= self.bytes
            self._counts = None


def of_group(group_id: str) -> int:
    """A group without members and offsets."""
    return _GROUP + getsizeof(group_id)


def of_offset(value: OffsetAndMetadata | None) -> int:
    """A committed offset; 0 for none."""
    if value is None:
        return 0
    return _OFFSET + getsizeof(value.metadata) if value.metadata else _OFFSET


def of_pending_offset(value: OffsetAndMetadata | None) -> int:
    """An offset that an open transaction has committed; None: a later record has superseded it."""
    return _PENDING_OFFSET + of_offset(value)


def of_names(names: Collection[str]) -> int:
    """A set of names."""
    return sum(map(getsizeof, names)) + _NAME * len(names)


def _of_texts(*texts: str | bytes | None) -> int:
    return sum(getsizeof(text) for text in texts if text is not None)


# -- classic groups ----------------------------------------------------------------------------------------------


def of_protocols(protocols: Iterable[tuple[str, bytes]]) -> int:
    """The protocols of a JoinGroup."""
    return sum(_PROTOCOL + getsizeof(name) + getsizeof(metadata) for name, metadata in protocols)


def of_classic_member(member: ClassicGroupMember | JoinRequest) -> int:
    """A member, or the one that a JoinGroup would add. Its assignment is the same object as in the stored group, and
    counts there."""
    named = _of_texts(member.member_id, member.group_instance_id, member.client_id, member.client_host)
    return _CLASSIC_MEMBER + named + of_protocols(member.protocols)


def of_pending_member(member_id: str) -> int:
    """A member id that was given out."""
    return _PENDING_MEMBER + getsizeof(member_id)


def of_stored(group: StoredGroup | None) -> int:
    """A classic group's record; 0 for none."""
    if group is None:
        return 0
    return sum(
        _STORED_MEMBER
        + _of_texts(member.member_id, member.group_instance_id, member.subscription, member.assignment)
        for member in group.members
    )


# -- consumer and share groups -----------------------------------------------------------------------------------


def of_partitions(partitions: Partitions | None) -> int:
    """Sets of partitions; 0 for none."""
    return 0 if partitions is None else sum(_TOPIC + _PARTITION * len(indexes) for indexes in partitions.values())


def of_consumer_member(member: ConsumerMember | None) -> int:
    """A member with its assignment, without its subscription; 0 for none."""
    if member is None:
        return 0
    metadata, current = member.metadata, member.current
    named = _of_texts(
        member.member_id,
        metadata.instance_id,
        metadata.rack_id,
        metadata.client_id,
        metadata.client_host,
        metadata.topic_regex,
        metadata.server_assignor,
    )
    classic = 0 if metadata.classic is None else of_protocols(metadata.classic.protocols)
    owned = sum(
        _TOPIC + _OWNED_PARTITION * len(indexes)
        for held in (current.assigned, current.pending_revocation)
        for indexes in held.values()
    )
    return _MEMBER + named + classic + owned


def of_share_member(member: ShareMember | None) -> int:
    """`of_consumer_member` for a member of a share group."""
    if member is None:
        return 0
    metadata = member.metadata
    named = _of_texts(member.member_id, metadata.rack_id, metadata.client_id, metadata.client_host)
    return _MEMBER + named + of_partitions(member.current.assigned)


def of_topics(topics: Mapping[str, TopicInfo] | None) -> int:
    """A table of topics; 0 for none."""
    return 0 if topics is None else of_names(topics) + _TOPIC * len(topics)


def of_regex(regex: str, resolved: ResolvedRegex | None) -> int:
    """An expression and its matches; 0 for none."""
    return 0 if resolved is None else _TOPIC + getsizeof(regex) + of_names(resolved.topics)


def of_state_partitions(partitions: StatePartitions | None) -> int:
    """The partitions of a share group that have state; 0 for none."""
    if partitions is None:
        return 0
    topics = [*partitions.initializing.values(), *partitions.initialized.values()]
    held = sum(_TOPIC + getsizeof(topic.name) + _PARTITION * len(topic.partitions) for topic in topics)
    return held + of_names(partitions.deleting.values())
