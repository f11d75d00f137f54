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
from kbroker.storage.manifest import Manifest
from kbroker.storage.manifest_image import ManifestImage
from kbroker.storage.numbered_log import Fenced
from kbroker.storage.object_store import StoreError

logger = logging.getLogger(__name__)

RECORD_PARTITIONS_MAX = 1_000  # changed by one manifest record
RETRY_AFTER_SECONDS = 1.0  # after a failure, requests are refused at once for this long instead of each waiting

Target = tuple[Any, int]  # a hot partition (kbroker._fast.partition.Partition) and its new log start offset


@dataclass(slots=True)
class _Request:
    targets: Sequence[Target]
    deadline: float  # on the monotonic clock
    done: Future[None]


class LogStarts:
    """One thread. `_condition` protects the queue and `_stopping`.

    A future fails with KafkaError: REQUEST_TIMED_OUT when the store did not take the record (it may still become
    true, and asking again does no harm), NOT_LEADER_OR_FOLLOWER when another broker has taken over.
    `turn` is what the thread does, for it and for tests.
    """

    def __init__(self, table: LogTable, manifest: Manifest, clock: Clock) -> None:
        self._table = table
        self._manifest = manifest
        self._clock = clock
        self._condition = threading.Condition()
        self._queue: deque[_Request] = deque()
        self._stopping = False
        self._retry_at = clock.monotonic()
        self._thread: threading.Thread | None = None

    def move(self, targets: Sequence[Target], timeout_ms: int) -> Future[None]:
        """Moves the log starts up to these offsets, judged by PartitionLog.delete_target; never down."""
        request = _Request(targets, self._clock.monotonic() + max(timeout_ms, 0) / 1000, Future())
        with self._condition:
            if not self._stopping:
                self._queue.append(request)
                self._condition.notify()
                return request.done
        request.done.set_exception(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker stops"))
        return request.done

    def start(self) -> None:
        """Starts the thread."""
        self._thread = threading.Thread(target=self._run, name="log-starts", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after what it is doing; requests that wait fail."""
        with self._condition:
            self._stopping = True
            waiting = list(self._queue)
            self._queue.clear()
            self._condition.notify()
        for request in waiting:
            request.done.set_exception(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker stops"))
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._queue or self._stopping)
                if self._stopping:
                    return
            self.turn()

    def turn(self) -> None:
        """Serves what waits now."""
        with self._condition:
            taken = [self._queue.popleft() for _ in range(len(self._queue))]
        error = self._serve([request for request in taken if not self._too_late(request)])
        for request in taken:
            if request.done.done():
                continue
            if error is None:
                request.done.set_result(None)
            else:
                request.done.set_exception(error)

    def _too_late(self, request: _Request) -> bool:
        if self._clock.monotonic() <= request.deadline:
            return False
        request.done.set_exception(KafkaError(ErrorCode.REQUEST_TIMED_OUT))
        return True

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
        except Exception:  # nobody knows this failure; the thread must live on for the next request
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

        def change(image: ManifestImage) -> dict[str, Any] | None:
            deltas: dict[str, dict[str, Any]] = {}
            for partition, offset in targets:
                state = image.partition(partition.topic_id, partition.index)
                topic_log = self._table.by_id.get(partition.topic_id)
                if state is None or topic_log is None or partition.deleted or offset <= state.log_start_offset:
                    continue
                delta = {"s": offset, "g": topic_log.config.file_delete_delay_ms}
                deltas.setdefault(partition.topic_id.hex(), {})[str(partition.index)] = delta
                moved.append((partition, offset))
            return {"p": deltas} if deltas else None

        def before_apply() -> None:
            for partition, offset in moved:
                partition.log.raise_log_start(offset)

        self._manifest.commit(change, before_apply)

    def _introduction(self, image: ManifestImage, targets: Sequence[Target]) -> dict[str, Any] | None:
        deltas: dict[str, dict[str, Any]] = {}
        for partition, _ in targets:
            if not partition.deleted and image.partition(partition.topic_id, partition.index) is None:
                deltas.setdefault(partition.topic_id.hex(), {})[str(partition.index)] = {}
        return {"p": deltas} if deltas else None
