"""AlterShareGroupOffsets and DeleteShareGroupOffsets (KIP-932), and the deletion of a share group.

All of them need a group without members. The group's records come first, then the state store, then the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from kbroker.coordinator.group.share.epochs import ShareEpochs, not_found, not_share
from kbroker.coordinator.group.share.partition_states import Outcomes, PartitionStates, Then
from kbroker.coordinator.group.share.partitions import all_partitions, delete, ended, follow
from kbroker.coordinator.group.share.state import StateKey, StateTopic, keys_of
from kbroker.coordinator.group.share.update import ShareUpdate
from kbroker.coordinator.group.table import GroupTable
from kbroker.coordinator.runtime.result import Result, complete
from kbroker.errors import ErrorCode, KafkaError

NO_OFFSETS = "There is no offset information to delete."


class Alteration(NamedTuple):
    """A partition's new start offset."""

    topic: str
    partition: int
    start_offset: int


class TopicOutcome(NamedTuple):
    """The outcome for one topic."""

    topic: str
    topic_id: bytes | None
    error: ErrorCode
    message: str | None = None


AlterOutcome = dict[tuple[str, int], ErrorCode]  # by topic and partition


def _idle_group(shard: GroupTable, group_id: str) -> tuple[ShareEpochs | None, PartitionStates[GroupTable]]:
    """The group, or None if there is none.

    Raises GROUP_ID_NOT_FOUND for another type, NON_EMPTY_GROUP, and the retriable COORDINATOR_LOAD_IN_PROGRESS while
    the store is busy with the group.
    """
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    shard.drop_if_abandoned(group_id)
    group, states = shard.find(ShareEpochs, group_id), shard.share_states
    if group is None and group_id in shard.groups:
        raise not_share(group_id)
    if group is not None and group.members:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
    if states is None:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if states.is_busy(group_id):
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return group, states


def initialized(shard: GroupTable, group_id: str) -> Result:
    """The partitions of the group that have share state; none for an unknown group or one of another type."""
    group = shard.find(ShareEpochs, group_id)
    return Result(response=[] if group is None else list(group.partitions.initialized.items()))


# -- alter -------------------------------------------------------------------------------------------------------


