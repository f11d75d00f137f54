"""Log starts that clients move (DeleteRecords): true in the manifest first, then for readers, then answered.

All that wait share one manifest record, so many small requests cost few writes. The record also queues the objects
below the new starts for deletion.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from kbroker.clock import Clock
from kbroker.errors import CorruptionError, ErrorCode, KafkaError
from kbroker.log.log_table import LogTable
from kbroker.storage.ledger.numbered_log import Fenced
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.manifest.record import ManifestRecord, PartitionDelta, PartitionId
from kbroker.storage.stores.object_store import StoreError

logger = logging.getLogger(__name__)

RECORD_PARTITIONS_MAX = 1_000  # changed by one manifest record
RETRY_AFTER_SECONDS = 1.0  # after a failure, requests are refused at once for this long instead of each waiting

Target = tuple[Any, int]  # a hot partition (kbroker._fast.partition.partition.Partition) and its new log start offset


@dataclass(slots=True, eq=False)
class _Request:
    targets: Sequence[Target]
    deadline: float  # on the monotonic clock
    done: Future[None]


class LogStarts:
    """Two threads: one serves, and may hang on the store; the other answers what has waited for too long.

    A future fails with KafkaError: REQUEST_TIMED_OUT at the request's deadline or when the store did not take the
    record (it may still become true, and asking again does no harm), NOT_LEADER_OR_FOLLOWER when another broker has
    taken over. `turn` and `expire` are what the threads do, for them and for tests. `_condition` protects the queue,
    `_unanswered` and `_stopping`; the thread that takes a request out of `_unanswered` answers it.
    """

    def __init__(self, table: LogTable, manifest: Manifest, clock: Clock) -> None:
        self._table = table
        self._manifest = manifest
        self._clock = clock
        self._condition = threading.Condition()
        self._queue: deque[_Request] = deque()
        self._unanswered: set[_Request] = set()
        self._stopping = False
        self._retry_at = clock.monotonic()
        self._threads: list[threading.Thread] = []

    def move(self, targets: Sequence[Target], timeout_ms: int) -> Future[None]:
        """Moves the log starts up to these offsets, judged by PartitionLog.delete_target; never down."""
        request = _Request(targets, self._clock.monotonic() + max(timeout_ms, 0) / 1000, Future())
        with self._condition:
            if not self._stopping:
                self._queue.append(request)
                self._unanswered.add(request)
                self._condition.notify_all()
                return request.done
        request.done.set_exception(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker stops"))
        return request.done

    @property
    def queued_count(self) -> int:
        """Requests that have not been begun and have not timed out."""
        return len(self._queue)

    def start(self) -> None:
        """Starts the threads."""
        for name, run in (("log-starts", self._run), ("log-starts-time-outs", self._run_time_outs)):
            thread = threading.Thread(target=run, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Ends the threads after what they are doing; requests that wait fail."""
        with self._condition:
            self._stopping = True
            waiting = list(self._queue)
            self._queue.clear()
            self._condition.notify_all()
        self._answer(waiting, KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker stops"))
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._queue or self._stopping)
                if self._stopping:
                    return
            self.turn()

    def _run_time_outs(self) -> None:
        while True:
            with self._condition:
                if self._stopping:
                    return
                first = min((request.deadline for request in self._unanswered), default=None)
                left = None if first is None else first - self._clock.monotonic()
                if left is None or left > 0:
                    self._condition.wait(None if left is None else min(left, threading.TIMEOUT_MAX))
                    continue
            self.expire()

    def turn(self) -> None:
        """Serves what waits now and is in time."""
        self.expire()
        with self._condition:
            taken = [request for request in self._queue if request in self._unanswered]
            self._queue.clear()
        self._answer(taken, self._serve(taken))

    def expire(self) -> None:
        """Answers what has reached its deadline, also what is being served."""
        with self._condition:
            now = self._clock.monotonic()
            late = [request for request in self._unanswered if request.deadline <= now]
            if late:  # while the other thread hangs they would only pile up
                gone = set(late)
                self._queue = deque(request for request in self._queue if request not in gone)
        self._answer(late, KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the object store takes its time; try again"))

    def _answer(self, requests: Sequence[_Request], error: KafkaError | None) -> None:
        with self._condition:
            ours = [request for request in requests if request in self._unanswered]
            self._unanswered.difference_update(ours)
        for request in ours:
            if error is None:
                request.done.set_result(None)
            else:
                request.done.set_exception(error)

    def _serve(self, requests: Sequence[_Request]) -> KafkaError | None:
        highest: dict[Any, int] = {}
        for request in requests:
            for partition, offset in request.targets:
                highest[partition] = max(offset, highest.get(partition, 0))
        targets = list(highest.items())
        if targets and self._clock.monotonic() < self._retry_at:
            return KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the object store is away; try again")
        try:
            for first in range(0, len(targets), RECORD_PARTITIONS_MAX):
                self._commit(targets[first : first + RECORD_PARTITIONS_MAX])
        except Fenced as error:
            return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, str(error))
        except StoreError as error:
            logger.warning("log starts not moved: %s", error)
            self._retry_at = self._clock.monotonic() + RETRY_AFTER_SECONDS
            return KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the object store is away; try again")
        except CorruptionError as error:
            logger.error("log starts not moved: %s", error)
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        except Exception:  # an unknown failure; the thread must live on for the next request
            logger.exception("log starts not moved")
            return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        return None

    def _commit(self, targets: Sequence[Target]) -> None:
        """One record. A partition that was never flushed is made known first, empty and starting at 0: a state that
        begins at the new log start would refuse the objects of what lies below it."""
        image = self._manifest.image
        if any(image.partition(partition.topic_id, partition.index) is None for partition, _ in targets):
            self._manifest.commit(lambda image: self._introduction(image, targets))
        moved: list[Target] = []

        def change(image: ManifestImage) -> ManifestRecord | None:
            moved.clear()
            deltas: dict[PartitionId, PartitionDelta] = {}
            for partition, offset in targets:
                state = image.partition(partition.topic_id, partition.index)
                topic_log = self._table.by_id.get(partition.topic_id)
                if state is None or topic_log is None or partition.leader_epoch < 0 or offset <= state.log_start_offset:
                    continue
                deltas[partition.topic_id, partition.index] = PartitionDelta(
                    log_start_offset=offset, grace_ms=topic_log.config.file_delete_delay_ms
                )
                moved.append((partition, offset))
            return ManifestRecord(partitions=deltas) if deltas else None

        def before_apply() -> None:
            for partition, offset in moved:
                partition.log.raise_log_start(offset)

        self._manifest.commit(change, before_apply)

    def _introduction(self, image: ManifestImage, targets: Sequence[Target]) -> ManifestRecord | None:
        deltas = {
            (partition.topic_id, partition.index): PartitionDelta()
            for partition, _ in targets
            if partition.leader_epoch >= 0 and image.partition(partition.topic_id, partition.index) is None
        }
        return ManifestRecord(partitions=deltas) if deltas else None
