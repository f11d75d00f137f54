"""All shards of one internal topic: the thread that runs them, the creation of the topic, and the shard of each key."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Generic

from kbroker.clock import Clock
from kbroker.coordinator.runtime.config import ShardConfig
from kbroker.coordinator.runtime.event_loop import EventLoop, loop_thread_only
from kbroker.coordinator.runtime.key_partition import group_partition
from kbroker.coordinator.runtime.request import Request
from kbroker.coordinator.runtime.result import complete
from kbroker.coordinator.runtime.shard_runtime import S, ShardRuntime, ShardState
from kbroker.errors import ErrorCode
from kbroker.futures import gather
from kbroker.histogram import WORK_SECONDS, Histogram
from kbroker.log.internal_log import InternalLog
from kbroker.log_throttle import UNTHROTTLED

logger = logging.getLogger(__name__)


class ShardSet(Generic[S]):
    """One loop thread owns all the shards' state; a few worker threads load shards and create the topic.

    `open_logs()` gives the topic's logs in partition order, None while the topic does not exist. `ensure_topic()`
    creates it; it may block, and a worker thread calls it. Any thread may call the public methods.
    """

    def __init__(
        self,
        name: str,
        config: ShardConfig,
        clock: Clock,
        *,
        partitions: int,
        new_shard: Callable[[], S],
        open_logs: Callable[[], Sequence[InternalLog] | None],
        ensure_topic: Callable[[], object],
        executor: Executor | None = None,
    ) -> None:
        self.name = name
        self.config = config
        self.clock = clock
        self.loop = EventLoop(clock, name)
        self._new_shard = new_shard
        self._open_logs = open_logs
        self._ensure_topic = ensure_topic
        self._executor = executor or ThreadPoolExecutor(config.load_threads, thread_name_prefix=f"{name}-load")
        self.runtimes = [self._new_runtime() for _ in range(partitions)]
        self.load_seconds = Histogram(WORK_SECONDS)  # of single shards; written by the loop thread
        self.has_topic = False
        self._creating_topic = False
        self._waiting_for_topic: list[tuple[str | None, Request]] = []
        self.stopped = False
        self._opened_at = 0.0  # monotonic seconds

    # -- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread and, if the topic exists, the loads of all shards."""
        self.start_by_hand()
        self.loop.start()

    def start_by_hand(self) -> None:
        """`start` without the thread: the caller runs the loop."""
        logs = self._open_logs()
        if logs is not None:
            self.loop.post(partial(self._open_shards, logs))

    def stop(self) -> None:
        """Answers all waiting requests with NOT_COORDINATOR and ends the threads."""
        self.loop.post(self._stop_shards)
        self.loop.stop()
        self.loop.run_pending()  # refuses what was posted meanwhile
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _stop_shards(self) -> None:
        self.stopped = True
        for runtime in self.runtimes:
            runtime.stop()
        waiting, self._waiting_for_topic = self._waiting_for_topic, []
        for _, request in waiting:
            request.refuse(ErrorCode.NOT_COORDINATOR)

    def _new_runtime(self) -> ShardRuntime[S]:
        return ShardRuntime(self.loop, self.clock, self.config, self._executor, self._new_shard, self._note_loaded)

    @property
    def queue_length(self) -> int:
        """Callbacks that the loop thread has not run yet, and requests that wait in the shards."""
        return self.loop.queue_length + sum(runtime.queue_length for runtime in self.runtimes)

    def _note_loaded(self, seconds: float) -> None:
        self.load_seconds.add(seconds)
        if self._opened_at and all(runtime.state is ShardState.ACTIVE for runtime in self.runtimes):
            total_seconds, self._opened_at = self.clock.monotonic() - self._opened_at, 0.0
            records = sum(runtime.loaded_records for runtime in self.runtimes)
            logger.info(
                "%s: %d records in %d shards read in %.2f s", self.name, records, len(self.runtimes), total_seconds,
                extra=UNTHROTTLED,
            )  # fmt: skip

    # -- the topic -----------------------------------------------------------------------------------------------

    def locate(self) -> Future[ErrorCode]:
        """NONE once this broker can coordinate; creates the internal topic if necessary (FindCoordinator)."""
        request = Request(lambda shard, future: None, identity)
        self.post(partial(self._locate, request), request)
        return request.future

    def _locate(self, request: Request) -> None:
        if self.has_topic:
            complete(request.future, ErrorCode.NONE)
        else:
            self._wait_for_topic(None, request)

    @loop_thread_only
    def _wait_for_topic(self, key: str | None, request: Request) -> None:
        self._waiting_for_topic.append((key, request))
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
            logger.exception("%s: could not create the internal topic", self.name)
        self.loop.post(partial(self._topic_created, logs))

    def _topic_created(self, logs: Sequence[InternalLog] | None) -> None:
        self._creating_topic = False
        waiting, self._waiting_for_topic = self._waiting_for_topic, []
        if logs and not self.stopped:
            self._open_shards(logs)
        for key, request in waiting:
            if not self.has_topic:
                request.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            elif key is None:
                complete(request.future, ErrorCode.NONE)
            else:
                self.runtime(key).submit(request)

    @loop_thread_only
    def _open_shards(self, logs: Sequence[InternalLog]) -> None:
        self.has_topic = True
        self._opened_at = self.clock.monotonic()
        if len(logs) != len(self.runtimes):
            self.runtimes = [self._new_runtime() for _ in logs]
        for runtime, log in zip(self.runtimes, logs, strict=True):
            runtime.open(log)

    # -- dispatch ------------------------------------------------------------------------------------------------

    def runtime(self, key: str) -> ShardRuntime[S]:
        """The shard of a group id or transactional id."""
        runtimes = self.runtimes  # read once: the loop thread replaces the list when the topic is created
        return runtimes[group_partition(key, len(runtimes))]

    def submit(self, key: str, request: Request) -> Future:
        """Runs the request on its key's shard; returns its future."""
        self.post(partial(self._dispatch, key, request), request)
        return request.future

    def submit_to_partition(self, partition: int, request: Request) -> Future:
        """Runs the request on the shard of a partition; UNKNOWN_TOPIC_OR_PARTITION if there is none."""

        def dispatch() -> None:
            if not self.has_topic:
                request.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            elif 0 <= partition < len(self.runtimes):
                self.runtimes[partition].submit(request)
            else:
                request.refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

        self.post(dispatch, request)
        return request.future

    def post(self, callback: Callable[[], None], request: Request) -> None:
        """Runs `callback` on the loop thread; refuses the request after a stop."""
        if self.stopped:
            request.refuse(ErrorCode.NOT_COORDINATOR)
        else:
            self.loop.post(callback)

    def _dispatch(self, key: str, request: Request) -> None:
        if request.needs_topic and not self.has_topic:
            self._wait_for_topic(key, request)
        else:
            self.runtime(key).submit(request)

    def submit_to_all(self, new_request: Callable[[], Request]) -> Future[list[Any]]:
        """Runs one request on each shard; the answers are in partition order. After a stop: a list with one error."""
        done: Future[list[Any]] = Future()

        def ask_all() -> None:
            requests = [new_request() for _ in self.runtimes]
            gather([request.future for request in requests]).add_done_callback(
                lambda parts: complete(done, parts.result())
            )
            for runtime, request in zip(self.runtimes, requests, strict=True):
                runtime.submit(request)

        if self.stopped:
            done.set_result([ErrorCode.NOT_COORDINATOR])
        else:
            self.loop.post(ask_all)
        return done


def identity(error: ErrorCode) -> ErrorCode:
    """The error response of requests that answer with an error code."""
    return error
