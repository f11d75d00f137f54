"""One decision on a share group (KIP-932)."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from kbroker.coordinator.group.assignor import MemberSpec
from kbroker.coordinator.group.share.epochs import ShareEpochs
from kbroker.coordinator.group.share.simple_assignor import assign_simple
from kbroker.coordinator.group.share.state import (
    ShareAssignment,
    ShareEpoch,
    ShareEpochRecord,
    ShareMember,
    ShareMetadata,
    StatePartitions,
    StatePartitionsRecord,
    StateTopic,
)
from kbroker.coordinator.group.table import GroupTable
from kbroker.coordinator.group.topic_partitions import NO_PARTITIONS, TopicInfo
from kbroker.coordinator.group.update import GroupUpdate


class ShareUpdate(GroupUpdate[ShareEpochs, ShareMember, frozenset[str]]):
    """Call the steps in the order in which they are defined."""

    MEMBER = ShareMember

    def __init__(self, shard: GroupTable, group: ShareEpochs) -> None:
        super().__init__(shard, group)
        self.partitions = group.partitions

    @staticmethod
    def subscription_of(metadata: ShareMetadata) -> frozenset[str]:
        return metadata.topic_names

    @staticmethod
    def names_in(subscription: frozenset[str]) -> frozenset[str]:
        return subscription

    # -- topics and epochs ---------------------------------------------------------------------------------------

    def topics(self) -> dict[str, TopicInfo]:
        """The subscribed topics that exist."""
        return self._existing(frozenset[str]().union(*self._subscriptions))

    def put_partitions(self, partitions: StatePartitions) -> None:
        """Sets which partitions have share state."""
        if partitions != self.partitions:
            self.partitions = partitions
            self.records.append(StatePartitionsRecord(self.group.group_id, partitions if partitions else None))

    def refresh(self, *, bump: bool) -> None:
        """Looks at the subscribed topics: begins a new group epoch if they or (`bump`) something else changed, and
        notes which of their partitions are still to get share state."""
        topics = self.topics()
        metadata_hash = hash_of(topics)
        if bump or metadata_hash != self.group.metadata_hash:
            self.epoch += 1
            self.records.append(ShareEpochRecord(self.group.group_id, ShareEpoch(self.epoch, metadata_hash)))
        wanted = {}
        for name, info in topics.items():
            if info.topic_id not in self.partitions.deleting:
                missing = frozenset(range(info.partition_count)) - self.partitions.held(info.topic_id)
                if missing:
                    wanted[info.topic_id] = StateTopic(name, missing)
        if wanted:
            self.put_partitions(self.partitions.with_initializing(wanted))

    def retarget(self) -> None:
        """Computes the target assignment if it is older than the group epoch: of partitions that have share state."""
        if self.epoch <= self.target_epoch:
            return
        topics = self.topics()
        topic_ids = {
            names: frozenset(topics[name].topic_id for name in names if name in topics) for names in self._subscriptions
        }
        specs = {
            member_id: MemberSpec(
                None, topic_ids[member.metadata.topic_names], self.target.get(member_id, NO_PARTITIONS)
            )
            for member_id, member in self.members.items()
        }
        self._put_target(assign_simple(specs, {info.topic_id: self._ready_count(info) for info in topics.values()}))

    def _ready_count(self, info: TopicInfo) -> int:
        """So many of the topic's first partitions have share state."""
        ready = self.partitions.ready(info.topic_id)
        return next((index for index in range(info.partition_count) if index not in ready), info.partition_count)

    def reconcile(self, member_id: str) -> ShareMember:
        """Brings a member to its target; returns it as it is then."""
        current = self.members[member_id].current
        if current.member_epoch != self.target_epoch:
            target = self.target.get(member_id, NO_PARTITIONS)
            self.put_current(member_id, ShareAssignment(self.target_epoch, current.member_epoch, target))
        return self.members[member_id]


def hash_of(topics: Mapping[str, TopicInfo]) -> int:
    """A hash of topics with their ids and partition counts, as a signed 64-bit number; 0 for none."""
    if not topics:
        return 0
    digest = blake2b(digest_size=8)
    for name, info in sorted(topics.items()):
        digest.update(b"%d:%s" % (len(name), name.encode()) + info.topic_id + info.partition_count.to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True)
