"""Reads below what the WAL holds: a small pool of threads in front of the object reader.

A reader that needs the object store never delays one that reads the tail: nothing here runs on an I/O thread. A read
that takes longer than the fetch that asked for it goes on; its bytes are cached and serve the next fetch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from kbroker._fast.records import first_record_at_or_after, max_timestamp_record
from kbroker.errors import CorruptionError, ErrorCode
from kbroker.log.partition_log import PartitionLog
from kbroker.storage.object_reader import ObjectReader
from kbroker.storage.object_store import StoreError

logger = logging.getLogger(__name__)

Callback = Callable[[list[memoryview] | ErrorCode], None]
OffsetAndTimestamp = tuple[int, int]


class ColdReader:
    """The cold side of fetches and offset look-ups. `requests` and `failures` count reads."""

    def __init__(self, reader: ObjectReader, threads: int = 4) -> None:
        self._reader = reader
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="kbroker-cold-read")
        self.requests = 0
        self.failures = 0

    def request(
        self, log: PartitionLog, offset: int, upper: int, max_bytes: int, callback: Callback
    ) -> None:
        """Reads whole batches from `offset`; calls `callback` with buffers, or a Kafka error code, on a pool thread."""
        self.requests += 1
        self._pool.submit(self._request, log, offset, upper, max_bytes, callback)

    def _request(
        self, log: PartitionLog, offset: int, upper: int, max_bytes: int, callback: Callback
    ) -> None:
        try:
            callback(self.read(log, offset, upper, max_bytes))
        except (StoreError, CorruptionError) as error:
            self.failures += 1
            logger.warning("cold read of %s-%d at %d: %s", log.partition.topic, log.partition.index, offset, error)
            callback(ErrorCode.KAFKA_STORAGE_ERROR)
        except Exception:
            self.failures += 1
            logger.exception("cold read of %s-%d at %d", log.partition.topic, log.partition.index, offset)
            callback(ErrorCode.UNKNOWN_SERVER_ERROR)

    def read(self, log: PartitionLog, offset: int, upper: int, max_bytes: int) -> list[memoryview]:
        """As `request`, blocking. Raises StoreError, CorruptionError."""
        found = self._reader.read(log.partition.topic_id, log.partition.index, offset, upper, max_bytes)
        return [found.data] if found else []

    def offset_for_timestamp(self, log: PartitionLog, timestamp: int) -> Future[OffsetAndTimestamp | None]:
        """The first record in objects at or above the log start with a timestamp >= `timestamp`."""
        return self._pool.submit(self._offset_for_timestamp, log, timestamp)

    def _offset_for_timestamp(self, log: PartitionLog, timestamp: int) -> OffsetAndTimestamp | None:
        partition = log.partition
        start = partition.log_start_offset
        while batch := self._reader.batch_for_timestamp(partition.topic_id, partition.index, timestamp, start):
            data, next_offset = batch
            found = first_record_at_or_after(data, timestamp, start)
            if found is not None:
                return found
            start = next_offset  # the header promised more than the records hold (they were compacted away)
        return None

    def max_timestamp(self, log: PartitionLog) -> Future[OffsetAndTimestamp | None]:
        """Offset and timestamp of the first record in objects that holds the highest timestamp."""
        return self._pool.submit(self._max_timestamp, log)

    def _max_timestamp(self, log: PartitionLog) -> OffsetAndTimestamp | None:
        partition = log.partition
        batch = self._reader.batch_of_max_timestamp(partition.topic_id, partition.index, partition.log_start_offset)
        return max_timestamp_record(batch[0]) if batch else None

    def close(self) -> None:
        """Lets running reads end and drops the waiting ones."""
        self._pool.shutdown(wait=False, cancel_futures=True)
