"""One decision on a share group: the records it takes, and the group as they will leave it.

Nothing of the group itself changes here; that happens when the records are replayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b

from kbroker.coordinator.group.assignor import MemberSpec
from kbroker.coordinator.group.memory import of_names, of_partitions, of_share_member, of_state_partitions
from kbroker.coordinator.group.records import Record
from kbroker.coordinator.group.share.epochs import ShareEpochs
from kbroker.coordinator.group.share.simple_assignor import assign_simple
from kbroker.coordinator.group.share.state import (
    ShareAssignment,
    ShareCurrentRecord,
    ShareEpoch,
    ShareEpochRecord,
    ShareMember,
    ShareMemberRecord,
    ShareMetadata,
    ShareTargetEpochRecord,
    ShareTargetRecord,
    StatePartitions,
    StatePartitionsRecord,
    StateTopic,
)
from kbroker.coordinator.group.table import GroupTable
from kbroker.coordinator.group.topic_partitions import NO_PARTITIONS, TopicInfo


class ShareUpdate:
    """Lives for one operation. Call the steps in the order in which they are defined."""

    def __init__(self, shard: GroupTable, group: ShareEpochs) -> None:
        self.records: list[Record] = []
        self.group = group
        self.members = dict(group.members)
        self.epoch = group.group_epoch
        self.target_epoch = group.target_epoch
        self.partitions = group.partitions
        self._shard = shard
        self._target = group.target
        self._subscriptions = Counter(group.subscriptions)

    # -- members -------------------------------------------------------------------------------------------------

    def put_metadata(self, member_id: str, metadata: ShareMetadata) -> bool:
        """Adds or changes a member; True if that changes what the group subscribes to."""
        before = self.members.get(member_id)
        if before is not None and before.metadata == metadata:
            return False
        self.records.append(ShareMemberRecord(self.group.group_id, member_id, metadata))
        if before is None:
            self.members[member_id] = ShareMember(member_id, metadata)
        else:
            self.members[member_id] = replace(before, metadata=metadata)
            self._unsubscribe(before)
        self._subscriptions[metadata.topic_names] += 1
        return before is None or before.metadata.topic_names != metadata.topic_names

    def remove(self, member_id: str) -> None:
        """Takes a member out."""
        self._unsubscribe(self.members.pop(member_id))
        group_id = self.group.group_id
        self.records += [
            ShareCurrentRecord(group_id, member_id, None),
            ShareTargetRecord(group_id, member_id, None),
            ShareMemberRecord(group_id, member_id, None),
        ]

    def _unsubscribe(self, member: ShareMember) -> None:
        names = member.metadata.topic_names
        self._subscriptions[names] -= 1
        if not self._subscriptions[names]:
            del self._subscriptions[names]

    # -- topics and epochs ---------------------------------------------------------------------------------------

    def topics(self) -> dict[str, TopicInfo]:
        """The subscribed topics that exist."""
        catalog, found = self._shard.environment.topics, {}
        for name in frozenset[str]().union(*self._subscriptions):
            info = catalog.info(name)
            if info is not None:
                found[name] = info
        return found

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
        group_id, topics = self.group.group_id, self.topics()
        topic_ids = {
            names: frozenset(topics[name].topic_id for name in names if name in topics) for names in self._subscriptions
        }
        specs = {
            member_id: MemberSpec(
                None, topic_ids[member.metadata.topic_names], self._target.get(member_id, NO_PARTITIONS)
            )
            for member_id, member in self.members.items()
        }
        target = assign_simple(specs, {info.topic_id: self._ready_count(info) for info in topics.values()})
        for member_id, partitions in target.items():
            before = self._target.get(member_id)
            if before is None or (before is not partitions and before != partitions):
                self.records.append(ShareTargetRecord(group_id, member_id, partitions))
        self._target = target
        self.target_epoch = self.epoch
        self.records.append(ShareTargetEpochRecord(group_id, self.epoch))

    def _ready_count(self, info: TopicInfo) -> int:
        """So many of the topic's first partitions have share state."""
        ready = self.partitions.ready(info.topic_id)
        return next((index for index in range(info.partition_count) if index not in ready), info.partition_count)

    def reconcile(self, member_id: str) -> ShareMember:
        """Brings a member to its target; returns it as it is then."""
        member = self.members[member_id]
        if member.current.member_epoch != self.target_epoch:
            current = ShareAssignment(
                self.target_epoch, member.current.member_epoch, self._target.get(member_id, NO_PARTITIONS)
            )
            member = self.members[member_id] = replace(member, current=current)
            self.records.append(ShareCurrentRecord(self.group.group_id, member_id, current))
        return member

    # -- memory --------------------------------------------------------------------------------------------------

    def check_room(self, member_id: str) -> None:
        """Raises GROUP_MAX_SIZE_REACHED if there is no memory for the metadata that the member has sent.

        A member that sends nothing new is never refused, whatever the assignment adds.
        """
        known = self.group.members.get(member_id)
        if known is None or known.metadata != self.members[member_id].metadata:
            self._shard.check_room(self.growth(), newcomer=known is None)

    def growth(self) -> int:
        """By how many bytes the group will grow."""
        group, members = self.group, set()
        growth = 0 if group.group_id in self._shard.groups else group.memory.bytes
        growth += of_state_partitions(self.partitions) - of_state_partitions(group.partitions)
        for record in self.records:
            if isinstance(record, ShareMemberRecord | ShareCurrentRecord):
                members.add(record.member_id)
            elif isinstance(record, ShareTargetRecord):
                growth += of_partitions(record.partitions) - of_partitions(group.target.get(record.member_id))
        for member_id in members:
            growth += of_share_member(self.members.get(member_id)) - of_share_member(group.members.get(member_id))
        for names in self._subscriptions.keys() - group.subscriptions.keys():
            growth += of_names(names)
        for names in group.subscriptions.keys() - self._subscriptions.keys():
            growth -= of_names(names)
        return growth


def hash_of(topics: Mapping[str, TopicInfo]) -> int:
    """A hash of topics with their ids and partition counts, as a signed 64-bit number; 0 for none."""
    if not topics:
        return 0
    digest = blake2b(digest_size=8)
    for name, info in sorted(topics.items()):
        digest.update(b"%d:%s" % (len(name), name.encode()) + info.topic_id + info.partition_count.to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True)
