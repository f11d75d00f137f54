"""Reads below what the WAL serves: a pool of threads, shared fairly by partitions, in front of the object reader.

A reader that needs the object store never delays one that reads the tail: on an I/O thread only memory is looked at.
A read that takes longer than the fetch that asked for it goes on; its bytes are cached and serve the next fetch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from kbroker._fast.records.records import first_record_at_or_after, iter_records, max_timestamp_record
from kbroker.errors import CorruptionError, ErrorCode
from kbroker.log.partition_log import PartitionLog
from kbroker.storage.read.read_pool import ReadPool
from kbroker.storage.stores.object_store import StoreError

if TYPE_CHECKING:
    from kbroker.storage.read.object_reader import ObjectReader

logger = logging.getLogger(__name__)

Callback = Callable[[list[memoryview] | ErrorCode], None]
OffsetAndTimestamp = tuple[int, int]
T = TypeVar("T")

THREADS = 8
EXPECTED_MAX = 64  # waiting reads that a read looks at, for what may come with its own
WAITING_MAX = 10_000  # fetches that wait for a read; more are told that there is nothing yet, and ask again
TRIM_RACES_MAX = 8  # what a look-up saw in the WAL may be in objects when it is read: then look again


class _Read:
    """One place that is being read, and the other fetches that want it."""

    __slots__ = ("begun", "joined", "log", "offset")

    def __init__(self, log: PartitionLog, offset: int) -> None:
        self.log = log
        self.offset = offset
        self.begun = False
        self.joined: list[tuple[int, int, Callback]] = []  # upper, max bytes, callback


class ColdReader:
    """The cold side of fetches and offset look-ups. Without a reader yet (`read_from`) every fetch is put off.

    Each fetch counts once: in `from_memory`, `from_store`, `failures`, or `deferred` when unread answers hold too much
    memory or too many reads wait. One lock protects the table of running reads.
    """

    def __init__(self, reader: ObjectReader | None = None, threads: int = THREADS) -> None:
        self._reader: ObjectReader
        self._opened = False
        self._pool = ReadPool(threads)
        self._lock = threading.Lock()
        self._running: dict[tuple[bytes, int, int], _Read] = {}
        self._waiting = 0
        self.from_memory = 0
        self.from_store = 0  # or from the folder of --object-cache
        self.deferred = 0
        self.failures = 0
        if reader is not None:
            self.read_from(reader)

    def read_from(self, reader: ObjectReader) -> None:
        """Opens the cold side: reads go to `reader`."""
        self._reader = reader
        reader.start_read_ahead(self._pool.submit_ahead)
        self._opened = True

    @property
    def is_idle(self) -> bool:
        """No read runs or waits for a thread."""
        return not self._running

    @property
    def waiting(self) -> int:
        """Fetches whose read is queued or runs."""
        return self._waiting

    # -- fetches -----------------------------------------------------------------------------------------------

    def request(self, log: PartitionLog, offset: int, upper: int, max_bytes: int, callback: Callback) -> None:
        """Reads whole batches from `offset`; calls `callback` once, with buffers or a Kafka error code.

        At once and on this thread when memory holds them, else on a pool thread. No buffers: there is nothing to read
        below `upper`, or not now; the fetch waits its time and asks again.
        """
        if not self._opened or self._reader.crowded:
            self.deferred += 1
            callback([])
            return
        found = self._reader.cached(log.partition.topic_id, log.partition.index, offset, upper, max_bytes)
        if found is not None:
            self.from_memory += 1
            callback(found.parts)
            return
        if not self._enqueue(log, offset, upper, max_bytes, callback):
            self.deferred += 1
            callback([])

    def _enqueue(self, log: PartitionLog, offset: int, upper: int, max_bytes: int, callback: Callback) -> bool:
        place = (log.partition.topic_id, log.partition.index, offset)
        with self._lock:
            if self._waiting >= WAITING_MAX:
                return False
            read = self._running.get(place)
            if read is None:
                read = _Read(log, offset)
                try:
                    self._pool.submit(place[:2], partial(self._run, place, read))
                except RuntimeError:  # the broker is stopping
                    return False
                self._running[place] = read
            read.joined.append((upper, max_bytes, callback))
            self._waiting += 1
        return True

    def _run(self, place: tuple[bytes, int, int], read: _Read) -> None:
        with self._lock:
            read.begun = True
            waiting = (other for other, running in self._running.items() if not running.begun)
            others = list(islice(waiting, EXPECTED_MAX))
        if others:
            self._reader.expect([place, *others])
        while True:
            with self._lock:
                if not read.joined:
                    del self._running[place]
                    return
                upper, max_bytes, callback = read.joined.pop(0)
                self._waiting -= 1
            self._answer(read, upper, max_bytes, callback)

    def _answer(self, read: _Read, upper: int, max_bytes: int, callback: Callback) -> None:
        partition = read.log.partition
        result: list[memoryview] | ErrorCode
        try:
            if self._reader.crowded:  # not yet when this read was asked for
                self.deferred += 1
                result = []
            else:
                result = self.read(read.log, read.offset, upper, max_bytes)
                self.from_store += 1
        except (StoreError, CorruptionError, OSError) as error:
            self.failures += 1
            logger.warning("cold read of %s-%d at %d: %s", partition.topic, partition.index, read.offset, error)
            result = ErrorCode.KAFKA_STORAGE_ERROR
        except Exception:
            self.failures += 1
            logger.exception("cold read of %s-%d at %d", partition.topic, partition.index, read.offset)
            result = ErrorCode.UNKNOWN_SERVER_ERROR
        try:
            callback(result)
        except Exception:
            logger.exception("answer of a cold read of %s-%d at %d", partition.topic, partition.index, read.offset)

    def read(self, log: PartitionLog, offset: int, upper: int, max_bytes: int) -> list[memoryview]:
        """As `request`, blocking. Raises StoreError, CorruptionError.

        Nothing in objects from `offset` on (compaction left a gap up to where they end) means that the WAL has what
        follows: an empty answer would hold the reader there for ever. Nothing there either: compaction has passed
        `upper`, and the fetch asks again with a newer one.
        """
        partition = log.partition
        place = partition.topic_id, partition.index
        for _ in range(TRIM_RACES_MAX):
            if offset < partition.log_start_offset:
                return []  # retention was faster: the fetch sees it when it looks at the partition again
            # Before the look: what a flush adds after it, and compaction then cleans, must not be skipped.
            flushed = max(self._reader.end_offset(*place), partition.log_start_offset)
            found = self._reader.read(*place, offset, upper, max_bytes)
            if found is not None:
                return found.parts
            start = partition.wal_start_offset()
            if start > flushed:
                continue
            if max(start, offset) >= upper:
                return []
            hot = partition.read_bytes(max(start, offset), upper, max_bytes)
            if hot is not None:
                return [memoryview(hot)] if hot else []
        raise CorruptionError(
            f"no data at offset {offset}, below {upper}: objects end at {flushed}, the log begins at {start}"
        )

    # -- offsets by timestamp ----------------------------------------------------------------------------------

    def offset_for_timestamp(self, log: PartitionLog, timestamp: int) -> Future[OffsetAndTimestamp | None]:
        """The first record in objects at or above the log start with a timestamp >= `timestamp`."""
        return self._pool.submit(_owner(log), partial(self._offset_for_timestamp, log, timestamp))

    def _offset_for_timestamp(self, log: PartitionLog, timestamp: int) -> OffsetAndTimestamp | None:
        partition = log.partition
        start = position = partition.log_start_offset
        while batch := self._reader.timestamps.batch_at(partition.topic_id, partition.index, timestamp, position):
            data, next_offset = batch
            found = _records(first_record_at_or_after, data, timestamp, start)
            if found is not None:
                return found
            position = next_offset  # the header promised more than the records hold (they were compacted away)
        return None

    def max_timestamp(self, log: PartitionLog) -> Future[OffsetAndTimestamp | None]:
        """Offset and timestamp of the first record in objects that holds the highest timestamp."""
        return self._pool.submit(_owner(log), partial(self._max_timestamp, log))

    def _max_timestamp(self, log: PartitionLog) -> OffsetAndTimestamp | None:
        partition = log.partition
        start = partition.log_start_offset
        batch = self._reader.timestamps.newest_batch(partition.topic_id, partition.index, start)
        if batch is None:
            return None
        data, next_offset = batch
        found = _records(max_timestamp_record, data)
        if found is None or found[0] >= start:
            return found
        # The log start lies in this batch, above its highest record: the best of the rest of it and of what follows.
        rest: list[OffsetAndTimestamp] = _records(_from_offset, data, start)
        batch = self._reader.timestamps.newest_batch(partition.topic_id, partition.index, next_offset)
        if batch is not None and (found := _records(max_timestamp_record, batch[0])) is not None:
            rest.append(found)
        return max(rest, key=lambda found: (found[1], -found[0]), default=None)

    def close(self) -> None:
        """Lets running reads end and drops the waiting ones."""
        self._pool.close()
        if self._opened and self._reader.folder is not None:
            self._reader.folder.close()


def _owner(log: PartitionLog) -> tuple[bytes, int]:
    """What takes turns: a partition."""
    return log.partition.topic_id, log.partition.index


def _from_offset(data: memoryview, offset: int) -> list[OffsetAndTimestamp]:
    return [(record.offset, record.timestamp) for record in iter_records(data) if record.offset >= offset]


def _records(function: Callable[..., T], data: memoryview, *arguments: int) -> T:
    try:
        return function(data, *arguments)
    except ValueError as error:
        raise CorruptionError(f"a batch in an object does not parse: {error}") from error
