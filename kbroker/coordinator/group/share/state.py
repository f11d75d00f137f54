"""The durable state of a share group (KIP-932): what its records say. Immutable; a change is a new record."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kbroker.coordinator.group.topic_partitions import NO_PARTITIONS, Partitions

JOIN_EPOCH = 0
LEAVE_EPOCH = -1

StateKey = tuple[bytes, int]  # topic id and partition


@dataclass(frozen=True, slots=True)
class ShareMetadata:
    """Identity and subscription of a member."""

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()


def _nothing() -> Partitions:
    return NO_PARTITIONS


@dataclass(frozen=True, slots=True)
class ShareAssignment:
    """What a member may read now; others may read the same."""

    member_epoch: int = JOIN_EPOCH
    previous_member_epoch: int = JOIN_EPOCH  # accepted too where the answer with the newer one was lost
    assigned: Partitions = field(default_factory=_nothing)


@dataclass(frozen=True, slots=True)
class ShareMember:
    """A member of a share group."""

    member_id: str
    metadata: ShareMetadata = ShareMetadata()
    current: ShareAssignment = ShareAssignment()


class ShareEpoch(NamedTuple):
    """The group epoch, and a hash of the subscribed topics as they were when it began."""

    epoch: int
    metadata_hash: int


class StateTopic(NamedTuple):
    """Partitions of a topic in the group's state."""

    name: str
    partitions: frozenset[int]




@dataclass(frozen=True, slots=True)
class StatePartitions:
    """Which partitions have share state (topic id -> partitions), and which are to get or to lose it.

    Members are assigned initialized partitions only. A partition is in one of the first two at most.
    """

    initializing: Mapping[bytes, StateTopic] = field(default_factory=dict)
    initialized: Mapping[bytes, StateTopic] = field(default_factory=dict)
    deleting: Mapping[bytes, str] = field(default_factory=dict)  # names of topics

    def __bool__(self) -> bool:
        return bool(self.initializing or self.initialized or self.deleting)

    @property
    def names(self) -> Iterator[str]:
        """The names of all topics in it."""
        for topics in (self.initializing, self.initialized):
            for topic in topics.values():
                yield topic.name
        yield from self.deleting.values()

    def held(self, topic_id: bytes) -> frozenset[int]:
        """The topic's partitions that have state or are to get it."""
        return _partitions(self.initializing, topic_id) | _partitions(self.initialized, topic_id)

    def ready(self, topic_id: bytes) -> frozenset[int]:
        """The topic's partitions that have state."""
        return _partitions(self.initialized, topic_id)

    def with_initializing(self, topics: Mapping[bytes, StateTopic]) -> StatePartitions:
        """These are to get state too."""
        return replace(self, initializing=_merged(self.initializing, topics))

    def with_initialized(self, keys: Collection[StateKey]) -> StatePartitions:
        """Those of these that were to get state have it."""
        done = _chosen(self.initializing, keys)
        return replace(
            self, initializing=_without(self.initializing, done), initialized=_merged(self.initialized, done)
        )

    def without_initializing(self, keys: Collection[StateKey]) -> StatePartitions:
        """These are not to get state any more."""
        return replace(self, initializing=_without(self.initializing, _chosen(self.initializing, keys)))

    def with_deleting(self, topics: Mapping[bytes, str]) -> StatePartitions:
        """These topics are to lose their state."""
        return replace(
            self,
            initializing={topic_id: topic for topic_id, topic in self.initializing.items() if topic_id not in topics},
            initialized={topic_id: topic for topic_id, topic in self.initialized.items() if topic_id not in topics},
            deleting={**self.deleting, **topics},
        )

    def without(self, topic_ids: Collection[bytes]) -> StatePartitions:
        """Nothing of these topics is left."""
        kept = self.with_deleting(dict.fromkeys(topic_ids, ""))
        return replace(
            kept, deleting={topic_id: name for topic_id, name in self.deleting.items() if topic_id not in topic_ids}
        )


def keys_of(topics: Mapping[bytes, StateTopic]) -> list[StateKey]:
    """Each partition of these topics."""
    return [(topic_id, partition) for topic_id, topic in topics.items() for partition in sorted(topic.partitions)]


def _partitions(topics: Mapping[bytes, StateTopic], topic_id: bytes) -> frozenset[int]:
    topic = topics.get(topic_id)
    return frozenset() if topic is None else topic.partitions


def _merged(one: Mapping[bytes, StateTopic], other: Mapping[bytes, StateTopic]) -> dict[bytes, StateTopic]:
    merged = dict(one)
    for topic_id, topic in other.items():
        merged[topic_id] = StateTopic(topic.name, topic.partitions | _partitions(merged, topic_id))
    return merged


def _chosen(topics: Mapping[bytes, StateTopic], keys: Collection[StateKey]) -> dict[bytes, StateTopic]:
    wanted: dict[bytes, set[int]] = {}
    for topic_id, partition in keys:
        wanted.setdefault(topic_id, set()).add(partition)
    chosen = {
        topic_id: StateTopic(topics[topic_id].name, topics[topic_id].partitions & partitions)
        for topic_id, partitions in wanted.items()
        if topic_id in topics
    }
    return {topic_id: topic for topic_id, topic in chosen.items() if topic.partitions}


def _without(one: Mapping[bytes, StateTopic], other: Mapping[bytes, StateTopic]) -> dict[bytes, StateTopic]:
    rest = {
        topic_id: StateTopic(topic.name, topic.partitions - _partitions(other, topic_id))
        for topic_id, topic in one.items()
    }
    return {topic_id: topic for topic_id, topic in rest.items() if topic.partitions}


class ShareMemberRecord(NamedTuple):
    """Type 10: a member."""

    group_id: str
    member_id: str
    metadata: ShareMetadata | None


class ShareEpochRecord(NamedTuple):
    """Type 11: the group and its epoch; None removes the group."""

    group_id: str
    epoch: ShareEpoch | None


class ShareTargetEpochRecord(NamedTuple):
    """Type 12: the epoch of the target assignment."""

    group_id: str
    epoch: int | None


class ShareTargetRecord(NamedTuple):
    """Type 13: a member's target assignment."""

    group_id: str
    member_id: str
    partitions: Partitions | None


class ShareCurrentRecord(NamedTuple):
    """Type 14: a member's current assignment."""

    group_id: str
    member_id: str
    current: ShareAssignment | None


class StatePartitionsRecord(NamedTuple):
    """Type 15: the partitions that have share state."""

    group_id: str
    partitions: StatePartitions | None


ShareGroupRecord = (
    ShareMemberRecord
    | ShareEpochRecord
    | ShareTargetEpochRecord
    | ShareTargetRecord
    | ShareCurrentRecord
    | StatePartitionsRecord
)
SHARE_GROUP_RECORDS = (
    ShareMemberRecord,
    ShareEpochRecord,
    ShareTargetEpochRecord,
    ShareTargetRecord,
    ShareCurrentRecord,
    StatePartitionsRecord,
)
