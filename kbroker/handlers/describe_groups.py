"""DescribeGroups (key 15), versions 0-6, classic groups.

Behaviour: metadata and assignments are shown of Stable groups only. A consumer group (KIP-848) is answered as an
unknown one: clients then ask with ConsumerGroupDescribe. Without access control all operations are allowed.
A group that is named again is answered once.
Per version: 0-5 an unknown group is Dead, without an error; 1 throttle; 3 authorized operations; 4 static members;
5 flexible; 6 GROUP_ID_NOT_FOUND and an error message.
Known gaps: none.
"""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.errors import ErrorCode
from kbroker.futures import map_each, map_future
from kbroker.handlers.authorized_operations import GROUP_OPERATIONS
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.groups.k15_describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

_NOT_FOUND_MIN_VERSION = 6


def handle(
    context: Context, info: RequestInfo, request: DescribeGroupsRequest
) -> Future[DescribeGroupsResponse]:
    """Describes groups."""

    def answer(groups: list[DescribedGroup]) -> DescribeGroupsResponse:
        for group in groups:
            if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND and info.api_version < _NOT_FOUND_MIN_VERSION:
                group.error_code = ErrorCode.NONE
            if request.include_authorized_operations and not group.error_code:
                group.authorized_operations = GROUP_OPERATIONS
        return DescribeGroupsResponse(groups=groups)

    return map_future(map_each(context.groups.describe_group, list(dict.fromkeys(request.groups))), answer)


HANDLER = Handler(15, 0, 6, handle, inline=True)
