"""OffsetCommit (key 8), versions 2-10.

Behaviour: answered when the offsets are durable. Generation -1 is a simple consumer (`assign()`) and needs a group
without members. Unknown partitions and oversized metadata are refused one by one, the rest is committed.
Per version: 2-4 retention time; 3 throttle; 6 leader epoch; 7 static members; 8 flexible; 9 GROUP_ID_NOT_FOUND;
10 topics by id, an unknown one UNKNOWN_TOPIC_ID.
Known gaps: none.
"""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.coordinator.group.requests import CommitRequest
from kbroker.errors import ErrorCode
from kbroker.futures import map_future
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.handlers.offset_topics import TOPIC_IDS_MIN_VERSION, resolve_names, split_commit
from kbroker.protocol.apis.groups.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)


def handle(
    context: Context, info: RequestInfo, request: OffsetCommitRequest
) -> OffsetCommitResponse | Future[OffsetCommitResponse]:
    """Commits offsets."""
    if info.api_version >= TOPIC_IDS_MIN_VERSION:
        resolve_names(context, request.topics)
    offsets, refused = split_commit(context, request.topics)

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
    return map_future(context.groups.commit_offsets(commit), answer)


def _response(
    request: OffsetCommitRequest, refused: dict[tuple[str, int], ErrorCode], error: ErrorCode
) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
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


HANDLER = Handler(8, 2, 10, handle, inline=True)
