"""OffsetForLeaderEpoch (key 23), versions 2-4: where a leader epoch ended, for the truncation check of consumers.

Behaviour:
- The newest epoch ends at the log end offset; an older one where the next begins; an epoch below all known ones is
  answered with the first known start; a newer one than any with -1 and -1 (KIP-320).
- The client's current epoch: older FENCED_LEADER_EPOCH (74), newer UNKNOWN_LEADER_EPOCH (75), -1 not checked.
- Unknown partition UNKNOWN_TOPIC_OR_PARTITION (3); not led here NOT_LEADER_OR_FOLLOWER (6).

Versions: v3 replica id (not looked at: there are no followers). v4 flexible.

Gaps: none.
"""

from __future__ import annotations

from kbroker.errors import ErrorCode, KafkaError
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.handlers.leadership import check_led, led_partition
from kbroker.protocol.apis.records.k23_offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


def handle(context: Context, info: RequestInfo, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    """Each partition by itself."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_end_offset(context, topic.topic, asked) for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _end_offset(context: Context, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = led_partition(context, topic, asked.partition, asked.current_leader_epoch)
        epoch, end_offset = partition.log.end_offset_for(asked.leader_epoch)
        check_led(partition)
    except KafkaError as error:
        return EpochEndOffset(error_code=error.code, partition=asked.partition)
    return EpochEndOffset(
        error_code=ErrorCode.NONE, partition=asked.partition, leader_epoch=epoch, end_offset=end_offset
    )


HANDLER = Handler(23, 2, 4, handle, inline=True)
