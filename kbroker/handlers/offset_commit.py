"""OffsetCommit (key 8), versions 2-9.

Behaviour: answered when the offsets are durable. Generation -1 is a simple consumer (`assign()`) and needs a group
without members. Unknown partitions and oversized metadata are refused one by one, the rest is committed.
Per version: 2-4 retention time; 3 throttle; 6 leader epoch; 7 static members; 8 flexible; 9 GROUP_ID_NOT_FOUND.
Known gaps: version 10 (topic ids).
"""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.coordinator.offset_commit import CommitRequest
from kbroker.errors import ErrorCode
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.handlers.later import later
from kbroker.protocol.apis.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)


def handle(
    context: Context, info: RequestInfo, request: OffsetCommitRequest
) -> OffsetCommitResponse | Future[OffsetCommitResponse]:
    """Commits offsets."""
    offsets = []
    refused: dict[tuple[str, int], ErrorCode] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            error = _check(context, topic.name, partition)
            if error:
                refused[topic.name, partition.partition_index] = error
            else:
                metadata = partition.committed_metadata or ""
                leader_epoch = partition.committed_leader_epoch
                offsets.append(
                    (topic.name, partition.partition_index, partition.committed_offset, leader_epoch, metadata)
                )

    def answer(error: ErrorCode) -> OffsetCommitResponse:
        return _response(request, refused, error)

    if refused and not offsets:
        return answer(ErrorCode.NONE)
    commit = CommitRequest(
        group_id=request.group_id,
        generation=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        version=info.api_version,
        retention_ms=request.retention_time_ms,
        offsets=offsets,
    )
    return later(context.groups.commit_offsets(commit), answer)


def _check(context: Context, topic: str, partition: OffsetCommitRequestPartition) -> ErrorCode:
    if not context.groups.topic_exists(topic, partition.partition_index):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    metadata = partition.committed_metadata
    # Kafka counts Java chars: UTF-16 code units.
    if metadata and len(metadata.encode("utf-16-le")) // 2 > context.groups.config.offset_metadata_length_max:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def _response(
    request: OffsetCommitRequest, refused: dict[tuple[str, int], ErrorCode], error: ErrorCode
) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=refused.get((topic.name, partition.partition_index), error),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


HANDLER = Handler(8, 2, 9, handle, inline=True)
