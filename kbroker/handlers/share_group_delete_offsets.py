"""DeleteShareGroupOffsets (key 92), version 0: share groups forget topics, with --share-groups (KIP-932).

Behaviour: only for a group without members (NON_EMPTY_GROUP). UNKNOWN_TOPIC_OR_PARTITION for a topic that does not
exist, or of which the group has no share state. If a member subscribes to such a topic again, it starts as in a new
group.
Known gaps: none.
"""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.coordinator.group.share.offsets import TopicOutcome
from kbroker.errors import ErrorCode
from kbroker.futures import map_future
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.share_groups.k92_delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)
from kbroker.protocol.fields import ZERO_UUID


def handle(
    context: Context, info: RequestInfo, request: DeleteShareGroupOffsetsRequest
) -> Future[DeleteShareGroupOffsetsResponse]:
    """Deletes one group's offsets."""

    def answer(outcome: list[TopicOutcome] | ErrorCode) -> DeleteShareGroupOffsetsResponse:
        if isinstance(outcome, ErrorCode):
            return DeleteShareGroupOffsetsResponse(error_code=outcome, error_message=outcome.name)
        return DeleteShareGroupOffsetsResponse(
            responses=[
                DeleteShareGroupOffsetsResponseTopic(
                    topic_name=topic.topic,
                    topic_id=topic.topic_id or ZERO_UUID,
                    error_code=topic.error,
                    error_message=topic.message or (topic.error.name if topic.error else None),
                )
                for topic in outcome
            ]
        )

    names = [topic.topic_name for topic in request.topics]
    return map_future(context.groups.delete_share_offsets(request.group_id, names), answer)


HANDLER = Handler(92, 0, 0, handle, inline=True)
