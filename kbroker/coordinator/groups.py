"""The group coordinator: what handlers call. Every method may be called by any thread and returns a Future."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from kbroker.clock import Clock
from kbroker.coordinator import (
    group_admin,
    group_session,
    join_group,
    offset_commit,
    offset_expiry,
    rebalance,
    sync_group,
)
from kbroker.coordinator.event_loop import EventLoop
from kbroker.coordinator.futures import gathered
from kbroker.coordinator.group_config import GroupConfig
from kbroker.coordinator.group_partition import group_partition
from kbroker.coordinator.group_session import Leaver
from kbroker.coordinator.group_shard import GroupCounts, GroupShard
from kbroker.coordinator.join_group import JoinRequest
from kbroker.coordinator.offset_commit import CommitRequest, FetchedOffsets
from kbroker.coordinator.result import complete
from kbroker.coordinator.shard_runtime import Request, ShardRuntime, ShardState
from kbroker.errors import ErrorCode
from kbroker.log.internal_log import InternalLog
from kbroker.protocol.apis.k11_join_group import JoinGroupResponse
from kbroker.protocol.apis.k12_heartbeat import HeartbeatRequest, HeartbeatResponse
from kbroker.protocol.apis.k13_leave_group import LeaveGroupResponse
from kbroker.protocol.apis.k14_sync_group import SyncGroupRequest, SyncGroupResponse
from kbroker.protocol.apis.k15_describe_groups import DescribedGroup
from kbroker.protocol.apis.k16_list_groups import ListedGroup

logger = logging.getLogger(__name__)


class GroupCoordinator:
    """Groups and committed offsets of the broker.

    One loop thread owns all group state; a few worker threads load shards and create the offsets topic.
    `open_logs()` gives the logs of `__consumer_offsets` in partition order, None while the topic does not exist.
    `ensure_topic()` creates it; it may block and is called by a worker. `topic_exists(topic, partition)` must be quick.
    Start it when the topics are known: offsets of topics that are gone are dropped as the shards load.
    """

    def __init__(
        self,
        config: GroupConfig,
        clock: Clock,
        *,
        open_logs: Callable[[], Sequence[InternalLog] | None],
        ensure_topic: Callable[[], object],
        topic_exists: Callable[[str, int], bool],
        executor: Executor | None = None,
    ) -> None:
        self.config = config
        self.loop = EventLoop(clock)
        self._clock = clock
        self._open_logs = open_logs
        self._ensure_topic = ensure_topic
        self.topic_exists = topic_exists
        self._executor = executor or ThreadPoolExecutor(config.load_threads, thread_name_prefix="group-load")
        self._runtimes = [self._new_runtime() for _ in range(config.offsets_topic_partitions)]
        self._has_topic = False
        self._creating_topic = False
        self._waiting_for_topic: list[tuple[str | None, Request]] = []
        self._stopped = False

    # -- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread, and to load all shards if the offsets topic exists."""
        self.start_by_hand()
        self.loop.start()

    def start_by_hand(self) -> None:
        """`start` without the thread: the caller runs the loop."""
        logs = self._open_logs()
        if logs is not None:
            self.loop.post(partial(self._open_shards, logs))
        self.loop.post(self._schedule_expiry)

    def stop(self) -> None:
        """Answers everything that waits with NOT_COORDINATOR and ends the threads."""
        self.loop.post(self._stop_shards)
        self.loop.stop()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _stop_shards(self) -> None:
        self._stopped = True
        for runtime in self._runtimes:
            runtime.stop()
        waiting, self._waiting_for_topic = self._waiting_for_topic, []
        for _, request in waiting:
            complete(request.future, request.error_response(ErrorCode.NOT_COORDINATOR))

    def _schedule_expiry(self) -> None:
        self.loop.call_later(self.config.offsets_retention_check_interval_ms / 1000, self._expire)

    def _expire(self) -> None:
        for runtime in self._runtimes:
            if runtime.state is ShardState.ACTIVE:
                runtime.submit(Request(lambda shard, future: offset_expiry.expire(shard), _no_response))
        self._schedule_expiry()

    @property
    def counts(self) -> GroupCounts:
        """Groups, members and offsets held now, for metrics."""
        all_counts = [runtime.shard.counts for runtime in self._runtimes]
        return GroupCounts(
            groups=sum(counts.groups for counts in all_counts),
            members=sum(counts.members for counts in all_counts),
            offsets=sum(counts.offsets for counts in all_counts),
        )

    # -- the offsets topic ---------------------------------------------------------------------------------------

    def locate(self) -> Future[ErrorCode]:
        """NONE once this broker can coordinate groups; creates the offsets topic if need be (FindCoordinator)."""
        request = Request(lambda shard, future: None, _identity)
        self._post(partial(self._locate, request), request)
        return request.future

    def _locate(self, request: Request) -> None:
        if self._has_topic:
            complete(request.future, ErrorCode.NONE)
        else:
            self._wait_for_topic(None, request)

    def _wait_for_topic(self, group_id: str | None, request: Request) -> None:
        self._waiting_for_topic.append((group_id, request))
        if not self._creating_topic:
            self._creating_topic = True
            self._executor.submit(self._create_topic)

    def _create_topic(self) -> None:
        """Worker thread."""
        logs = None
        try:
            self._ensure_topic()
            logs = self._open_logs()
        except Exception:
            logger.exception("could not create the offsets topic")
        self.loop.post(partial(self._topic_created, logs))

    def _topic_created(self, logs: Sequence[InternalLog] | None) -> None:
        self._creating_topic = False
        waiting, self._waiting_for_topic = self._waiting_for_topic, []
        if logs and not self._stopped:
            self._open_shards(logs)
        for group_id, request in waiting:
            if not self._has_topic:
                complete(request.future, request.error_response(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            elif group_id is None:
                complete(request.future, ErrorCode.NONE)
            else:
                self._runtime(group_id).submit(request)

    def _open_shards(self, logs: Sequence[InternalLog]) -> None:
        self._has_topic = True
        if len(logs) != len(self._runtimes):
            self._runtimes = [self._new_runtime() for _ in logs]
        for runtime, log in zip(self._runtimes, logs, strict=True):
            runtime.open(log)

    def _new_runtime(self) -> ShardRuntime:
        return ShardRuntime(
            self.loop,
            self._clock,
            self.config,
            self._executor,
            lambda: GroupShard(self.config, self._clock.now_ms, lambda: self.counts.groups),
            self.topic_exists,
        )

    def _runtime(self, group_id: str) -> ShardRuntime:
        return self._runtimes[group_partition(group_id, len(self._runtimes))]

    # -- dispatch ------------------------------------------------------------------------------------------------

    def _submit(self, group_id: str, request: Request) -> Future:
        self._post(partial(self._dispatch, group_id, request), request)
        return request.future

    def _post(self, callback: Callable[[], None], request: Request) -> None:
        if self._stopped:
            complete(request.future, request.error_response(ErrorCode.NOT_COORDINATOR))
        else:
            self.loop.post(callback)

    def _dispatch(self, group_id: str, request: Request) -> None:
        if request.needs_topic and not self._has_topic:
            self._wait_for_topic(group_id, request)
        else:
            self._runtime(group_id).submit(request)

    # -- membership ----------------------------------------------------------------------------------------------

    def join_group(self, request: JoinRequest) -> Future[JoinGroupResponse]:
        """JoinGroup; the answer comes when the rebalance completes."""
        return self._submit(
            request.group_id,
            Request(
                lambda shard, future: join_group.join(shard, request, future),
                lambda error: rebalance.join_error(error, request.member_id),
                needs_topic=True,
            ),
        )

    def sync_group(self, request: SyncGroupRequest) -> Future[SyncGroupResponse]:
        """SyncGroup; the answer comes when the assignments are durable. `request` must own its bytes."""
        return self._submit(
            request.group_id,
            Request(
                lambda shard, future: sync_group.sync(shard, request, future),
                lambda error: SyncGroupResponse(error_code=error),
            ),
        )

    def heartbeat(self, request: HeartbeatRequest) -> Future[HeartbeatResponse]:
        """Heartbeat. While the shard loads it is simply fine, as in Kafka: the member has done nothing wrong."""
        return self._submit(
            request.group_id,
            Request(
                lambda shard, future: group_session.heartbeat(shard, request),
                lambda error: HeartbeatResponse(
                    error_code=ErrorCode.NONE if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error
                ),
            ),
        )

    def leave_group(self, group_id: str, leavers: list[Leaver]) -> Future[LeaveGroupResponse]:
        """LeaveGroup of one or more members."""
        return self._submit(
            group_id,
            Request(
                lambda shard, future: group_session.leave(shard, group_id, leavers),
                lambda error: LeaveGroupResponse(error_code=error),
            ),
        )

    # -- offsets -------------------------------------------------------------------------------------------------

    def commit_offsets(self, request: CommitRequest) -> Future[ErrorCode]:
        """OffsetCommit; one error for all its partitions."""
        return self._submit(
            request.group_id,
            Request(lambda shard, future: offset_commit.commit(shard, request), _identity, needs_topic=True),
        )

    def fetch_offsets(
        self, group_id: str, topics: list[tuple[str, list[int]]] | None
    ) -> Future[FetchedOffsets | ErrorCode]:
        """OffsetFetch of one group: durable offsets only; `topics` None asks for all of them.

        No transactional commit can be pending before TxnOffsetCommit is served, so every answer is a stable one.
        """
        return self._submit(
            group_id,
            Request(
                lambda shard, future: offset_commit.fetch(shard, group_id, topics), _identity, is_read=True
            ),
        )

    def on_topic_deleted(self, topic: str) -> Future[None]:
        """Drops all offsets of a deleted topic. Done when that is durable: only then may the name be used again."""
        done: Future[None] = Future()

        def drop() -> None:
            parts = [self._drop_topic(runtime, topic) for runtime in self._runtimes]
            gathered(parts).add_done_callback(lambda _: complete(done, None))

        if self._stopped:
            done.set_result(None)
        else:
            self.loop.post(drop)
        return done

    def _drop_topic(self, runtime: ShardRuntime, topic: str) -> Future:
        def drop(shard: GroupShard, future: Future) -> Any:
            result = offset_expiry.drop_topics(shard, lambda name: name == topic)
            result.response = ErrorCode.NONE
            return result

        request = Request(drop, _identity, waits_for_load=True)
        runtime.submit(request)
        return request.future

    # -- administration ------------------------------------------------------------------------------------------

    def list_groups(
        self, states: frozenset[str], types: frozenset[str]
    ) -> Future[list[ListedGroup] | ErrorCode]:
        """All groups whose state and type pass the filters (lower case; empty passes all), or the first error."""
        done: Future[list[ListedGroup] | ErrorCode] = Future()

        def merge(parts: Future[list[Any]]) -> None:
            results = parts.result()
            errors = [part for part in results if isinstance(part, ErrorCode)]
            complete(done, errors[0] if errors else [group for part in results for group in part])

        def ask_all() -> None:
            requests = [
                Request(
                    lambda shard, future: group_admin.list_groups(shard, states, types),
                    _identity,
                    is_read=True,
                )
                for _ in self._runtimes
            ]
            gathered([request.future for request in requests]).add_done_callback(merge)
            for runtime, request in zip(self._runtimes, requests, strict=True):
                runtime.submit(request)

        if self._stopped:
            done.set_result(ErrorCode.NOT_COORDINATOR)
        else:
            self.loop.post(ask_all)
        return done

    def describe_group(self, group_id: str) -> Future[DescribedGroup]:
        """One group; an unknown one has error GROUP_ID_NOT_FOUND and state Dead."""
        return self._submit(
            group_id,
            Request(
                lambda shard, future: group_admin.describe(shard, group_id),
                lambda error: group_admin.not_described(group_id, error),
                is_read=True,
            ),
        )

    def delete_group(self, group_id: str) -> Future[ErrorCode]:
        """Removes an Empty group and its offsets."""
        return self._submit(
            group_id, Request(lambda shard, future: group_admin.delete(shard, group_id), _identity)
        )


def _identity(error: ErrorCode) -> ErrorCode:
    return error


def _no_response(error: ErrorCode) -> None:
    return None
