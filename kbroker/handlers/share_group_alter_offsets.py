"""AlterShareGroupOffsets (key 91), version 0: moves share groups in their partitions, with --share-groups (KIP-932).

Behaviour: only for a group without members (NON_EMPTY_GROUP); one that does not exist is created. What the group
had done with records of such a partition is forgotten. UNKNOWN_TOPIC_OR_PARTITION per partition; INVALID_REQUEST for a
negative offset.
Known gaps: none.
"""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.coordinator.group.share.offsets import Alteration, AlterOutcome
from kbroker.errors import ErrorCode
from kbroker.futures import map_future
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.share_groups.k91_alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)
from kbroker.protocol.fields import ZERO_UUID


def handle(
    context: Context, info: RequestInfo, request: AlterShareGroupOffsetsRequest
) -> Future[AlterShareGroupOffsetsResponse]:
    """Alters one group's offsets."""
    topics: dict[str, dict[int, int]] = {}
    for topic in request.topics:
        topics.setdefault(topic.topic_name, {}).update({p.partition_index: p.start_offset for p in topic.partitions})
    wanted = [
        Alteration(name, index, offset) for name, partitions in topics.items() for index, offset in partitions.items()
    ]

    def answer(outcome: AlterOutcome | ErrorCode) -> AlterShareGroupOffsetsResponse:
        if isinstance(outcome, ErrorCode):
            return AlterShareGroupOffsetsResponse(error_code=outcome, error_message=outcome.name)
        return AlterShareGroupOffsetsResponse(
            responses=[
                AlterShareGroupOffsetsResponseTopic(
                    topic_name=name,
                    topic_id=_topic_id(context, name),
                    partitions=[_partition(index, outcome[name, index]) for index in partitions],
                )
                for name, partitions in topics.items()
            ]
        )

    return map_future(context.groups.alter_share_offsets(request.group_id, wanted), answer)


def _topic_id(context: Context, name: str) -> bytes:
    topic = context.logs.by_name.get(name)
    topic_id: bytes = ZERO_UUID if topic is None else topic.topic_id
    return topic_id


def _partition(index: int, error: ErrorCode) -> AlterShareGroupOffsetsResponsePartition:
    return AlterShareGroupOffsetsResponsePartition(
        partition_index=index, error_code=error, error_message=error.name if error else None
    )


HANDLER = Handler(91, 0, 0, handle, inline=True)
