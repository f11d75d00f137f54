"""DeleteRecords (key 21), versions 0-2: moves log start offsets up (KIP-107).

Behaviour:
- An offset, or -1 for the high watermark; the answer has the log start offset afterwards. Lower offsets change
  nothing. Objects wholly below it are deleted after file.delete.delay.ms.
- Outside of 0 to the high watermark: OFFSET_OUT_OF_RANGE (1). cleanup.policy without delete: POLICY_VIOLATION (44). An
  internal topic: INVALID_TOPIC (17). Unknown partition: UNKNOWN_TOPIC_OR_PARTITION (3); not led here:
  NOT_LEADER_OR_FOLLOWER (6).
- Answered when the new starts are in the object store: they outlive a crash and the loss of the disk. While it is
  away: REQUEST_TIMED_OUT (7) at the request's time-out at the latest, and the starts may still move later.

Versions: v2 flexible.

Gaps: none.
"""

from __future__ import annotations

from concurrent.futures import Future

from kbroker._fast.partition.partition import Partition
from kbroker.errors import KafkaError
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.handlers.leadership import end_of, led_partition
from kbroker.protocol.apis.records.k21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

NO_WATERMARK = -1

Moves = list[tuple[DeleteRecordsPartitionResult, Partition, int]]


def handle(
    context: Context, info: RequestInfo, request: DeleteRecordsRequest
) -> DeleteRecordsResponse | Future[DeleteRecordsResponse]:
    """Validates each partition, and moves the legal ones together."""
    moves: Moves = []
    response = DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[_judge(context, topic.name, partition, moves) for partition in topic.partitions],
            )
            for topic in request.topics
        ]
    )
    if not moves:
        return response
    answer: Future[DeleteRecordsResponse] = Future()

    def on_moved(moved: Future[None]) -> None:
        error = moved.exception()
        if error is not None and not isinstance(error, KafkaError):
            answer.set_exception(error)
            return
        for result, partition, _ in moves:
            ended = end_of(partition)
            if error is not None or ended:
                result.error_code = ended if error is None else error.code
            else:
                result.low_watermark = partition.log_start_offset
        answer.set_result(response)

    targets = [(partition, offset) for _, partition, offset in moves]
    context.log_starts.move(targets, request.timeout_ms).add_done_callback(on_moved)
    return answer


def _judge(context: Context, topic: str, wanted: DeleteRecordsPartition, moves: Moves) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(partition_index=wanted.partition_index, low_watermark=NO_WATERMARK)
    try:
        partition = led_partition(context, topic, wanted.partition_index)
        offset = partition.log.delete_target(wanted.offset)
    except KafkaError as error:
        result.error_code = error.code
        return result
    if offset > partition.log_start_offset:
        moves.append((result, partition, offset))
    else:
        result.low_watermark = partition.log_start_offset
    return result


HANDLER = Handler(21, 0, 2, handle, inline=True)
