"""DeleteGroups (key 42), versions 0-3.

Behaviour: removes Empty groups with their offsets; NON_EMPTY_GROUP and GROUP_ID_NOT_FOUND per group.
Per version: 2 flexible; 3 error message.
Known gaps: none.
"""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.errors import ErrorCode
from kbroker.futures import map_each, map_future
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.groups.k42_delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)


def handle(context: Context, info: RequestInfo, request: DeleteGroupsRequest) -> Future[DeleteGroupsResponse]:
    """Deletes groups."""

    def answer(errors: list[ErrorCode]) -> DeleteGroupsResponse:
        return DeleteGroupsResponse(
            results=[
                DeletableGroupResult(
                    group_id=group_id, error_code=error, error_message=error.name if error else None
                )
                for group_id, error in zip(request.groups_names, errors, strict=True)
            ]
        )

    return map_future(map_each(context.groups.delete_group, request.groups_names), answer)


HANDLER = Handler(42, 0, 3, handle, inline=True)
