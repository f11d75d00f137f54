"""Share state of a group's partitions: it is made before members may read them, and goes when nobody can.

The records of a group say what is to be done (StatePartitions): that is decided first, and done once it is durable. So
a load finds what a crash cut short, and `follow` does it again. All of it may be repeated.

    subscribed ──► initializing ──state made──► initialized ──► deleting ──state gone──► (nothing)
                        ▲                            └──topic deleted: state gone──► (nothing)
                        └── tried again while it fails
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from kbroker.coordinator.group.share.group import ShareGroup
from kbroker.coordinator.group.share.state import StateKey, StatePartitions, keys_of
from kbroker.coordinator.group.share.update import ShareUpdate
from kbroker.coordinator.runtime.futures import settled
from kbroker.coordinator.runtime.result import Result, complete
from kbroker.coordinator.share_state.store import UNKNOWN_START_OFFSET, SharePartitionState, ShareStateStore
from kbroker.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kbroker.coordinator.group.shard import GroupShard

logger = logging.getLogger(__name__)

RETRY_MS = 1_000

# Runs an operation on whatever shard holds the group then. Any thread.
Resume = Callable[[str, Callable[["GroupShard"], Result | None]], None]
Outcomes = Mapping[StateKey, ErrorCode]
# What follows from the outcome of calls to the store.
Then = Callable[["GroupShard", Outcomes], Result | None]


class PartitionStates:
    """What the store is doing for the share groups of one shard, and who waits for it. Loop thread.

    `on_member_left(group id, member id)` is told of members that go.
    """

    def __init__(
        self,
        store: ShareStateStore,
        resume: Resume,
        on_member_left: Callable[[str, str], None],
    ) -> None:
        self.store = store
        self.on_member_left = on_member_left
        self._resume = resume
        self._running: dict[str, set[StateKey]] = {}
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._parked: dict[Future[Any], Callable[[ErrorCode], Any]] = {}

    # -- calls to the store --------------------------------------------------------------------------------------

    def is_busy(self, group_id: str) -> bool:
        """True if the store is doing something for the group."""
        return group_id in self._running

    def run(self, group_id: str, calls: Mapping[StateKey, Callable[[], Future[None]]], then: Then) -> None:
        """Makes these calls; `then` is run as an operation of the group's shard when all have ended."""
        self._running.setdefault(group_id, set()).update(calls)
        started = [_started(call) for call in calls.values()]

        def ended(done: Future[list[BaseException | None]]) -> None:
            outcomes = {
                key: _error_of(error, group_id, key) for key, error in zip(calls, done.result(), strict=True)
            }
            self._resume(group_id, partial(self._ended, group_id, outcomes, then))

        settled(started).add_done_callback(ended)

    def _ended(self, group_id: str, outcomes: Outcomes, then: Then, shard: GroupShard) -> Result | None:
        running = self._running.get(group_id)
        if running is not None:
            running.difference_update(outcomes)
            if not running:
                del self._running[group_id]
        return then(shard, outcomes)

    def initialize(self, group_id: str, key: StateKey, state_epoch: int, start_offset: int | None) -> Future[None]:
        """Makes a partition's state; None: of unknown start, unless there is a state.

        A state that is there is replaced under a state epoch above its own.
        """
        done: Future[None] = Future()

        def made(made: Future[None]) -> None:
            _copy(made, done)

        def known(read: Future[SharePartitionState | None]) -> None:
            try:
                before = read.result()
                if before is not None and start_offset is None:
                    complete(done, None)
                    return
                offset = UNKNOWN_START_OFFSET if start_offset is None else start_offset
                epoch = state_epoch if before is None else max(state_epoch, before.state_epoch + 1)
                self.store.initialize(group_id, *key, epoch, offset).add_done_callback(made)
            except BaseException as error:  # belongs to whoever waits for `done`
                done.set_exception(error)

        self.store.read(group_id, *key).add_done_callback(known)
        return done

    def idle(self, group_id: str, keys: Iterable[StateKey]) -> list[StateKey]:
        """Those of the partitions for which the store is doing nothing."""
        running = self._running.get(group_id, set())
        return [key for key in keys if key not in running]

    # -- who waits -----------------------------------------------------------------------------------------------

    def park(self, future: Future[Any], error_response: Callable[[ErrorCode], Any]) -> None:
        """Keeps a request that will be answered later; a stop answers it with an error."""
        self._parked[future] = error_response
        future.add_done_callback(lambda done: self._parked.pop(done, None))

    def wait(self, group_id: str, go_on: Callable[[], None]) -> None:
        """Calls `go_on` when the store has made what the group was waiting for, or failed to."""
        self._waiting.setdefault(group_id, []).append(go_on)

    def release(self, group_id: str) -> None:
        """Lets those go on who wait for the group's partitions."""
        for go_on in self._waiting.pop(group_id, ()):
            go_on()

    def deactivate(self, error: ErrorCode) -> None:
        """Answers every parked request with an error."""
        self._waiting.clear()
        for future, error_response in list(self._parked.items()):
            complete(future, error_response(error))