def alter(shard: GroupTable, group_id: str, wanted: Sequence[Alteration], future: Future[AlterOutcome]) -> Result:
    """Restarts these partitions at other offsets, and creates the group if necessary.

    The answer has an error for each partition. Raises KafkaError for the group.
    """
    group, states = _idle_group(shard, group_id)
    if group is None:
        shard.check_group_bound()
        group = ShareEpochs(group_id)
    outcome: AlterOutcome = {}
    starts: dict[StateKey, Alteration] = {}
    topics: dict[bytes, StateTopic] = {}
    for asked in wanted:
        info = shard.environment.topics.info(asked.topic)
        if info is None or not 0 <= asked.partition < info.partition_count:
            outcome[asked.topic, asked.partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif asked.start_offset < 0 or info.topic_id in group.partitions.deleting:
            outcome[asked.topic, asked.partition] = ErrorCode.INVALID_REQUEST
        else:
            starts[info.topic_id, asked.partition] = asked
            if asked.partition not in group.partitions.held(info.topic_id):
                known = topics.get(info.topic_id, StateTopic(asked.topic, frozenset()))
                topics[info.topic_id] = StateTopic(asked.topic, known.partitions | {asked.partition})
    if not starts:
        return Result(response=outcome)
    update = ShareUpdate(shard, group)
    update.refresh(bump=True)
    update.put_partitions(update.partitions.with_initializing(topics))
    shard.check_room(update.growth(), newcomer=group_id not in shard.groups)
    states.park(future, lambda error: error)
    epoch = update.epoch

    def altered(shard: GroupTable, outcomes: Outcomes) -> Result:
        outcome.update({(asked.topic, asked.partition): outcomes[key] for key, asked in starts.items()})
        return _altered(shard, group_id, outcomes, outcome, future)

    def begin(error: ErrorCode) -> None:
        if error:
            complete(future, error)
            return
        calls = {
            key: partial(states.initialize, group_id, key, epoch, asked.start_offset) for key, asked in starts.items()
        }
        states.run(group_id, calls, altered)

    return Result(records=update.records, on_complete=begin)


def _altered(
    shard: GroupTable, group_id: str, outcomes: Outcomes, outcome: AlterOutcome, future: Future[AlterOutcome]
) -> Result:
    group = shard.find(ShareEpochs, group_id)
    if group is None:
        complete(future, outcome)
        return Result()
    update = ShareUpdate(shard, group)
    partitions = update.partitions.with_initialized([key for key, error in outcomes.items() if not error])
    # A failed one must not be initialized later with an unknown offset, unless a member subscribes to it.
    update.put_partitions(partitions.without_initializing([key for key, error in outcomes.items() if error]))
    if update.members:
        update.refresh(bump=True)
        update.retarget()

    def done(error: ErrorCode) -> None:
        complete(future, error if error else outcome)
        follow(shard, group_id)

    return Result(records=update.records, on_complete=done)


# -- delete ------------------------------------------------------------------------------------------------------


def delete_offsets(
    shard: GroupTable, group_id: str, topics: Sequence[str], future: Future[list[TopicOutcome]]
) -> Result:
    """Removes the share state of topics. The answer has an outcome for each. Raises KafkaError for the group."""
    group, states = _idle_group(shard, group_id)
    if group is None:
        raise not_found(group_id)
    answer: list[TopicOutcome] = []
    going: dict[bytes, str] = {}
    for name in dict.fromkeys(topics):
        info = shard.environment.topics.info(name)
        if info is None:
            answer.append(TopicOutcome(name, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        elif group.partitions.ready(info.topic_id) or info.topic_id in group.partitions.deleting:
            going[info.topic_id] = name
        else:
            answer.append(TopicOutcome(name, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NO_OFFSETS))
    if not going:
        return Result(response=answer)

    def deleted(shard: GroupTable, outcomes: Outcomes) -> Result:
        errors = {topic_id: error for (topic_id, _), error in outcomes.items() if error}
        answer.extend(
            TopicOutcome(name, topic_id, errors.get(topic_id, ErrorCode.NONE)) for topic_id, name in going.items()
        )
        found = shard.find(ShareEpochs, group_id)
        result = Result() if found is None else ended(shard, found, going, outcomes)
        return _with_answer(result, future, answer)

    return _delete(shard, states, group, going, future, deleted)


def delete_group(shard: GroupTable, group: ShareEpochs, future: Future[ErrorCode]) -> Result:
    """Removes a group and all its share state. Raises KafkaError."""
    group_id = group.group_id
    if not group.partitions or shard.share_states is None:
        if group.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        return Result(records=list(group.tombstones()), response=ErrorCode.NONE)
    _, states = _idle_group(shard, group_id)
    topics = {**group.partitions.initializing, **group.partitions.initialized}
    going = {topic_id: topic.name for topic_id, topic in topics.items()} | dict(group.partitions.deleting)

    def deleted(shard: GroupTable, outcomes: Outcomes) -> Result:
        found = shard.find(ShareEpochs, group_id)
        if found is None:
            return _with_answer(Result(), future, ErrorCode.NONE)
        failed = next((error for error in outcomes.values() if error), None)
        if failed is None and not found.members:
            return _with_answer(Result(records=list(found.tombstones())), future, ErrorCode.NONE)
        return _with_answer(ended(shard, found, going, outcomes), future, failed or ErrorCode.NON_EMPTY_GROUP)

    return _delete(shard, states, group, going, future, deleted)


def _delete(
    shard: GroupTable,
    states: PartitionStates[GroupTable],
    group: ShareEpochs,
    going: Mapping[bytes, str],
    future: Future[Any],
    then: Then[GroupTable],
) -> Result:
    """Marks the topics, then removes their state; `then` answers."""
    update = ShareUpdate(shard, group)
    partitions, group_id = update.partitions, group.group_id
    keys = {key for topics in (partitions.initializing, partitions.initialized) for key in keys_of(topics)}
    keys = {key for key in keys if key[0] in going}
    for topic_id, name in going.items():
        keys.update((topic_id, index) for index in all_partitions(shard, topic_id, name))
    update.put_partitions(partitions.with_deleting(going))
    states.park(future, lambda error: error)

    def begin(error: ErrorCode) -> None:
        if error:
            complete(future, error)
        else:
            delete(states, group_id, sorted(keys), then)

    return Result(records=update.records, on_complete=begin)


def _with_answer(result: Result, future: Future, answer: object) -> Result:
    """The result, with an answer to a parked request once it is durable."""
    then = result.on_complete

    def done(error: ErrorCode) -> Result | None:
        complete(future, error if error else answer)
        return None if then is None else then(error)

    result.on_complete = done
    return result
