"""ListPartitionReassignments (key 46), version 0: none is ever in progress.

Behaviour: an empty list, whatever is asked for.

Versions: 0.

Gaps: none.
"""

from __future__ import annotations

from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.topics.k46_list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


def handle(
    context: Context, info: RequestInfo, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Nothing is being moved."""
    return ListPartitionReassignmentsResponse(error_message=None)


HANDLER = Handler(46, 0, 0, handle, inline=True)