def follow(shard: GroupShard, group_id: str) -> None:
    """Does what the group's records say is to be done for its partitions. To be called when they are durable."""
    states, group = shard.share_states, shard.groups.get(group_id)
    if states is None or not isinstance(group, ShareGroup):
        return
    if group.partitions:
        _make(shard, states, group)
        _end(shard, states, group)
    if not states.is_busy(group_id):
        states.release(group_id)


def _make(shard: GroupShard, states: PartitionStates, group: ShareGroup) -> None:
    group_id, epoch = group.group_id, group.group_epoch
    there = {topic_id: topic for topic_id, topic in group.partitions.initializing.items()
             if _exists(shard, topic_id, topic.name)}  # fmt: skip
    keys = states.idle(group_id, keys_of(there))
    if keys:
        calls = {key: partial(states.initialize, group_id, key, epoch, None) for key in keys}
        states.run(group_id, calls, partial(_made, group_id))


def _made(group_id: str, shard: GroupShard, outcomes: Outcomes) -> Result | None:
    """Partitions have state: members may read them from here on."""
    group = shard.groups.get(group_id)
    if not isinstance(group, ShareGroup):
        return None
    update = ShareUpdate(shard, group)
    update.put_partitions(update.partitions.with_initialized([key for key, error in outcomes.items() if not error]))
    if update.records and update.members:
        update.refresh(bump=True)
        update.retarget()
    return _finish(shard, group_id, update, failed=any(outcomes.values()))


def _end(shard: GroupShard, states: PartitionStates, group: ShareGroup) -> None:
    """Removes the state of topics that are gone, and of those that are to lose it."""
    partitions, group_id = group.partitions, group.group_id
    gone = {
        topic_id
        for topics in (partitions.initializing, partitions.initialized)
        for topic_id, topic in topics.items()
        if not _exists(shard, topic_id, topic.name)
    }
    keys = [(topic_id, index) for topic_id in gone for index in sorted(partitions.held(topic_id))]
    for topic_id, name in partitions.deleting.items():
        keys += [(topic_id, index) for index in all_partitions(shard, topic_id, name)]
    topic_ids = gone | partitions.deleting.keys()
    if topic_ids and not states.is_busy(group_id):
        delete(states, group_id, keys, partial(_ended, group_id, frozenset(topic_ids)))


def delete(states: PartitionStates, group_id: str, keys: Iterable[StateKey], then: Then) -> None:
    """Removes the state of these partitions."""
    states.run(group_id, {key: partial(states.store.delete, group_id, *key) for key in keys}, then)


def _ended(group_id: str, topic_ids: frozenset[bytes], shard: GroupShard, outcomes: Outcomes) -> Result | None:
    group = shard.groups.get(group_id)
    if not isinstance(group, ShareGroup):
        return None
    return ended(shard, group, topic_ids, outcomes)


def ended(shard: GroupShard, group: ShareGroup, topic_ids: Iterable[bytes], outcomes: Outcomes) -> Result:
    """Topics have lost their state, but for those whose deletion failed."""
    failed = {topic_id for (topic_id, _), error in outcomes.items() if error}
    update = ShareUpdate(shard, group)
    update.put_partitions(update.partitions.without(set(topic_ids) - failed))
    if update.records and update.members:
        update.refresh(bump=False)  # a member may have subscribed to one of them meanwhile
    return _finish(shard, group.group_id, update, failed=bool(failed))


def _finish(shard: GroupShard, group_id: str, update: ShareUpdate, *, failed: bool) -> Result:
    def done(error: ErrorCode) -> None:
        states = shard.share_states
        if states is None:
            return
        if failed or error:
            states.release(group_id)
            shard.schedule(RETRY_MS, partial(_again, shard, group_id))
        else:
            follow(shard, group_id)

    return Result(records=update.records, on_complete=done)


def _again(shard: GroupShard, group_id: str) -> None:
    follow(shard, group_id)


def all_partitions(shard: GroupShard, topic_id: bytes, name: str) -> range:
    """The partitions of a topic; none if it is gone."""
    info = shard.environment.topics.info(name)
    return range(0 if info is None or info.topic_id != topic_id else info.partition_count)


def waits_for(partitions: StatePartitions, names: Iterable[str]) -> bool:
    """True if some of these topics are still to get state."""
    wanted = frozenset(names)
    return any(topic.name in wanted for topic in partitions.initializing.values())


def _exists(shard: GroupShard, topic_id: bytes, name: str) -> bool:
    info = shard.environment.topics.info(name)
    return info is not None and info.topic_id == topic_id


def _started(call: Callable[[], Future[None]]) -> Future[None]:
    try:
        return call()
    except Exception as error:  # belongs to the partition, not to the loop
        failed: Future[None] = Future()
        failed.set_exception(error)
        return failed


def _copy(source: Future[Any], target: Future[Any]) -> None:
    error = source.exception()
    if error is None:
        complete(target, source.result())
    else:
        target.set_exception(error)


def _error_of(error: BaseException | None, group_id: str, key: StateKey) -> ErrorCode:
    if error is None:
        return ErrorCode.NONE
    if isinstance(error, KafkaError):
        logger.info("group %s: share state of %s-%d: %s", group_id, key[0].hex(), key[1], error)
        return error.code
    logger.error("group %s: share state of %s-%d failed", group_id, key[0].hex(), key[1], exc_info=error)
    return ErrorCode.UNKNOWN_SERVER_ERROR
