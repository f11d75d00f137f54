"""DeleteAcls (key 31), versions 1-3: no authorizer, no ACLs.

Behaviour: SECURITY_DISABLED (54) for each filter.

Versions: v2 flexible. v3 the user resource type.

Gaps: there is no authorizer.
"""

from __future__ import annotations

from kbroker.errors import ErrorCode
from kbroker.handlers.authorized_operations import NO_AUTHORIZER
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.security.k31_delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)


def handle(context: Context, info: RequestInfo, request: DeleteAclsRequest) -> DeleteAclsResponse:
    """Refuses."""
    refused = DeleteAclsResponse()
    for _ in request.filters:
        refused.filter_results.append(
            DeleteAclsFilterResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
        )
    return refused


HANDLER = Handler(31, 1, 3, handle, inline=True)
