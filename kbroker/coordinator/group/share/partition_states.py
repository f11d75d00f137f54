"""What the state store is doing for the share groups of one shard, and which requests wait for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

from kbroker.coordinator.group.share.state import StateKey
from kbroker.coordinator.runtime.result import Result, complete
from kbroker.coordinator.share_state.store import UNKNOWN_START_OFFSET, SharePartitionState, ShareStateStore
from kbroker.errors import ErrorCode, KafkaError
from kbroker.futures import chain_future, completed, gather_errors

logger = logging.getLogger(__name__)

S = TypeVar("S")  # the shard

# Runs an operation on the shard that holds the group at that time. Any thread.
Resume: TypeAlias = Callable[[str, Callable[[S], Result | None]], None]
Outcomes = Mapping[StateKey, ErrorCode]
# What follows from the outcome of calls to the store.
Then: TypeAlias = Callable[[S, Outcomes], Result | None]


class PartitionStates(Generic[S]):
    """Of one shard, until that is unloaded: the next one finds by its records what is left to do. Loop thread only.

    `on_member_left(group id, member id)` is called for each member that leaves or is removed.
    """

    def __init__(
        self,
        store: ShareStateStore,
        resume: Resume[S],
        on_member_left: Callable[[str, str], None],
    ) -> None:
        self.store = store
        self.on_member_left = on_member_left
        self._resume = resume
        self._is_active = True
        self._running: dict[str, set[StateKey]] = {}
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._parked: dict[Future[Any], Callable[[ErrorCode], Any]] = {}

    # -- calls to the store --------------------------------------------------------------------------------------

    def is_busy(self, group_id: str) -> bool:
        """True if the store is doing something for the group."""
        return group_id in self._running

    def run(self, group_id: str, calls: Mapping[StateKey, Callable[[], Future[None]]], then: Then[S]) -> None:
        """Makes these calls; when all have ended, `then` runs as an operation of the group's shard."""
        self._running.setdefault(group_id, set()).update(calls)
        started = [_started(call) for call in calls.values()]

        def ended(done: Future[list[BaseException | None]]) -> None:
            outcomes = {
                key: _error_of(error, group_id, key) for key, error in zip(calls, done.result(), strict=True)
            }
            self._resume(group_id, partial(self._ended, group_id, outcomes, then))

        gather_errors(started).add_done_callback(ended)

    def _ended(self, group_id: str, outcomes: Outcomes, then: Then[S], shard: S) -> Result | None:
        if not self._is_active:
            return None
        running = self._running.get(group_id)
        if running is not None:
            running.difference_update(outcomes)
            if not running:
                del self._running[group_id]
        return then(shard, outcomes)

    def initialize(self, group_id: str, key: StateKey, state_epoch: int, start_offset: int | None) -> Future[None]:
        """Creates a partition's state. A `start_offset` of None: the start is unknown, and an existing state is kept.

        Otherwise an existing state is replaced, under a state epoch above its own.
        """

        def create(before: SharePartitionState | None) -> Future[None]:
            if before is not None and start_offset is None:
                return completed(None)
            offset = UNKNOWN_START_OFFSET if start_offset is None else start_offset
            epoch = state_epoch if before is None else max(state_epoch, before.state_epoch + 1)
            return self.store.initialize(group_id, *key, epoch, offset)

        return chain_future(self.store.read(group_id, *key), create)

    def idle(self, group_id: str, keys: Iterable[StateKey]) -> list[StateKey]:
        """Those of the partitions for which the store is doing nothing."""
        running = self._running.get(group_id, set())
        return [key for key in keys if key not in running]

    # -- waiting requests ------------------------------------------------------------------------------------------

    def park(self, future: Future[Any], error_response: Callable[[ErrorCode], Any]) -> None:
        """Keeps a request that will be answered later; a stop answers it with an error."""
        self._parked[future] = error_response
        future.add_done_callback(lambda done: self._parked.pop(done, None))

    def wait(self, group_id: str, resume: Callable[[], None]) -> None:
        """Calls `resume` when the store has created the awaited state, or has failed to."""
        self._waiting.setdefault(group_id, []).append(resume)

    def release(self, group_id: str) -> None:
        """Resumes what waits for the group's partitions."""
        for resume in self._waiting.pop(group_id, ()):
            resume()

    def deactivate(self, error: ErrorCode) -> None:
        """Answers every parked request with an error; what the store does from now on has no consequences."""
        self._is_active = False
        self._waiting.clear()
        for future, error_response in list(self._parked.items()):
            complete(future, error_response(error))


def _started(call: Callable[[], Future[None]]) -> Future[None]:
    try:
        return call()
    except Exception as error:  # of this partition alone
        failed: Future[None] = Future()
        failed.set_exception(error)
        return failed


def _error_of(error: BaseException | None, group_id: str, key: StateKey) -> ErrorCode:
    if error is None:
        return ErrorCode.NONE
    if isinstance(error, KafkaError):
        logger.info("group %s: share state of %s-%d: %s", group_id, key[0].hex(), key[1], error)
        return error.code
    logger.error("group %s: share state of %s-%d failed", group_id, key[0].hex(), key[1], exc_info=error)
    return ErrorCode.UNKNOWN_SERVER_ERROR
