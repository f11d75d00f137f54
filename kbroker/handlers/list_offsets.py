"""ListOffsets (key 2), versions 1-11: offsets by timestamp, over everything the partition holds.

Behaviour, by the timestamp asked for:
- -1 latest: high watermark, or last stable offset for read_committed; timestamp -1. A request that is not a consumer's
  (a replica id other than -1; tools send -2) sees all up to the log end offset, as in Kafka.
- -2 earliest, and -4 earliest local (v8): log start offset. kbroker has no tiers in Kafka's sense: the local disk only
  holds the write-ahead log, so that local and whole log are the same, as in a Kafka without tiered storage.
- -3 max timestamp (v7): the first record that holds the highest timestamp, with that timestamp.
- -5 latest tiered (v9), -6 earliest pending upload (v11): -1, as without tiered storage.
- from 0 up: the first record with that timestamp or a later one, with its own timestamp.
- No match, or a match at or above the high watermark or last stable offset: -1 and -1, no error.

Sentinels but -3 are answered from memory, inline. A look-up by timestamp decompresses a batch: a request with one goes
to a worker, which reads the WAL's part; where objects hold data that the WAL no longer has they are read on the cold
pool, and the earliest match wins.

Errors: unknown partition 3, not led here 6, client's leader epoch older 74 or newer 75, the same partition twice 42, a
sentinel above the request's version 35, data that cannot be read 56.

Versions: v2 isolation level. v4 leader epochs. v6 flexible. v10 time-out (a look-up has its own).

Gaps: none.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future

from kbroker._fast.partition.partition import Partition
from kbroker._fast.wal.commit import CallbackWaiter
from kbroker.errors import CorruptionError, ErrorCode, KafkaError
from kbroker.futures import gather, map_future
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.handlers.leadership import check_led, end_of, led_partition
from kbroker.log.cold_read import OffsetAndTimestamp
from kbroker.log.partition_log import PartitionLog
from kbroker.log.timestamp_lookup import max_timestamp, offset_for_timestamp
from kbroker.protocol.apis.records.k02_list_offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kbroker.storage.stores.object_store import StoreError

logger = logging.getLogger(__name__)

SINCE_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
READ_COMMITTED = 1
CONSUMER = -1

UpperBound = Callable[[Partition], int]


def handle(
    context: Context, info: RequestInfo, request: ListOffsetsRequest
) -> ListOffsetsResponse | Future[ListOffsetsResponse]:
    """Answers at once unless a look-up must read objects."""
    repeated = Counter((topic.name, asked.partition_index) for topic in request.topics for asked in topic.partitions)
    upper_bound = _upper_bound(request)
    pending: list[Future[None]] = []
    response = ListOffsetsResponse(topics=[])
    for topic in request.topics:
        answers = []
        for asked in topic.partitions:
            answer = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
            answers.append(answer)
            try:
                if repeated[topic.name, asked.partition_index] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST)
                check_sentinel(asked.timestamp, info.api_version)
                partition = led_partition(context, topic.name, asked.partition_index, asked.current_leader_epoch)
                lookup = _answer(context, partition, asked, upper_bound, answer)
            except KafkaError as error:
                answer.error_code = error.code
                continue
            except (OSError, CorruptionError) as error:
                logger.warning("timestamp look-up in %s-%d failed: %s", topic.name, asked.partition_index, error)
                answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                continue
            if lookup is not None:
                pending.append(lookup)
        response.topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
    return map_future(gather(pending), lambda _: response) if pending else response


def looks_up(request: ListOffsetsRequest) -> bool:
    """Whether some partition is asked for a record by its timestamp."""
    return any(
        asked.timestamp >= 0 or asked.timestamp == MAX_TIMESTAMP
        for topic in request.topics
        for asked in topic.partitions
    )


def check_sentinel(timestamp: int, api_version: int) -> None:
    """Raises KafkaError UNSUPPORTED_VERSION for a negative timestamp that this version does not have."""
    if timestamp < EARLIEST and api_version < SINCE_VERSION.get(timestamp, api_version + 1):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)


def _answer(
    context: Context,
    partition: Partition,
    asked: ListOffsetsPartition,
    upper_bound: UpperBound,
    answer: ListOffsetsPartitionResponse,
) -> Future[None] | None:
    """Fills `answer` now (None), or when the returned future completes."""
    timestamp = asked.timestamp
    if timestamp == LATEST:
        latest, leader_epoch = upper_bound(partition), partition.leader_epoch
        check_led(partition)
        answer.offset, answer.leader_epoch = latest, leader_epoch
        return None
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        answer.offset = partition.log_start_offset
        answer.leader_epoch = _epoch_of(partition, answer.offset)
        return None
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return None  # -1 and -1, as the message's defaults say
    if timestamp == MAX_TIMESTAMP:
        found = max_timestamp(context.cold_reader, partition)
    else:
        found = offset_for_timestamp(context.cold_reader, partition, timestamp)
    if not isinstance(found, Future):
        _place(partition, found, upper_bound, answer)
        return None
    return _place_later(found, partition, upper_bound, answer)


def _upper_bound(request: ListOffsetsRequest) -> UpperBound:
    """What gives the offset below which the request sees records."""
    if request.replica_id != CONSUMER:
        return lambda partition: partition.next_offset
    if request.isolation_level == READ_COMMITTED:
        return lambda partition: partition.last_stable_offset()
    return lambda partition: partition.high_watermark()


def _epoch_of(partition: Partition, offset: int) -> int:
    log: PartitionLog = partition.log
    return log.epochs.epoch_at(offset)


def _place(
    partition: Partition,
    found: OffsetAndTimestamp | None,
    upper_bound: UpperBound,
    answer: ListOffsetsPartitionResponse,
) -> None:
    upper = upper_bound(partition)
    check_led(partition)
    if found is not None and found[0] < upper:
        answer.offset, answer.timestamp = found
        answer.leader_epoch = _epoch_of(partition, answer.offset)


def _place_later(
    lookup: Future[OffsetAndTimestamp | None],
    partition: Partition,
    upper_bound: UpperBound,
    answer: ListOffsetsPartitionResponse,
) -> Future[None]:
    """A look-up that fails is an error of its partition, not of the request, and not "no match". The answer does not
    wait for it once the partition is not led here any more."""
    placed: Future[None] = Future()
    first = threading.Lock()  # held by what answers

    def on_done(done: Future[OffsetAndTimestamp | None]) -> None:
        partition.waiters.leave(waiter)
        if not first.acquire(blocking=False):
            return
        try:
            _place(partition, done.result(), upper_bound, answer)
        except KafkaError as error:
            answer.error_code = error.code
        except (StoreError, OSError, CorruptionError) as error:
            logger.warning("timestamp look-up in %s-%d failed: %s", partition.topic, partition.index, error)
            answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        except BaseException:
            logger.exception("timestamp look-up in %s-%d failed", partition.topic, partition.index)
            answer.error_code = ErrorCode.UNKNOWN_SERVER_ERROR
        placed.set_result(None)

    def on_progress() -> None:
        error = end_of(partition)
        if error and first.acquire(blocking=False):
            answer.error_code = error
            placed.set_result(None)

    waiter = CallbackWaiter(on_progress)
    partition.waiters.park(waiter)
    on_progress()  # it may have ended before
    lookup.add_done_callback(on_done)
    return placed


HANDLER = Handler(2, 1, 11, handle, inline=True, is_long=looks_up)
