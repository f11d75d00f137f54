"""OffsetDelete (key 47), version 0.

Behaviour: removes committed offsets of a group, also those of transactions that are still open. A topic that members
read is refused with GROUP_SUBSCRIBED_TO_TOPIC, an unknown partition with UNKNOWN_TOPIC_OR_PARTITION, each on its own;
for the whole group GROUP_ID_NOT_FOUND, and NON_EMPTY_GROUP where members are not consumers. A partition without an
offset is no error.
Known gaps: none.
"""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.errors import ErrorCode
from kbroker.futures import map_future
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.groups.k47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


def handle(context: Context, info: RequestInfo, request: OffsetDeleteRequest) -> Future[OffsetDeleteResponse]:
    """Deletes offsets."""
    partitions = [(topic.name, partition.partition_index) for topic in request.topics for partition in topic.partitions]
    known = [key for key in partitions if context.groups.topic_exists(*key)]

    def answer(outcome: dict[tuple[str, int], ErrorCode] | ErrorCode) -> OffsetDeleteResponse:
        if isinstance(outcome, ErrorCode):
            return OffsetDeleteResponse(error_code=outcome)
        return _response(request, outcome)

    return map_future(context.groups.delete_offsets(request.group_id, known), answer)


def _response(request: OffsetDeleteRequest, outcome: dict[tuple[str, int], ErrorCode]) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=outcome.get(
                            (topic.name, partition.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                        ),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


HANDLER = Handler(47, 0, 0, handle, inline=True)
