"""The share partitions in memory: loaded at their first fetch, dropped when their state or their topic is deleted.

Those of a group without sessions are dropped too, each once no member holds records of it and its state is durable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from kbroker._fast.wal.commit import CallbackWaiter
from kbroker.coordinator.runtime.event_loop import EventLoop, loop_thread_only
from kbroker.coordinator.share_state.store import UNKNOWN_START_OFFSET, ShareKey, SharePartitionState, ShareStateStore
from kbroker.errors import ErrorCode, KafkaError
from kbroker.share.settings import ShareSettings
from kbroker.share.share_partition import SharePartition
from kbroker.share.start_offset import OffsetForTime, first_offset

logger = logging.getLogger(__name__)

# (log, offset, upper, max bytes, callback): kbroker.log.cold_read.ColdReader.request.
ReadCold = Callable[[Any, int, int, int, Callable[[list[memoryview] | ErrorCode], None]], None]


class WaitingFetch(Protocol):
    """A fetch that waits for records of its partitions."""

    @property
    def open(self) -> bool:
        """False once it is answered."""
        ...

    def attempt(self) -> None:
        """Takes what there is."""
        ...


class Shared:
    """One partition in one group: its share partition, once loaded, and the fetches that wait for it.

    Loop thread only, except `on_data` and `progress_later`. `log` is the Partition that is read.
    """

    def __init__(self, cache: PartitionCache, key: ShareKey, log: Any) -> None:
        self.key = key
        self.log = log
        self.leader_epoch: int = log.leader_epoch
        self.partition: SharePartition | None = None
        self.failure: ErrorCode | None = None  # why it was not loaded, or was dropped; waiting fetches end with it
        self._cache = cache
        self._waiting: dict[WaitingFetch, None] = {}
        self._reading = False  # objects, for one fetch
        self._waiter = CallbackWaiter(self.on_data)
        self._parked = False
        self._posted = False

    def settings(self) -> ShareSettings:
        """Those of the group, as of now."""
        return self._cache.settings_of(self.key.group_id)

    # -- reading -------------------------------------------------------------------------------------------------

    def readable(self, offset: int) -> tuple[int, int] | None:
        """(offset to read, end of the read) at or above `offset`; None: nothing now. Raises KafkaError if it failed."""
        if self.failure is not None:
            raise KafkaError(self.failure)
        if self.log.leader_epoch < 0:  # the cache drops it in a moment
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self.partition is None or self._reading:
            return None
        self.partition.log_starts_at(self.log.log_start_offset)
        position = self.partition.position(offset)
        if position is None:
            return None
        upper = self.log.last_stable_offset() if self.settings().read_committed else self.log.high_watermark()
        return (position, upper) if position < upper else None

    def available_bytes(self, limit: int) -> int:
        """The bytes that a fetch could read, at most `limit`."""
        try:
            found = self.readable(0)
        except KafkaError:
            return limit
        return 0 if found is None else self.log.available_bytes(*found, limit)

    def read_cold(
        self, position: int, upper: int, max_bytes: int, on_read: Callable[[list[memoryview] | ErrorCode], None]
    ) -> None:
        """Reads objects; no other fetch reads the partition until `on_read` is called, on the loop thread."""
        self._reading = True
        loop = self._cache.loop

        def back(result: list[memoryview] | ErrorCode) -> None:
            self._reading = False
            on_read(result)
            if result and not isinstance(result, ErrorCode):
                self.progress()

        try:
            self._cache.read_cold(
                self.log.log, position, upper, max_bytes, lambda result: loop.post(partial(back, result))
            )
        except BaseException:
            self._reading = False
            raise

    # -- waiting -------------------------------------------------------------------------------------------------

    def wait(self, fetch: WaitingFetch) -> None:
        """Retries the fetch when there may be records."""
        self._waiting[fetch] = None
        if not self._parked:
            self._parked = True
            self.log.waiters.park(self._waiter)
            # Records may have arrived between the fetch's attempt and the parking.
            self.progress_later()

    def leave(self, fetch: WaitingFetch) -> None:
        """The fetch no longer waits."""
        self._waiting.pop(fetch, None)
        if not self._waiting and self._parked:
            self._parked = False
            self.log.waiters.leave(self._waiter)

    def on_data(self) -> None:
        """The log has more records, or a higher last stable offset. Any thread."""
        if not self._posted:
            self.progress_later()

    def progress_later(self) -> None:
        """Posts `progress`, after the callbacks that are queued now. Any thread."""
        self._posted = True
        self._cache.loop.post(self.progress)

    def progress(self) -> None:
        """Retries waiting fetches, the oldest first, while there is something for them."""
        self._posted = False
        for fetch in list(self._waiting):
            try:
                if self.readable(0) is None:
                    return
            except KafkaError:
                pass  # each fetch reports it
            if fetch.open:
                fetch.attempt()

    def end(self, error: ErrorCode) -> None:
        """It was dropped from the cache."""
        if self.partition is not None:
            self.partition.close()
            self.partition = None
        self.failure = error
        self.progress()


class PartitionCache:
    """Loop thread only, except `len()`. `find_log` gives the Partition of a topic id and index, or None.

    `is_used` is true if there are sessions in a group.
    """

    def __init__(
        self,
        loop: EventLoop,
        store: ShareStateStore,
        *,
        find_log: Callable[[bytes, int], Any],
        settings_of: Callable[[str], ShareSettings],
        read_cold: ReadCold,
        offset_for_time: OffsetForTime,
        now_ms: Callable[[], int],
        is_used: Callable[[str], bool],
    ) -> None:
        self.loop = loop
        self.settings_of = settings_of
        self.read_cold = read_cold
        self._store = store
        self._find_log = find_log
        self._offset_for_time = offset_for_time
        self._now_ms = now_ms
        self._is_used = is_used
        self._groups: dict[str, dict[ShareKey, Shared]] = {}

    def __len__(self) -> int:
        return sum(len(shared) for shared in list(self._groups.values()))

    @loop_thread_only
    def get(self, key: ShareKey) -> Shared | ErrorCode:
        """The partition, whose load begins if it is new, or an error: UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION,
        NOT_LEADER_OR_FOLLOWER."""
        log = self._find_log(key.topic_id, key.partition)
        known = self._groups.get(key.group_id, {}).get(key)
        if log is None:
            if known is not None:
                self.drop(key)
            known_topic = self._find_log(key.topic_id, 0) is not None
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if known_topic else ErrorCode.UNKNOWN_TOPIC_ID
        if log.leader_epoch < 0:
            if known is not None:
                self.drop(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if known is not None and known.log is not log:  # of an earlier leadership
            self.drop(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            known = None
        if known is None:
            known = Shared(self, key, log)
            self._groups.setdefault(key.group_id, {})[key] = known
            self._load(known)
        return known

    def loaded(self, key: ShareKey) -> SharePartition | None:
        """The share partition if it is in memory and loaded."""
        shared = self._groups.get(key.group_id, {}).get(key)
        return None if shared is None else shared.partition

    def of_group(self, group_id: str) -> list[SharePartition]:
        """All of a group that are loaded."""
        shared = self._groups.get(group_id, {}).values()
        return [one.partition for one in shared if one.partition is not None]

    @loop_thread_only
    def drop(self, key: ShareKey, error: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) -> None:
        """Drops a partition; waiting fetches end with `error`, the next fetch loads it again."""
        group = self._groups.get(key.group_id, {})
        shared = group.pop(key, None)
        if not group:
            self._groups.pop(key.group_id, None)
        if shared is not None:
            shared.end(error)

    @loop_thread_only
    def drop_resigned(self, topic_id: bytes, index: int) -> None:
        """Drops a partition in all groups, unless it is led here once more."""
        for group_id, group in list(self._groups.items()):
            key = ShareKey(group_id, topic_id, index)
            shared = group.get(key)
            if shared is not None and shared.log.leader_epoch < 0:
                self.drop(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def drop_unused(self, group_id: str) -> None:
        """Drops the partitions of a group without sessions; those that are not idle follow when they are."""
        if not self._is_used(group_id):
            for shared in list(self._groups.get(group_id, {}).values()):
                if shared.partition is None or shared.partition.is_idle:
                    self.drop(shared.key)

    def _progressed(self, shared: Shared) -> None:
        shared.progress()
        if not self._is_used(shared.key.group_id) and shared.partition is not None and shared.partition.is_idle:
            self.drop(shared.key)

    def close(self) -> None:
        """Drops all partitions."""
        for group_id in list(self._groups):
            for key in list(self._groups[group_id]):
                self.drop(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # -- loading -------------------------------------------------------------------------------------------------

    def _load(self, shared: Shared) -> None:
        read = self._store.read(*shared.key)
        read.add_done_callback(lambda done: self.loop.post(partial(self._loading, shared, self._read, done)))

    def _loading(self, shared: Shared, then: Callable[[Shared, Any], None], done: Future[Any]) -> None:
        """Continues a load, unless the partition was dropped meanwhile."""
        if shared.failure is not None:
            return
        try:
            then(shared, done.result())
        except KafkaError as error:
            logger.warning("share partition %s: %s", shared.key, error)
            self.drop(shared.key, ErrorCode.NOT_LEADER_OR_FOLLOWER)  # which clients retry
        except Exception:
            logger.exception("share partition %s could not be loaded", shared.key)
            self.drop(shared.key, ErrorCode.UNKNOWN_SERVER_ERROR)

    def _read(self, shared: Shared, state: SharePartitionState | None) -> None:
        if state is None:  # the group does not read it, or does not yet
            self.drop(shared.key)
        elif state.start_offset != UNKNOWN_START_OFFSET:
            self._loaded(shared, state)
        else:
            found = first_offset(shared.log, shared.settings(), self._now_ms(), self._offset_for_time)
            then = partial(self._placed, state)
            found.add_done_callback(lambda done: self.loop.post(partial(self._loading, shared, then, done)))

    def _placed(self, state: SharePartitionState, shared: Shared, offset: int) -> None:
        """The start offset becomes durable before anything is read: a crash must not move it."""
        state = state._replace(start_offset=offset)
        written = self._store.write(*shared.key, state.state_epoch, shared.leader_epoch, offset, 0, ())
        written.add_done_callback(
            lambda done: self.loop.post(
                partial(self._loading, shared, lambda shared, _: self._loaded(shared, state), done)
            )
        )

    def _loaded(self, shared: Shared, state: SharePartitionState) -> None:
        shared.partition = SharePartition(
            shared.key,
            state,
            leader_epoch=shared.leader_epoch,
            store=self._store,
            loop=self.loop,
            settings=shared.settings,
            on_progress=partial(self._progressed, shared),
            on_fenced=partial(self.drop, shared.key, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        )
        shared.progress()
