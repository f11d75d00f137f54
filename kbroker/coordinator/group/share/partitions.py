"""Share state of a group's partitions: created before members may read them, removed when no member can.

The records of a group (StatePartitions) say what is to be done. That is decided first, and done once it is durable: so
a load finds what a crash has interrupted, and `follow` does it again. All of it may be repeated.

    subscribed ──► initializing ──state created──► initialized ──► deleting ──state removed──► (nothing)
                        ▲                              └──topic deleted: state removed──► (nothing)
                        └── retried while it fails
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from kbroker.coordinator.group.share.epochs import ShareEpochs
from kbroker.coordinator.group.share.partition_states import Outcomes, PartitionStates, Then
from kbroker.coordinator.group.share.state import StateKey, StatePartitions, keys_of
from kbroker.coordinator.group.share.update import ShareUpdate
from kbroker.coordinator.group.table import GroupTable
from kbroker.coordinator.runtime.result import Result
from kbroker.errors import ErrorCode

RETRY_MS = 1_000


def follow(shard: GroupTable, group_id: str) -> None:
    """Starts what the group's records say is to be done for its partitions. Call it when they are durable."""
    states, group = shard.share_states, shard.find(ShareEpochs, group_id)
    if states is None or group is None:
        return
    if group.partitions:
        _make(shard, states, group)
        _end(shard, states, group)
    if not states.is_busy(group_id):
        states.release(group_id)


def _make(shard: GroupTable, states: PartitionStates[GroupTable], group: ShareEpochs) -> None:
    group_id, epoch = group.group_id, group.group_epoch
    there = {topic_id: topic for topic_id, topic in group.partitions.initializing.items()
             if _exists(shard, topic_id, topic.name)}  # fmt: skip
    keys = states.idle(group_id, keys_of(there))
    if keys:
        calls = {key: partial(states.initialize, group_id, key, epoch, None) for key in keys}
        states.run(group_id, calls, partial(_made, group_id))


def _made(group_id: str, shard: GroupTable, outcomes: Outcomes) -> Result | None:
    """Partitions have state: members may read them from now on."""
    group = shard.find(ShareEpochs, group_id)
    if group is None:
        return None
    update = ShareUpdate(shard, group)
    update.put_partitions(update.partitions.with_initialized([key for key, error in outcomes.items() if not error]))
    if update.records and update.members:
        update.refresh(bump=True)
        update.retarget()
    return _finish(shard, group_id, update, failed=any(outcomes.values()))


def _end(shard: GroupTable, states: PartitionStates[GroupTable], group: ShareEpochs) -> None:
    """Removes the state of deleted topics, and of those that are to lose it."""
    partitions, group_id = group.partitions, group.group_id
    gone = {
        topic_id
        for topics in (partitions.initializing, partitions.initialized)
        for topic_id, topic in topics.items()
        if shard.environment.topics.is_deleted(topic.name, topic_id)
    }
    keys = [(topic_id, index) for topic_id in gone for index in sorted(partitions.held(topic_id))]
    for topic_id, name in partitions.deleting.items():
        keys += [(topic_id, index) for index in all_partitions(shard, topic_id, name)]
    topic_ids = gone | partitions.deleting.keys()
    if topic_ids and not states.is_busy(group_id):
        delete(states, group_id, keys, partial(_ended, group_id, frozenset(topic_ids)))


def delete(
    states: PartitionStates[GroupTable], group_id: str, keys: Iterable[StateKey], then: Then[GroupTable]
) -> None:
    """Removes the state of these partitions."""
    states.run(group_id, {key: partial(states.store.delete, group_id, *key) for key in keys}, then)


def _ended(group_id: str, topic_ids: frozenset[bytes], shard: GroupTable, outcomes: Outcomes) -> Result | None:
    group = shard.find(ShareEpochs, group_id)
    if group is None:
        return None
    return ended(shard, group, topic_ids, outcomes)


def ended(shard: GroupTable, group: ShareEpochs, topic_ids: Iterable[bytes], outcomes: Outcomes) -> Result:
    """Topics have lost their state, except those of which the deletion failed."""
    failed = {topic_id for (topic_id, _), error in outcomes.items() if error}
    update = ShareUpdate(shard, group)
    update.put_partitions(update.partitions.without(set(topic_ids) - failed))
    if update.records and update.members:
        update.refresh(bump=False)  # a member may have subscribed to one of them meanwhile
    return _finish(shard, group.group_id, update, failed=bool(failed))


def _finish(shard: GroupTable, group_id: str, update: ShareUpdate, *, failed: bool) -> Result:
    def done(error: ErrorCode) -> None:
        states = shard.share_states
        if states is None:
            return
        if failed or error:
            states.release(group_id)
            shard.schedule(RETRY_MS, partial(follow, shard, group_id))
        else:
            follow(shard, group_id)

    return Result(records=update.records, on_complete=done)


def follow_when_durable(shard: GroupTable, group_id: str) -> Callable[[ErrorCode], None]:
    """The `on_complete` of a decision that may have begun something for partitions of the group."""

    def durable(error: ErrorCode) -> None:
        if not error:
            follow(shard, group_id)

    return durable


def all_partitions(shard: GroupTable, topic_id: bytes, name: str) -> range:
    """The partitions of a topic; none if it is deleted."""
    info = shard.environment.topics.info(name)
    return range(0 if info is None or info.topic_id != topic_id else info.partition_count)


def waits_for(partitions: StatePartitions, names: Iterable[str]) -> bool:
    """True if some of these topics are still to get state."""
    wanted = frozenset(names)
    return any(topic.name in wanted for topic in partitions.initializing.values())


def _exists(shard: GroupTable, topic_id: bytes, name: str) -> bool:
    info = shard.environment.topics.info(name)
    return info is not None and info.topic_id == topic_id
