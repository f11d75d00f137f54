"""ShareGroupDescribe (key 77), version 1: share groups with epochs, members and assignments, with --share-groups.

Behaviour: GROUP_ID_NOT_FOUND for an unknown group and for one of another type, INVALID_GROUP_ID for an empty id.
Without access control all operations are allowed. A group that is named again is answered once.
Known gaps: none.
"""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.futures import map_each, map_future
from kbroker.handlers.authorized_operations import GROUP_OPERATIONS
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.share_groups.k77_share_group_describe import (
    DescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)


def handle(
    context: Context, info: RequestInfo, request: ShareGroupDescribeRequest
) -> Future[ShareGroupDescribeResponse]:
    """Describes groups."""

    def answer(groups: list[DescribedGroup]) -> ShareGroupDescribeResponse:
        for group in groups:
            if request.include_authorized_operations and not group.error_code:
                group.authorized_operations = GROUP_OPERATIONS
        return ShareGroupDescribeResponse(groups=groups)

    return map_future(map_each(context.groups.describe_share_group, list(dict.fromkeys(request.group_ids))), answer)


HANDLER = Handler(77, 1, 1, handle, inline=True)
