"""All shards of one internal topic: the thread that runs them, those that are led here, and the shard of each key."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Generic

from kbroker.clock import Clock
from kbroker.coordinator.runtime.config import ShardConfig
from kbroker.coordinator.runtime.event_loop import EventLoop, loop_thread_only
from kbroker.coordinator.runtime.internal_topic import InternalTopic
from kbroker.coordinator.runtime.key_partition import group_partition
from kbroker.coordinator.runtime.request import Request
from kbroker.coordinator.runtime.result import complete
from kbroker.coordinator.runtime.shard_runtime import S, ShardRuntime, ShardState
from kbroker.coordinator.runtime.topic_creation import TopicCreation
from kbroker.errors import ErrorCode
from kbroker.futures import gather
from kbroker.histogram import WORK_SECONDS, Histogram
from kbroker.log_throttle import UNTHROTTLED

logger = logging.getLogger(__name__)


class ShardSet(Generic[S]):
    """One loop thread owns all the shards' state; a few worker threads load shards and create the topic.

    A shard is open while this broker leads its partition of the internal topic: `elected` and `resigned` follow the
    leadership. Any thread may call the public methods.
    """

    def __init__(
        self,
        name: str,
        config: ShardConfig,
        clock: Clock,
        *,
        partitions: int,
        new_shard: Callable[[], S],
        topic: InternalTopic,
        executor: Executor | None = None,
    ) -> None:
        """`partitions` is how many the topic gets when it is created."""
        self.name = name
        self.config = config
        self.clock = clock
        self.loop = EventLoop(clock, name)
        self._new_shard = new_shard
        self._topic = topic
        self._executor = executor or ThreadPoolExecutor(config.load_threads, thread_name_prefix=f"{name}-load")
        self._creation = TopicCreation(name, self.loop, self._executor, topic, self._open_topic)
        self.runtimes = [self._new_runtime() for _ in range(partitions)]
        self.load_seconds = Histogram(WORK_SECONDS)  # of single shards; written by the loop thread
        self.has_topic = False
        self.stopped = False
        self._loads_begun_at: float | None = None  # monotonic seconds; None: no shard that was elected is loading
        self._loaded_records: list[int] = []  # by the loads since then, for each shard that holds any

    # -- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread and, if the topic exists, the loads of the shards that are led here."""
        self.start_by_hand()
        self.loop.start()

    def start_by_hand(self) -> None:
        """`start` without the thread: the caller runs the loop."""
        self.loop.post(self._open_topic)

    def stop(self) -> None:
        """Answers all waiting requests with NOT_COORDINATOR and ends the threads."""
        self.loop.post(self._stop_shards)
        self.loop.stop()
        self.loop.run_pending()  # refuses what was posted meanwhile
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _stop_shards(self) -> None:
        self.stopped = True
        for runtime in self.runtimes:
            runtime.resigned(None)
        self._creation.stop()

    def _new_runtime(self) -> ShardRuntime[S]:
        return ShardRuntime(self.loop, self.clock, self.config, self._executor, self._new_shard, self._note_loaded)

    @property
    def queue_length(self) -> int:
        """Callbacks that the loop thread has not run yet, and requests that wait in the shards."""
        return self.loop.queue_length + sum(runtime.queue_length for runtime in self.runtimes)

    @property
    def _is_loading(self) -> bool:
        return any(runtime.state is ShardState.LOADING for runtime in self.runtimes)

    def _note_loaded(self, records: int, seconds: float) -> None:
        self.load_seconds.add(seconds)
        if self._loads_begun_at is None:
            return
        if records:
            self._loaded_records.append(records)
        if self._is_loading:
            return
        total_seconds = self.clock.monotonic() - self._loads_begun_at
        loaded, self._loaded_records, self._loads_begun_at = self._loaded_records, [], None
        logger.info(
            "%s: %d records in %d shards read in %.2f s", self.name, sum(loaded), len(loaded), total_seconds,
            extra=UNTHROTTLED,
        )  # fmt: skip

    # -- leadership ----------------------------------------------------------------------------------------------

    def elected(self, partition: int, leader_epoch: int) -> None:
        """This broker leads the partition in this epoch, and its log is open: loads the shard.

        Does nothing if that epoch or a later one is known already, also if only its end is.
        """
        self.loop.post(partial(self._elected, partition, leader_epoch))

    def resigned(self, partition: int, leader_epoch: int | None) -> None:
        """This broker does not lead the partition in this epoch, nor in an earlier one: unloads the shard.

        Its requests are answered with NOT_COORDINATOR, and it appends nothing any more. Does nothing if it leads in a
        later epoch. None: the topic was deleted.
        """

        def resign() -> None:
            if partition < len(self.runtimes):
                self.runtimes[partition].resigned(leader_epoch)

        self.loop.post(resign)

    def _elected(self, partition: int, leader_epoch: int) -> None:
        if not self.stopped and self._open_topic() and partition < len(self.runtimes):
            self._elect(partition, leader_epoch)

    @loop_thread_only
    def _elect(self, partition: int, leader_epoch: int) -> None:
        others_load = self._loads_begun_at is not None and self._is_loading
        runtime = self.runtimes[partition]
        runtime.elected(leader_epoch, self._topic.log(partition, leader_epoch))
        if runtime.state is ShardState.LOADING and not others_load:
            self._loads_begun_at, self._loaded_records = self.clock.monotonic(), []

    @loop_thread_only
    def _open_topic(self) -> bool:
        """True if the topic exists; when it is seen first, the shards that are led here begin to load."""
        if self.has_topic or self.stopped:
            return self.has_topic
        partitions = self._topic.partition_count()
        if partitions is None:
            return False
        self.has_topic = True
        if partitions != len(self.runtimes):
            self.runtimes = [self._new_runtime() for _ in range(partitions)]
        for runtime in self.runtimes:
            runtime.resigned(None)
        for partition, leader_epoch in self._topic.led().items():
            self._elect(partition, leader_epoch)
        return True

    def locate(self) -> Future[ErrorCode]:
        """NONE once the internal topic exists; creates it if necessary (FindCoordinator)."""
        request = Request(lambda shard, future: None, identity)
        found = partial(complete, request.future, ErrorCode.NONE)
        self.post(lambda: found() if self._open_topic() else self._creation.wait(request, found), request)
        return request.future

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
            if not self._open_topic():
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
        if not self._open_topic() and request.needs_topic:
            self._creation.wait(request, lambda: self.runtime(key).submit(request))
        else:
            self.runtime(key).submit(request)

    def submit_to_led(self, new_request: Callable[[], Request]) -> Future[list[Any]]:
        """Runs one request on each shard that is led here; the answers are in partition order.

        After a stop: a list with one error.
        """
        done: Future[list[Any]] = Future()

        def ask_all() -> None:
            led = [runtime for runtime in self.runtimes if runtime.state is not ShardState.NOT_LED]
            requests = [new_request() for _ in led]
            gather([request.future for request in requests]).add_done_callback(
                lambda parts: complete(done, parts.result())
            )
            for runtime, request in zip(led, requests, strict=True):
                runtime.submit(request)

        if self.stopped:
            done.set_result([ErrorCode.NOT_COORDINATOR])
        else:
            self.loop.post(ask_all)
        return done


def identity(error: ErrorCode) -> ErrorCode:
    """The error response of requests that answer with an error code."""
    return error
