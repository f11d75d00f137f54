"""ConsumerGroupDescribe (key 69), versions 0-1: consumer groups with epochs, members and assignments (KIP-848).

Behaviour: GROUP_ID_NOT_FOUND for an unknown group and for a classic one, INVALID_GROUP_ID for an empty id. Without
access control all operations are allowed. A group that is named again is answered once.
Per version: 1 the type of each member (KIP-1099).
Known gaps: none.
"""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.futures import map_each, map_future
from kbroker.handlers.authorized_operations import GROUP_OPERATIONS
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.groups.k69_consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)


def handle(
    context: Context, info: RequestInfo, request: ConsumerGroupDescribeRequest
) -> Future[ConsumerGroupDescribeResponse]:
    """Describes groups."""

    def answer(groups: list[DescribedGroup]) -> ConsumerGroupDescribeResponse:
        for group in groups:
            if request.include_authorized_operations and not group.error_code:
                group.authorized_operations = GROUP_OPERATIONS
        return ConsumerGroupDescribeResponse(groups=groups)

    return map_future(map_each(context.groups.describe_consumer_group, list(dict.fromkeys(request.group_ids))), answer)


HANDLER = Handler(69, 0, 1, handle, inline=True)
